"""Reductions, running sums and products, and softmax."""

import math
from collections.abc import Callable, Sequence

from ....ir import types
from ....ir.dim import product
from ....ir.graph import Value
from ...declined import Declined
from ...nn.pad import reversed_axis
from ..operators import Call, onnx_op

Axes = tuple[int, ...]
Fold = Callable[[Call, Value, Axes, bool], Value]


def fold(op: str) -> Fold:
    """One of our reductions; over no axes it is x."""

    def apply(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
        return getattr(call.b, op)(x, axes=axes, keepdims=keepdims) if axes else x

    return apply


def _extreme(op: str, of_bools: str) -> Fold:
    def apply(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
        return fold(of_bools if x.dtype == types.bool_ else op)(call, x, axes, keepdims)

    return apply


def _in_floats(compute: Fold) -> Fold:
    """Of integers in f64, and what comes of it truncated."""

    def apply(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
        wide = x if x.dtype.is_float else call.cast(x, types.f64)
        return call.cast(compute(call, wide, axes, keepdims), x.dtype)

    return apply


def _sum_of(term: str) -> Fold:
    def apply(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
        terms = call.b.abs(x) if term == "abs" else call.b.mul(x, x)
        return fold("sum")(call, terms, axes, keepdims)

    return apply


@_in_floats
def _l2(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
    return call.b.sqrt(_sum_of("square")(call, x, axes, keepdims))


@_in_floats
def _log_sum(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
    return call.b.log(fold("sum")(call, x, axes, keepdims))


@_in_floats
def _log_sum_exp(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
    """log(sum(exp(x - m))) + m with the largest element as m, 0 where that is infinite."""
    b = call.b
    largest = fold("max")(call, x, axes, True)
    infinite = b.eq(b.abs(largest), call.number(math.inf, x.dtype))
    shift = b.where(infinite, call.number(0, x.dtype), largest)
    total = fold("sum")(call, b.exp(b.sub(x, shift)), axes, True)
    result = b.add(b.log(total), shift)
    if keepdims or not axes:
        return result
    return call.reshape(result, tuple(d for i, d in enumerate(x.shape) if i not in axes))


_REDUCTIONS: dict[str, Fold] = {
    "ReduceSum": fold("sum"),
    "ReduceMean": _in_floats(fold("mean")),
    "ReduceProd": fold("prod"),
    "ReduceMax": _extreme("max", "any"),
    "ReduceMin": _extreme("min", "all"),
    "ReduceL1": _sum_of("abs"),
    "ReduceL2": _l2,
    "ReduceSumSquare": _sum_of("square"),
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
}


def _reduction(compute: Fold) -> Callable[..., Value]:
    def reduce(
        call: Call,
        x: Value,
        given: Value | None = None,
        *,
        axes: Sequence[int] | None = None,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
    ) -> Value:
        # the axes are an attribute, and from some opset on an operand
        chosen = call.ints(axes if given is None else given) or ()
        if not chosen and not noop_with_empty_axes:
            chosen = tuple(range(x.type.rank))
        return compute(call, x, call.axes(chosen, x.type.rank), keepdims)

    return reduce


for _name, _compute in _REDUCTIONS.items():
    onnx_op(_name)(_reduction(_compute))


def _arg(op: str) -> Callable[..., Value]:
    def locate(
        call: Call,
        x: Value,
        *,
        axis: int = 0,
        keepdims: bool = True,
        select_last_index: bool = False,
    ) -> Value:
        b, axis = call.b, call.axis(axis, x)
        if not select_last_index:
            return getattr(b, op)(x, axis=axis, keepdims=keepdims)
        place = getattr(b, op)(reversed_axis(b, x, axis), axis=axis, keepdims=keepdims)
        return b.sub(b.dim_value(value=x.shape[axis] - 1), place)

    return locate


onnx_op("ArgMax")(_arg("argmax"))
onnx_op("ArgMin")(_arg("argmin"))


# ---- running sums ----------------------------------------------------------------------------


def _running(op: str, neutral: int) -> Callable[..., Value]:
    def scan(
        call: Call, x: Value, axis: Value, *, exclusive: bool = False, reverse: bool = False
    ) -> Value:
        b, (number,) = call.b, call.ints(axis) or (0,)
        place = call.axis(number, x)
        x = reversed_axis(b, x, place) if reverse else x
        if exclusive:
            x = b.pad(x, axis=place, before=1, after=0, value=neutral)
            x = b.slice(x, axis=place, start=0, stop=x.shape[place] - 1)
        x = getattr(b, op)(x, axis=place)
        return reversed_axis(b, x, place) if reverse else x

    return scan


onnx_op("CumSum")(_running("cumsum", 0))
onnx_op("CumProd")(_running("cumprod", 1))


# ---- softmax ---------------------------------------------------------------------------------


def _softmax(call: Call, x: Value, axis: int) -> Value:
    return call.b.softmax(x, axis=axis)


def log_softmax(call: Call, x: Value, axis: int) -> Value:
    """x - m - log(sum(exp(x - m))), m the largest element along axis."""
    b = call.b
    shifted = b.sub(x, b.max(x, axes=(axis,), keepdims=True))
    return b.sub(shifted, b.log(b.sum(b.exp(shifted), axes=(axis,), keepdims=True)))


def _hardmax(call: Call, x: Value, axis: int) -> Value:
    b, size = call.b, x.shape[axis]
    places = call.reshape(b.iota(length=size), (size, *(1,) * (x.type.rank - 1 - axis)))
    return call.cast(b.eq(places, b.argmax(x, axis=axis, keepdims=True)), x.dtype)


def _of_rows(compute: Callable[[Call, Value, int], Value]) -> None:
    """Rows are what follows axis, all flattened; and from opset 13 on one axis."""

    def flattened(call: Call, x: Value, *, axis: int = 1) -> Value:
        axis = call.axis(axis, x)
        rows = call.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))
        return call.reshape(compute(call, rows, 1), x.shape)

    def along(call: Call, x: Value, *, axis: int = -1) -> Value:
        return compute(call, x, call.axis(axis, x))

    name = {_softmax: "Softmax", log_softmax: "LogSoftmax", _hardmax: "Hardmax"}[compute]
    onnx_op(name)(flattened)
    onnx_op(name, since=13)(along)


for _compute in (_softmax, log_softmax, _hardmax):
    _of_rows(_compute)


# ---- losses ----------------------------------------------------------------------------------


def _loss(
    call: Call,
    scores: Value,
    target: Value,
    weight: Value | None,
    ignore_index: int | None,
    reduction: str,
) -> Value:
    """The negative score of each element's class, times the weight of the class; [N, C, ...]."""
    b, dtype = call.b, scores.dtype
    known = target
    counts = None
    if ignore_index is not None:
        counts = b.ne(target, call.number(ignore_index, target.dtype))
        known = b.where(counts, target, call.number(0, target.dtype))
    index = call.reshape(known, (known.shape[0], 1, *known.shape[1:]))
    loss = b.neg(call.reshape(b.gather_elements(scores, index, axis=1), target.shape))
    weights = None if weight is None else b.gather(weight, known, axis=0)
    if counts is not None:
        ones = call.number(1, dtype) if weights is None else weights
        weights = b.where(counts, ones, call.number(0, dtype))
    if weights is not None:
        loss = b.where(b.eq(weights, call.number(0, dtype)), weights, b.mul(loss, weights))
    axes = tuple(range(loss.type.rank))
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise Declined(f"reduction {reduction!r}")
    if reduction == "mean" and weights is None:
        return b.mean(loss, axes=axes)
    total = b.sum(loss, axes=axes)
    return total if reduction == "sum" else b.div(total, b.sum(weights, axes=axes))


@onnx_op("NegativeLogLikelihoodLoss")
def _nll(
    call: Call,
    scores: Value,
    target: Value,
    weight: Value | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Value:
    return _loss(call, scores, target, weight, ignore_index, reduction)


@onnx_op("SoftmaxCrossEntropyLoss")
def _cross_entropy(
    call: Call,
    scores: Value,
    target: Value,
    weight: Value | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Value, Value]:
    logs = log_softmax(call, scores, 1)
    return _loss(call, logs, target, weight, ignore_index, reduction), logs
