"""The arguments of a compiled module's call: checked, described, and as examples for tracing."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..frontend.dtypes import FROM_TORCH, TO_TORCH, from_numpy
from ..ir.errors import DeviceError, ShapeError, UnsupportedModel
from ..ir.types import DType
from ..runtime.device import Device, no_memory
from ..runtime.dlpack import CPU, View, view_of
from ..runtime.executable import Executable
from .callable_module import without_history

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


def check_tensors(arguments: Mapping[str, Any]) -> None:
    """ShapeError or DeviceError for the first tensor that has no memory of its own to read."""
    for path, leaf in pytree.tree_flatten_with_path(dict(arguments))[0]:
        problem = _problem(leaf) if isinstance(leaf, torch.Tensor) else None
        if problem is not None:
            kind = DeviceError if leaf.is_meta else ShapeError
            raise kind(f"{_name(path)} is {problem[0]}", fix=problem[1])


def is_plain(leaf: Any) -> bool:
    """Whether `check_tensors` finds nothing wrong with this one."""
    return not isinstance(leaf, torch.Tensor) or _problem(leaf) is None


def _problem(x: torch.Tensor) -> tuple[str, str] | None:
    """What is wrong with an input and what to do, None when it is a plain tensor."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        name = type(x).__name__
        return f"a {name}, a subclass of torch.Tensor", "pass a plain tensor"
    if x.is_meta:
        return "on the meta device", "pass a tensor with values"
    if x.is_nested:
        return "a nested tensor", "pass a padded one: x.to_padded_tensor(0.0)"
    if x.layout != torch.strided:
        return f"of layout {x.layout}", "pass a dense one: x.to_dense()"
    if x.is_quantized:
        return "a quantized tensor", "pass its values: x.dequantize()"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "inside of a transform of torch.func", "call the compiled module outside of it"
    if x.requires_grad and torch.is_grad_enabled():
        return (
            "a tensor that requires grad, and results carry none",
            "call it under torch.no_grad(), or pass what is detached first: x.detach()",
        )
    return None


def tensor_view(value: Any) -> Any:
    """A tensor where it lies, as `runtime/dlpack.py` would find it; other values as they are.

    Capsules take longer than a small kernel. On a GPU nothing has waited for torch's stream yet.
    """
    is_seen = isinstance(value, torch.Tensor) and value.dtype in FROM_TORCH
    if not is_seen or value.is_neg() or not (value.is_cpu or value.is_cuda):
        return without_history(value)
    place = (1, 0) if value.is_cpu else (2, value.get_device())
    strides = None if value.is_contiguous() else value.stride()
    dtype = FROM_TORCH[value.dtype]
    return View(value.data_ptr(), tuple(value.shape), strides, dtype, place, value)


def computed(executable: Executable, arrays: Sequence[Any]) -> list[Any]:
    """What the executable gives. Of arrays on a GPU tensors, as torch's own operations do.

    It begins behind what torch's stream was told, and where all arrays are there that stream waits
    for it, not the host.
    """
    device = executable.device
    is_here = [isinstance(x, View) and x.device == device.dlpack_device for x in arrays]
    if device.kind == "cpu" or not any(is_here):
        return executable(*arrays)
    stream = torch.cuda.current_stream(device.dlpack_device[1]).cuda_stream
    device.wait_for(stream)
    consumer = stream if all(is_here) else None
    outputs = executable(*arrays, consumer=consumer, make=partial(_new_tensor, device))
    return [output.keep if isinstance(output, View) else output for output in outputs]


def _new_tensor(device: Device, shape: tuple[int, ...], dtype: DType) -> View:
    """A tensor in torch's own memory of a GPU, not filled. OutOfMemory where there is none."""
    kind, index = device.dlpack_device
    try:
        made = torch.empty(shape, dtype=TO_TORCH[dtype], device=torch.device("cuda", index))
    except torch.OutOfMemoryError as error:
        nbytes = prod(shape) * dtype.nbytes
        raise no_memory(nbytes, "an output", device.name, device.free_bytes()) from error
    return View(made.data_ptr(), shape, None, dtype, (kind, index), made)


def as_tensor(output: Any) -> torch.Tensor:
    """An output of `computed` as a tensor, which shares its memory."""
    if isinstance(output, torch.Tensor):
        return output
    if output.__dlpack_device__() == CPU:
        return from_numpy(output.numpy())
    return torch.from_dlpack(output.capsule())


def check_modes() -> None:
    """UnsupportedModel under a mode of torch in which eager would compute something else."""
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            raise UnsupportedModel(
                "autocast is on, and does not reach into a compiled module",
                facts=f"torch.autocast({kind!r}, {torch.get_autocast_dtype(kind)})",
                fix="compile and call it outside; for narrow weights, options={'weights_dtype':"
                " 'bf16'} or module.to(dtype)",
            )


def example(leaf: Any) -> Any:
    """What torch traces in place of another library's array: only its type matters."""
    if isinstance(leaf, torch.Tensor):
        return without_history(leaf)
    if not _is_array(leaf):
        return leaf
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "c":
        return torch.from_numpy(leaf)
    view = view_of(leaf)
    return torch.zeros(view.shape, dtype=TO_TORCH[view.dtype])


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and (
        hasattr(leaf, "__dlpack__") or hasattr(leaf, "__array_interface__")
    )


def shapes_of(arguments: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors among the arguments, by their path."""
    leaves, _ = pytree.tree_flatten_with_path(dict(arguments))
    return {_name(path): tuple(leaf.shape) for path, leaf in leaves if hasattr(leaf, "shape")}


def described(arguments: Mapping[str, Any]) -> str:
    """The arguments for a message: shapes of arrays, and what else is given."""
    leaves, _ = pytree.tree_flatten_with_path(dict(arguments))
    shown = [
        f"{_name(path)} {list(leaf.shape) if hasattr(leaf, 'shape') else repr(leaf)[:40]}"
        for path, leaf in leaves
    ]
    return ", ".join(shown) or "nothing"


def _name(path: tuple) -> str:
    """`x` for an argument, `x[0]` for what is inside of one."""
    return f"{path[0].key}{pytree.keystr(path[1:])}"


def changed_axes(arguments: Mapping[str, Any], seen: Sequence[Shapes]) -> dict[str, Any]:
    """torch.export's dynamic_shapes in which every axis that ever changed may vary.

    An axis that is empty now stays static: empty calls have programs of their own.
    """

    def spec(path: tuple, leaf: Any) -> Any:
        shapes = [s[_name(path)] for s in seen if _name(path) in s]
        if not hasattr(leaf, "shape") or any(len(s) != len(leaf.shape) for s in shapes):
            return None
        axes = [i for i, n in enumerate(leaf.shape) if n and len({s[i] for s in shapes}) > 1]
        return dict.fromkeys(axes, torch.export.Dim.AUTO) or None

    return pytree.tree_map_with_path(spec, dict(arguments))
