"""Normalizations by rows, by groups, by channel and by neighbours."""

from ....ir.graph import Value
from ...declined import Declined
from ...nn.norm import (
    batch_norm,
    by_channel,
    group_norm,
    layer_norm,
    local_response_norm,
    lp_normalized,
    rms_norm,
    row_statistics,
)
from ...nn.pad import each_repeated
from ..operators import MICROSOFT, Call, onnx_op


@onnx_op("GroupNormalization", since=18)
def _group_norm_of_groups(
    call: Call, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5, num_groups: int
) -> Value:
    """Scale and bias by group."""
    channels = call.static(x.shape[1], "the number of channels")
    scale, bias = (each_repeated(call.b, v, 0, channels // num_groups) for v in (scale, bias))
    return group_norm(call.b, x, num_groups, scale, bias, epsilon)


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


@onnx_op("LayerNormalization")
@onnx_op("LayerNormalization", domain=MICROSOFT)
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
    first = call.axis(axis, x)
    statistics = row_statistics(call.b, x, first, epsilon)
    return layer_norm(call.b, x, first, scale, bias, epsilon), *statistics


@onnx_op("RMSNormalization", since=23)
@onnx_op("SimplifiedLayerNormalization")  # what onnxruntime's exporters call it, in either domain
@onnx_op("SimplifiedLayerNormalization", domain=MICROSOFT)
def _rms_norm(
    call: Call,
    x: Value,
    scale: Value,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:
    return rms_norm(call.b, call.cast(x, scale.dtype), call.axis(axis, x), scale, epsilon)


# ---- by channel ------------------------------------------------------------------------------


@onnx_op("BatchNormalization")
def _batch_norm(
    call: Call,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: bool = True,
    is_test: bool = True,
    training_mode: bool = False,
) -> Value | tuple[Value, ...]:
    if not training_mode:
        if not spatial and x.type.rank > 2:
            raise Declined("statistics for each element")
        return batch_norm(call.b, x, scale, bias, mean, var, epsilon)
    b, axes = call.b, (0, *range(2, x.type.rank))
    wide = call.computed(x)
    now = b.mean(wide, axes=axes)
    off = b.sub(wide, by_channel(b, now, x))
    spread = b.mean(b.mul(off, off), axes=axes)
    result = batch_norm(b, x, scale, bias, now, spread, epsilon)

    def running(old: Value, new: Value) -> Value:
        kept = b.mul(old, call.number(momentum, old.dtype))
        return b.add(kept, b.mul(call.cast(new, old.dtype), call.number(1 - momentum, old.dtype)))

    return result, running(mean, now), running(var, spread)


@onnx_op("InstanceNormalization")
def _instance_norm(
    call: Call, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5
) -> Value:
    groups = call.static(x.shape[1], "the number of channels")
    return group_norm(call.b, x, groups, scale, bias, epsilon)


@onnx_op("LRN")
def _lrn(
    call: Call,
    x: Value,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
) -> Value:
    return local_response_norm(call.b, x, size, alpha=alpha, beta=beta, bias=bias)


@onnx_op("LpNormalization")
def _lp_norm(call: Call, x: Value, *, axis: int = -1, p: int = 2) -> Value:
    if p not in (1, 2):
        raise ValueError(f"the norm of p = {p}")
    return lp_normalized(call.b, x, call.axis(axis, x), p)
