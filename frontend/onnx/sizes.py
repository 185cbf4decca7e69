"""Arithmetic of shapes: operators over tensors whose elements are known numbers or dims.

Such tensors never become part of the graph. Each rule computes over arrays of Python numbers and
dims, and raises `NotKnown` where only a run could tell; then the operator is imported as any other.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import types
from ...ir.dim import Dim, Expr, divide_exactly, floordiv, maximum, minimum, mod, product
from ...ir.facts import Facts
from ...ir.graph import Value
from ...ir.types import DType
from .known import MAX_DIMS, Known
from .tensors import dtype_of_element

if TYPE_CHECKING:
    from .operators import Call

Items = np.ndarray  # of Python numbers and dims
Rule = Callable[..., Any]  # (call, *Items, **attributes) -> Items, or a tuple of them


class NotKnown(Exception):
    """The elements of a result depend on a run."""


def computed(call: "Call", operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """The result of an operator as known tensors, None where it has to be computed in a run."""
    name = call.node.op_type
    if name in SHAPES:
        if not isinstance(operands[0], Value):
            raise TypeError(f"{name} of what is no tensor")
        return SHAPES[name](operands[0].shape, **attributes)
    rule = _RULES.get(name)
    given = [x for x in operands if x is not None]
    if rule is None or not given or not all(isinstance(x, Known) for x in given):
        return None
    if sum(x.count for x in given) > MAX_DIMS:
        return None
    if any(x.dtype.is_float for x in given):
        if all(x.lazy is not None for x in given):
            return None  # arithmetic of numbers is a run's
        rule = _exact_div if name == "Div" else rule
    try:
        result = rule(call, *(None if x is None else _exact(x) for x in operands), **attributes)
    except NotKnown:
        return None
    dtype = _dtype(name, given, attributes)
    if isinstance(result, tuple):
        return tuple(Known.of_dims(part, dtype) for part in result)
    return Known.of_dims(result, dtype)


def _exact(x: Known) -> Items:
    """The elements; whole numbers as integers, so that they go together with dims."""
    items = x.dims
    assert items is not None, "its size was looked at"
    return _each(_whole, items) if x.dtype.is_float else items


def _dtype(name: str, given: Sequence[Known], attributes: Mapping[str, Any]) -> DType:
    if name == "Cast":
        return dtype_of_element(attributes["to"])
    if name in _COMPARISONS:
        return types.bool_
    if name == "ConstantOfShape":
        value = attributes.get("value")
        return types.f32 if value is None else value.dtype
    return given[1].dtype if name == "Where" else given[0].dtype


def _each(function: Callable[..., Any], *arrays: Items) -> Items:
    """A function of elements, over arrays that broadcast."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)


def _whole(x: Any) -> Any:
    if not isinstance(x, float):
        return x
    if not x.is_integer():
        raise NotKnown
    return int(x)


def _numbers(items: Items | None) -> list[int]:
    """Elements that have to be numbers here, such as axes."""
    numbers = [] if items is None else list(items.flat)
    if any(isinstance(x, Expr) for x in numbers):
        raise NotKnown
    return [int(x) for x in numbers]


# ---- element by element --------------------------------------------------------------------


def _quotient(call: "Call", a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int) and b:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # towards zero
    if call.facts.proved_le(0, a) and call.facts.proved_lt(0, b):
        return floordiv(a, b)
    raise NotKnown


def _div(call: "Call", a: Items, b: Items) -> Items:
    return _each(lambda x, y: _quotient(call, x, y), a, b)


def _exact_div(call: "Call", a: Items, b: Items) -> Items:
    """The quotient of floats, where it is whole."""

    def quotient(x: Dim, y: Dim) -> Dim:
        exact = None if y == 0 else divide_exactly(x, y)
        if exact is None:
            raise NotKnown
        return exact

    return _each(quotient, a, b)


def _mod(call: "Call", a: Items, b: Items, *, fmod: int = 0) -> Items:
    def rest(x: Dim, y: Dim) -> Dim:
        if call.facts.proved_lt(0, y) and (not fmod or call.facts.proved_le(0, x)):
            return mod(x, y)
        raise NotKnown

    return _each(rest, a, b)


