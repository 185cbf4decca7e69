"""`torch.compile(model, backend="tilewright")`: runs the graphs that torch captures of a model."""

from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import _disable_current_modes

from ..frontend.dtypes import to_numpy
from ..frontend.dynamo import (
    Argument,
    Captured,
    Result,
    import_graph,
    may_differentiate,
    static_arguments,
    whole_operations,
)
from ..ir import switches
from ..ir.errors import DeviceError, OptionError
from ..ir.fork_lock import ForkLock
from ..ir.graph import Graph, Value
from ..ir.lazy_arrays import LazyArray, LazyArrays
from ..ir.signature import Constant, Input
from ..ir.target import Target
from ..passes.pipelines import dense
from ..runtime.device import Device
from ..runtime.executable import Executable
from .arguments import as_tensor, computed, tensor_view
from .callable_module import without_history
from .compile_graph import compile_graph
from .compiled_variant import read_options
from .machine import open_device, resolve_target

MAX_PACKED = 64  # sets of weights that one graph keeps packed
_SUMS, _SUMMED = 509, 64  # of a block in a digest: how many, and of how many words each


def tilewright(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """A backend of torch.compile: a function that computes what a captured graph does.

    Graph breaks, guards, dynamic sizes, recompilation, aliases and writes in place are torch's, so
    the model does what it does in eager. Parameters and buffers have the values of each call: what
    is written into them is seen. The graph runs where its tensors are, the CPU or a CUDA
    device. Where gradients are on and an argument requires them, the forward pass is ours and the
    backward pass torch's: call the model under torch.no_grad() to do without what that stores.
    Operations that have no kernel are left to PyTorch, on the host; with options={"strict": True}
    they are an error. `torch._dynamo.utils.counters["tilewright"]` counts "graphs" and
    "fallback_ops". Operations that draw random numbers are an error, as dropout in train mode.
    There are no modes.
    Raises UnsupportedOp, UnsupportedModel, DimError, DeviceError, BuildError or OptionError, which
    torch wraps in its BackendCompilerFailed.
    """
    switches.check()
    if mode not in (None, "default"):
        raise OptionError(
            f"backend tilewright has no mode {mode!r}",
            facts="modes are choices between kernels of torch's own",
            fix="leave it out",
        )
    given = read_options(options, {"strict": (False, True)})
    differentiates = may_differentiate(module, example_inputs)

    def compile(graph: torch.fx.GraphModule, _: Sequence[Any]) -> CompiledGraph:
        static = frozenset() if differentiates else static_arguments()
        with _disable_current_modes():  # torch's own, in which tensors have no values
            return CompiledGraph(import_graph(graph, strict=given.get("strict", False)), static)

    with whole_operations(keeps=not differentiates) as decompositions:
        compiler = aot_autograd(
            fw_compiler=compile, bw_compiler=_as_it_is, decompositions=decompositions
        )
        return compiler(module, example_inputs)


class CompiledGraph:
    """The program of a captured graph: takes a list of torch's tensors and numbers.

    On the CPU its `static` arguments are packed for the kernels at the first call with them, but
    for tables that are looked up. A digest of their values, taken at each call, says when they have
    to be again: however they were written, what was packed of other values is not used.
    """

    _boxed_call = True  # torch gives the arguments in one list

    def __init__(self, captured: Captured, static: Container[int]):
        target, self._device = _device(captured.device.type, captured.device.index or 0)
        self._results, self._lock = captured.results, ForkLock()
        graph, given = captured.graph, dict(zip(captured.graph.inputs, captured.arguments))
        packs = captured.device.type == "cpu"
        self._packed = {
            value: argument.index
            for value, argument in given.items()
            if packs and argument.index in static and _is_packed(graph, value)
        }
        self._arguments = [given[value] for value in graph.inputs if value not in self._packed]
        self._values: Sequence[Any] = ()  # of the call that weights are packed for
        arrays = {
            value.name: LazyArray(value.shape, value.dtype, lambda i=i: to_numpy(self._values[i]))
            for value, i in self._packed.items()
        }
        graph = graph.replace(
            inputs=tuple(value for value in graph.inputs if value not in self._packed),
            weights=(*graph.weights, *self._packed),
        )
        weights = LazyArrays({**dict(captured.constants.lazy_items()), **arrays})
        self._compiled = compile_graph(graph, weights, dense(), target)
        # by the addresses of what was packed: layers of one kind may share a graph
        self._runs: OrderedDict[tuple[int, ...], tuple[list[int], Executable]] = OrderedDict()
        counters["tilewright"]["graphs"] += 1
        counters["tilewright"]["fallback_ops"] += self._compiled.fallback_ops

    def __call__(self, values: list[Any]) -> list[Any]:
        """What the graph computes of these arguments."""
        with self._lock:
            run = self._executable(values)
            given = [tensor_view(_input(argument, values)) for argument in self._arguments]
            outputs = computed(run, given)
        tensors = list(map(as_tensor, outputs))
        return [_result(result, tensors, values) for result in self._results]

    def _executable(self, values: Sequence[Any]) -> Executable:
        packed = [values[index] for index in self._packed.values()]
        key, digests = tuple(x.data_ptr() for x in packed), list(map(_digest, packed))
        found = self._runs.pop(key, None)
        if found is None or found[0] != digests:
            self._values = values
            program, weights = self._compiled.program, self._compiled.weights
            found = digests, Executable(program, weights, self._device, borrow_weights=False)
            self._values = ()
        self._runs[key] = found  # as the last
        if len(self._runs) > MAX_PACKED:
            self._runs.popitem(last=False)
        return found[1]


def _digest(tensor: torch.Tensor) -> bytes:
    """A digest of a tensor's bytes, taken at the speed of memory: sums of its 64-bit words.

    Each is of a few words that lie a prime number of words apart, so that rows which change places
    change sums. Other values have other sums but where changes cancel in each of those they are in;
    a change of one word never does. Counters of versions would miss what is written by way of
    `data`, of NumPy or of other processes.
    """
    data = to_numpy(tensor).reshape(-1).view(np.uint8)
    blocks, size = divmod(data.size, _SUMS * _SUMMED * 8)
    whole = data.size - size
    sums = data[:whole].view(np.uint64).reshape(blocks, _SUMMED, _SUMS).sum(axis=1)
    return sums.tobytes() + data[whole:].tobytes()


def _is_packed(graph: Graph, value: Value) -> bool:
    is_static = all(isinstance(size, int) for size in value.shape)
    return is_static and (value.type.rank < 2 or _is_matrix(graph, value))


def _is_matrix(graph: Graph, value: Value) -> bool:
    """Whether a product or a convolution reads a value, itself or after casts and views."""
    return any(
        user.op.kind in ("contract", "composite")
        or ((user.op.is_cast or user.op.kind == "view") and _is_matrix(graph, user.results[0]))
        for user in graph.uses.get(value, ())
    )


def _as_it_is(module: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
    return torch._functorch.aot_autograd.make_boxed_func(module.forward)


@lru_cache(maxsize=16)
def _device(kind: str, index: int) -> tuple[Target, Device]:
    if kind not in ("cpu", "cuda"):
        raise DeviceError(
            f"a graph on device {kind!r} cannot be compiled",
            facts="there are cpu and cuda",
            fix="move the model and its inputs there",
        )
    target = resolve_target("cpu" if kind == "cpu" else "auto")
    return target, open_device(target, index)


def _input(argument: Argument, values: Sequence[Any]) -> Any:
    value = values[argument.index]
    if argument.is_size:
        return np.empty(value, np.uint8)  # whose length is all that is read
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return without_history(value).contiguous()


def _result(result: Result, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> Any:
    if isinstance(result.source, Constant):
        return result.source.value
    if isinstance(result.source, Input):
        return values[int(result.source.name)]
    tensor = tensors[result.source.index]
    if result.source.is_number:
        return tensor.item()
    if result.order is None:
        return tensor
    # as torch would lay it out: a view that is taken of it later has to be possible
    back = [result.order.index(axis) for axis in range(len(result.order))]
    return tensor.permute(result.order).contiguous().permute(back)
