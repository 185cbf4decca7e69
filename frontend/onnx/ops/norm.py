"""Normalizations by rows and by groups."""

from ....ir.dim import product
from ....ir.graph import Value
from ....ir.types import f32, f64
from ...declined import Declined
from ...nn.norm import group_norm
from ..operators import Call, onnx_op


@onnx_op("GroupNormalization", since=18)
def _group_norm_of_groups(
    call: Call, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5, num_groups: int
) -> Value:
    """Scale and bias by group."""
    channels = call.static(x.shape[1], "the number of channels")
    scale, bias = (_each(call, v, channels // num_groups) for v in (scale, bias))
    return group_norm(call.b, x, num_groups, scale, bias, epsilon)


def _each(call: Call, x: Value, times: int) -> Value:
    """[G] -> [G * times]."""
    (count,) = x.shape
    wide = call.broadcast(call.reshape(x, (count, 1)), (count, times))
    return call.reshape(wide, (count * times,))


@onnx_op("GroupNormalization", since=21)
def _group_norm(
    call: Call,
    x: Value,
    scale: Value,
    bias: Value,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,  # means and variances are computed in float32 anyway
) -> Value:
    return group_norm(call.b, x, num_groups, scale, bias, epsilon)


@onnx_op("LayerNormalization", since=1)
def _layer_norm(
    call: Call,
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Value, Value, Value]:
    return layer_norm(call, x, scale, bias, axis, epsilon)


def layer_norm(
    call: Call, x: Value, scale: Value, bias: Value | None, axis: int, epsilon: float
) -> tuple[Value, Value, Value]:
    """Over all axes from `axis` on. -> x's type; mean and 1 / deviation, in float32 or wider."""
    b, first = call.b, call.axis(axis, x)
    rows = _rows(call, x, first)
    weight = _of_row(call, scale, x, first)
    shift = b.full(value=0.0, shape=weight.shape, dtype=x.dtype)
    shift = shift if bias is None else _of_row(call, bias, x, first)
    y = call.reshape(b.layer_norm(rows, weight, shift, eps=epsilon), x.shape)
    wide = call.cast(rows, f64 if x.dtype == f64 else f32)
    mean = b.mean(wide, axes=(-1,), keepdims=True)
    centered = b.sub(wide, mean)
    square = b.mean(b.mul(centered, centered), axes=(-1,), keepdims=True)
    inverse = b.rsqrt(b.add(square, call.number(epsilon, wide.dtype)))
    shape = (*x.shape[:first], *(1,) * (x.type.rank - first))
    return y, call.reshape(mean, shape), call.reshape(inverse, shape)


@onnx_op("RMSNormalization", since=23)
@onnx_op("SimplifiedLayerNormalization")  # what onnxruntime's exporters call it, in no domain
def _rms_norm(
    call: Call,
    x: Value,
    scale: Value,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:
    return rms_norm(call, x, scale, axis, epsilon)


def rms_norm(call: Call, x: Value, scale: Value, axis: int, epsilon: float) -> Value:
    """Over all axes from `axis` on, in the dtype of the scale. Sums are made in float32."""
    x, first = call.cast(x, scale.dtype), call.axis(axis, x)
    rows = _rows(call, x, first)
    y = call.b.rms_norm(rows, _of_row(call, scale, x, first), eps=epsilon)
    return call.reshape(y, x.shape)


def _rows(call: Call, x: Value, first: int) -> Value:
    """X with the axes from `first` on as one."""
    return call.reshape(x, (*x.shape[:first], product(x.shape[first:])))


def _of_row(call: Call, weight: Value, x: Value, first: int) -> Value:
    """A weight that broadcasts to the normalized axes, as one row."""
    normalized = x.shape[first:]
    extra = weight.type.rank - len(normalized)
    if extra > 0 and any(size != 1 for size in weight.shape[:extra]):
        raise Declined(f"a weight of {weight.type} for the axes {list(normalized)}")
    weight = call.reshape(weight, weight.shape[extra:]) if extra > 0 else weight
    weight = call.broadcast(call.cast(weight, x.dtype), normalized)
    return call.reshape(weight, (product(normalized),))
