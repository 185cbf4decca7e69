"""torch.export's `dynamic_shapes`, read leaf by leaf, so that we keep names and ranges ourselves.

A program for many sizes is for sizes of 1 and more. Where 0 is in the declared range as well, calls
with an empty axis get another program, in which the axis is static.

Torch is asked to find dims out (`Dim.AUTO`), because with named ones it refuses a module for
guards that concern strides only. What the user declared is applied by `torch_export.py`.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim as TorchDim
from torch.utils import _pytree as pytree

from ..ir import dim as dims
from ..ir.dim import Dim
from ..ir.errors import DimError

_AUTO = TorchDim.AUTO


@dataclass(frozen=True)
class DynamicAxis:
    """What is declared of one dynamic axis: `dim` is None where torch may choose freely."""

    dim: Dim | None = None
    lo: int = 1  # range of the dim's symbol
    hi: int | None = None
    must_vary: bool = True  # False for Dim.AUTO: becoming static is no error
    may_be_empty: bool = False  # 0 is declared as well: it has a program of its own


Axes = Mapping[int, DynamicAxis]


@dataclass(frozen=True)
class DynamicShapes:
    """`torch_spec` for torch.export; `leaves`: for each leaf of the arguments, its dynamic axes."""

    torch_spec: Any
    leaves: tuple[Axes, ...]


def read_dynamic_shapes(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    spec: Any,
    fix_empty: bool = False,
) -> DynamicShapes:
    """Read a specification against the arguments it is for; `DimError` where they do not match.

    With `fix_empty`, axes that may be empty and are so here are static, with all of the same dim.
    """
    if not spec:
        count = len(pytree.tree_leaves((tuple(args), dict(kwargs))))
        return DynamicShapes(None, ({},) * count)
    if not isinstance(spec, Mapping | list | tuple):
        raise DimError(
            f"dynamic_shapes is {spec!r}",
            facts="it is a dict by the arguments' names, or a tuple in their order",
            fix='write {"x": {0: torch.export.Dim("batch", min=1, max=8)}}',
        )
    signature = inspect.signature(module.forward)
    bound = signature.bind(*args, **kwargs).arguments
    names = list(bound)
    if isinstance(spec, Mapping):
        unknown = set(spec) - set(names)
        if unknown:
            raise DimError(
                f"dynamic_shapes names {sorted(unknown)[0]!r}, which is no argument",
                facts=f"the arguments given are {', '.join(names)}",
            )
        parts = {name: spec.get(name) for name in names}
    else:
        if len(spec) != len(names):
            raise DimError(
                "dynamic_shapes does not match the arguments",
                facts=f"it has {len(spec)} entries, there are {len(names)} arguments",
                fix="give one entry an argument, None for a static one",
            )
        parts = dict(zip(names, spec))
    leaves: list[Axes] = []
    torch_spec = {name: _walk(bound[name], parts[name], name, leaves) for name in names}
    if fix_empty:
        empty = _empty_dims(args, kwargs, leaves)
        leaves = []
        torch_spec = {name: _walk(bound[name], parts[name], name, leaves, empty) for name in names}
    if not any(leaves):
        return DynamicShapes(None, tuple(leaves))
    for name in names:
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            raise DimError(
                "torch.export takes no dynamic axes of a module that takes any keyword",
                facts=f"its forward has **{name}, given {', '.join(map(repr, bound[name]))}",
                fix="name them in the signature of forward, or leave out dynamic_shapes",
            )
    return DynamicShapes(torch_spec, tuple(leaves))


def has_empty_axes(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], spec: Any
) -> bool:
    """Whether an axis that may be empty by this specification is empty in these arguments."""
    return bool(_empty_dims(args, kwargs, read_dynamic_shapes(module, args, kwargs, spec).leaves))


def _empty_dims(
    args: Sequence[Any], kwargs: Mapping[str, Any], leaves: Sequence[Axes]
) -> frozenset[str | None]:
    """Names of the dims that are 0 in these arguments, and may be; None for one without a name."""
    flat = pytree.tree_leaves((tuple(args), dict(kwargs)))
    return frozenset(
        name
        for value, axes in zip(flat, leaves, strict=True)
        for axis, declared in axes.items()
        if value.shape[axis] == 0 and declared.may_be_empty
        for name in _names(declared)
    )


def _names(axis: DynamicAxis) -> frozenset[str | None]:
    return frozenset([None]) if axis.dim is None else frozenset(dims.symbols_of(axis.dim))


def _walk(
    value: Any,
    spec: Any,
    where: str,
    leaves: list[Axes],
    empty: frozenset[str | None] = frozenset(),
) -> Any:
    """Torch's specification for `value`; appends the axes of its leaves in pytree order.

    Axes of the dims in `empty` are left out, of axes without a name those of size 0.
    """
    if isinstance(value, torch.Tensor):
        axes = {
            axis: declared
            for axis, declared in _tensor_axes(value, spec, where).items()
            if not _names(declared) & empty or (declared.dim is None and value.shape[axis])
        }
        leaves.append(axes)
        return dict.fromkeys(axes, _AUTO) or None
    if value is None or pytree._get_node_type(value) not in pytree.SUPPORTED_NODES:
        leaves.append({})
        return None
    children = _children(value)
    parts = _parts(children, value, spec, where)
    walked = [
        _walk(child, part, where + pytree.keystr(path), leaves, empty)
        for (path, child), part in zip(children.items(), parts, strict=True)
    ]
    # torch asks for its own containers as they are, and for a list where the class is the user's
    kind = pytree._get_node_type(value)
    if kind not in pytree.BUILTIN_TYPES:
        return walked
    _, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
    return pytree.SUPPORTED_NODES[kind].unflatten_fn(walked, context)


def _children(container: Any) -> dict[Any, Any]:
    """What a container holds, by its place in it."""
    return dict(pytree.tree_flatten_with_path(container, lambda x: x is not container)[0])


def _parts(children: Mapping[Any, Any], value: Any, spec: Any, where: str) -> list[Any]:
    """What the specification of a container says of each of its children."""
    if not spec:
        return [None] * len(children)
    if isinstance(value, dict):
        if isinstance(spec, Mapping) and spec.keys() <= value.keys():
            return [spec.get(key) for key in value]
        facts = f"it is {spec!r}, the argument a dict of {', '.join(map(repr, value))}"
    else:
        kind = pytree._get_node_type(value)
        if kind not in pytree.BUILTIN_TYPES and isinstance(spec, kind):
            given = _children(spec)  # an instance of the user's class too, of specifications
            return [given.get(path) for path in children]
        if isinstance(spec, list | tuple) and len(spec) == len(children):
            return list(spec)
        has = f"has {len(spec)} entries" if isinstance(spec, list | tuple) else f"is {spec!r}"
        facts = f"it {has}, the argument is a {type(value).__name__} of {len(children)}"
    raise DimError(
        "dynamic_shapes does not match the arguments",
        where=where,
        facts=facts,
        fix="give the specifications in the container that the argument is in",
    )


def _tensor_axes(tensor: torch.Tensor, spec: Any, where: str) -> dict[int, DynamicAxis]:
    if not spec:
        return {}
    items = list(spec.items()) if isinstance(spec, Mapping) else list(enumerate(spec))
    axes: dict[int, DynamicAxis] = {}
    for axis, declared in items:
        if not isinstance(axis, int) or not -tensor.dim() <= axis < tensor.dim():
            raise DimError(
                f"dynamic_shapes names axis {axis!r}",
                where=where,
                facts=f"the tensor has rank {tensor.dim()}",
            )
        read = _axis(declared, where)
        if read is not None:
            axes[axis % tensor.dim()] = read
    return axes


def _axis(declared: Any, where: str) -> DynamicAxis | None:
    if declared is None or isinstance(declared, int):
        return None
    if isinstance(declared, type(TorchDim.AUTO)):
        if declared.type == TorchDim.STATIC.type:
            return None
        may_settle = declared.type == TorchDim.AUTO.type
        return DynamicAxis(
            None, max(declared.min or 1, 1), _finite(declared.max), not may_settle, not declared.min
        )
    if not isinstance(declared, TorchDim):
        raise DimError(
            f"{declared!r} is no dim", where=where, fix='use torch.export.Dim("name", min=, max=)'
        )
    root: Any = declared
    dim: Dim | None = None
    if hasattr(declared, "root"):  # 2 * batch and the like
        root = declared.root
        dim = getattr(declared, "fn")(dims.symbol(root.__name__))  # noqa: B009  its stub lacks it
    if not root.__name__.isidentifier() or root.__name__ in ("min", "max"):
        raise DimError(f"{root.__name__!r} is not a name for a dim", where=where)
    return DynamicAxis(
        dims.symbol(root.__name__) if dim is None else dim,
        max(root.min, 1),
        _finite(root.max),
        may_be_empty=root.min <= 0,
    )


def exported_axis(lo: Any, hi: Any) -> DynamicAxis:
    """An axis in the range that torch keeps of it."""
    is_bound = getattr(hi, "is_Integer", False)  # of SymPy, as torch's infinity is
    return DynamicAxis(None, max(int(lo), 1), int(hi) if is_bound else None, must_vary=False)


def _finite(bound: Any) -> int | None:
    # torch writes an unbounded dim as int_oo or a huge number
    return int(bound) if isinstance(bound, int) and bound < 2**62 else None


TRACED_SIZE = 5  # for a dynamic axis whose example has size 0 or 1


def traceable_examples(
    args: Sequence[Any], kwargs: Mapping[str, Any], leaves: Sequence[Axes]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example arguments, with no dynamic axis of size 0 or 1.

    Torch would take such a size for a fixed one, because strides are ambiguous there. The values
    do not matter for tracing; axes under one name keep one size.
    """
    flat, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    sizes: dict[str, int] = {}
    for value, axes in zip(flat, leaves, strict=True):
        for axis, declared in axes.items():
            for name in () if declared.dim is None else dims.symbols_of(declared.dim):
                if value.shape[axis] < 2:
                    sizes[name] = _size_in(declared)
    flat = [_with_sizes(value, axes, sizes) for value, axes in zip(flat, leaves, strict=True)]
    new_args, new_kwargs = pytree.tree_unflatten(flat, spec)
    return new_args, new_kwargs


def _size_in(axis: DynamicAxis) -> int:
    return TRACED_SIZE if axis.hi is None else max(min(TRACED_SIZE, axis.hi), axis.lo)


def _with_sizes(value: Any, axes: Axes, sizes: Mapping[str, int]) -> Any:
    shape = list(value.shape) if axes else []
    for axis, declared in axes.items():
        if declared.dim is None:
            shape[axis] = _size_in(declared) if shape[axis] < 2 else shape[axis]
        elif dims.symbols_of(declared.dim) & sizes.keys():
            shape[axis] = dims.evaluate(declared.dim, sizes)
    if not axes or shape == list(value.shape):
        return value
    return torch.zeros(shape, dtype=value.dtype, device=value.device)