def _decided(proved: Callable[..., bool], refuted: Callable[..., bool]) -> Rule:
    def decide(call: "Call", a: Items, b: Items) -> Items:
        def holds(x: Any, y: Any) -> bool:
            if isinstance(x, bool) or isinstance(y, bool):
                return bool(x == y)  # only Equal takes them
            if proved(call.facts, x, y):
                return True
            if refuted(call.facts, x, y):
                return False
            raise NotKnown

        return _each(holds, a, b)

    return decide


_COMPARISONS: dict[str, Rule] = {
    "Equal": _decided(Facts.proved_eq, Facts.proved_ne),
    "Less": _decided(Facts.proved_lt, lambda f, x, y: f.proved_le(y, x)),
    "Greater": _decided(lambda f, x, y: f.proved_lt(y, x), Facts.proved_le),
    "LessOrEqual": _decided(Facts.proved_le, lambda f, x, y: f.proved_lt(y, x)),
    "GreaterOrEqual": _decided(lambda f, x, y: f.proved_le(y, x), Facts.proved_lt),
}


def _of_bools(function: Callable[..., bool]) -> Rule:
    def apply(call: "Call", *arrays: Items) -> Items:
        if not all(isinstance(x, bool) for array in arrays for x in array.flat):
            raise NotKnown
        return _each(function, *arrays)

    return apply


def _extremum(pick: Callable[[Dim, Dim], Dim], *, smaller: bool) -> Rule:
    def choose(call: "Call", *arrays: Items) -> Items:
        def of(x: Dim, y: Dim) -> Dim:
            low, high = (x, y) if smaller else (y, x)
            if call.facts.proved_le(low, high):
                return x
            return y if call.facts.proved_le(high, low) else pick(x, y)

        total = arrays[0]
        for array in arrays[1:]:
            total = _each(of, total, array)
        return total

    return choose


def _where(call: "Call", condition: Items, x: Items, y: Items) -> Items:
    return _each(lambda c, a, b: a if c else b, condition, x, y)


def _abs(call: "Call", x: Items) -> Items:
    def of(value: Dim) -> Dim:
        if call.facts.proved_le(0, value):
            return value
        if call.facts.proved_le(value, 0):
            return value * -1
        raise NotKnown

    return _each(of, x)


def _same(call: "Call", x: Items, *_: Any, **__: Any) -> Items:
    return x


def _cast(call: "Call", x: Items, *, to: int, **_: Any) -> Items:
    def flag(value: Dim) -> bool:
        if isinstance(value, Expr) and not call.facts.proved_ne(value, 0):
            raise NotKnown
        return isinstance(value, Expr) or bool(value)

    if dtype_of_element(to) is types.bool_:
        return _each(flag, x)
    return _each(lambda v: int(v) if isinstance(v, bool) else v, x)


# ---- shapes and places ---------------------------------------------------------------------


def _shape(shape: Sequence[Dim], *, start: int = 0, end: int | None = None) -> Known:
    return Known.of_dims(_row(list(shape)[start:end]), types.i64)


def _size(shape: Sequence[Dim]) -> Known:
    total = np.empty((), object)
    total[()] = product(shape)
    return Known.of_dims(total, types.i64)


SHAPES: dict[str, Callable[..., Known]] = {"Shape": _shape, "Size": _size}


def _row(items: Sequence[Any]) -> Items:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def _gather(call: "Call", data: Items, indices: Items, *, axis: int = 0) -> Items:
    places = np.array(_numbers(indices), np.int64).reshape(indices.shape)
    return np.asarray(np.take(data, places, axis), object)


def _concat(call: "Call", *parts: Items, axis: int) -> Items:
    return np.concatenate(parts, axis)


def _slice(
    call: "Call",
    data: Items,
    first: Items | None = None,
    last: Items | None = None,
    along: Items | None = None,
    by: Items | None = None,
    *,
    starts: Sequence[int] = (),
    ends: Sequence[int] = (),
    axes: Sequence[int] | None = None,
) -> Items:
    begins = starts if first is None else _numbers(first)
    stops = ends if last is None else _numbers(last)
    named = axes if along is None else _numbers(along)
    steps = [1] * len(begins) if by is None else _numbers(by)
    index: list[slice] = [slice(None)] * data.ndim
    for axis, begin, stop, step in zip(
        range(len(begins)) if named is None else named, begins, stops, steps
    ):
        before_start = step < 0 and stop < -data.shape[axis]  # ONNX: to the first, and that too
        index[axis] = slice(begin, None if before_start else stop, step)
    return data[tuple(index)]


def _squeeze(
    call: "Call", x: Items, named: Items | None = None, *, axes: Sequence[int] | None = None
) -> Items:
    chosen = axes if named is None else _numbers(named)
    return np.squeeze(x, None if chosen is None else tuple(chosen))


def _unsqueeze(
    call: "Call", x: Items, named: Items | None = None, *, axes: Sequence[int] = ()
) -> Items:
    return np.expand_dims(x, tuple(axes if named is None else _numbers(named)))


def _reshape(
    call: "Call",
    x: Items,
    to: Items | None = None,
    *,
    shape: Sequence[int] = (),
    allowzero: int = 0,
) -> Items:
    wanted = list(shape) if to is None else _numbers(to)
    if not allowzero:
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


def _transpose(call: "Call", x: Items, *, perm: Sequence[int] | None = None) -> Items:
    return x.transpose(perm)


def _expand(call: "Call", x: Items, shape: Items) -> Items:
    wanted = np.broadcast_shapes(x.shape, tuple(_bounded(shape)))
    return np.broadcast_to(x, wanted)


def _bounded(shape: Items) -> list[int]:
    numbers = _numbers(shape)
    if product(numbers) > MAX_DIMS:
        raise NotKnown
    return numbers


def _constant_of_shape(call: "Call", shape: Items, *, value: Known | None = None) -> Items:
    items = np.empty(tuple(_bounded(shape)), object)
    items[...] = 0.0 if value is None else value.dims.flat[0]  # type: ignore[union-attr]
    return items


def _range(call: "Call", start: Items, limit: Items, delta: Items) -> Items:
    first, last, step = _numbers(np.concatenate([x.reshape(1) for x in (start, limit, delta)]))
    places = range(first, last, step)
    if len(places) > MAX_DIMS:
        raise NotKnown
    return _row(list(places))


def _split(
    call: "Call",
    x: Items,
    sizes: Items | None = None,
    *,
    axis: int = 0,
    split: Sequence[int] | None = None,
    num_outputs: int | None = None,
) -> tuple[Items, ...]:
    count = call.num_outputs
    size = x.shape[axis]
    width = -(-size // count)
    widths = split if sizes is None else _numbers(sizes)
    if widths is None:
        widths = [min(width, max(0, size - i * width)) for i in range(count)]
    if sum(widths) != size or len(widths) != count:
        raise ValueError(f"an axis of {size} in parts of {list(widths)}")
    return tuple(np.split(x, np.cumsum(widths)[:-1], axis))


def _reduced(over: Callable[..., Any]) -> Rule:
    def apply(
        call: "Call",
        x: Items,
        named: Items | None = None,
        *,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Items:
        chosen = axes if named is None else _numbers(named)
        if not chosen:
            if noop_with_empty_axes:
                return x
            chosen = range(x.ndim)
        axis = tuple(chosen)
        return np.asarray(over.reduce(x, axis=axis, keepdims=bool(keepdims)), object)  # type: ignore[attr-defined]

    return apply


_RULES: dict[str, Rule] = {
    **_COMPARISONS,
    "Add": lambda call, x, y: x + y,
    "Sub": lambda call, x, y: x - y,
    "Mul": lambda call, x, y: x * y,
    "Neg": lambda call, x: -x,
    "Div": _div,
    "Mod": _mod,
    "Abs": _abs,
    "Min": _extremum(minimum, smaller=True),
    "Max": _extremum(maximum, smaller=False),
    "And": _of_bools(lambda x, y: x and y),
    "Or": _of_bools(lambda x, y: x or y),
    "Xor": _of_bools(lambda x, y: x != y),
    "Not": _of_bools(lambda x: not x),
    "Where": _where,
    "Cast": _cast,
    **dict.fromkeys(("Floor", "Ceil", "Round", "Identity"), _same),
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Split": _split,
    "ReduceProd": _reduced(np.multiply),
    "ReduceSum": _reduced(np.add),
}
