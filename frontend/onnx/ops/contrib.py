"""Operators of com.microsoft that exporters and optimizers of onnxruntime write: floats."""

from collections.abc import Sequence
from functools import partial

from ....ir import types
from ....ir.graph import Value
from ...declined import Declined
from ..operators import MICROSOFT, Call, onnx_op
from .contract import matmul
from .norm import layer_norm, rms_norm

microsoft = partial(onnx_op, domain=MICROSOFT)


def _sum(call: Call, *values: Value | None) -> Value:
    """The sum of those that are there."""
    first, *rest = [v for v in values if v is not None]
    for v in rest:
        first = call.b.add(first, v)
    return first


# ---- activations -----------------------------------------------------------------------------


@microsoft("Gelu", "BiasGelu")
def _gelu(call: Call, x: Value, bias: Value | None = None) -> Value:
    return call.b.gelu(_sum(call, x, bias))


@microsoft("FastGelu")
def _fast_gelu(call: Call, x: Value, bias: Value | None = None) -> Value:
    return call.b.gelu_tanh(_sum(call, x, bias))


@microsoft("QuickGelu")
def _quick_gelu(call: Call, x: Value, *, alpha: float = 1.702) -> Value:
    b = call.b
    return b.mul(x, b.sigmoid(b.mul(x, call.number(alpha, x.dtype))))


@microsoft("BiasAdd")
def _bias_add(call: Call, x: Value, bias: Value, skip: Value) -> Value:
    return _sum(call, x, bias, skip)


# ---- normalizations --------------------------------------------------------------------------


@microsoft("SkipLayerNormalization")
def _skip_layer_norm(
    call: Call,
    x: Value,
    skip: Value,
    scale: Value,
    shift: Value | None = None,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value, ...]:
    total = _sum(call, x, skip, bias)
    return *layer_norm(call, total, scale, shift, -1, epsilon), total


@microsoft("SkipSimplifiedLayerNormalization")
def _skip_rms_norm(
    call: Call,
    x: Value,
    skip: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Value | None, ...]:
    if any(call.node.output[1:3]):
        raise Declined("the statistics of a normalization, which training reads")
    total = _sum(call, x, skip, bias)
    return rms_norm(call, total, scale, -1, epsilon), None, None, total


@microsoft("LayerNormalization")
def _layer_norm(
    call: Call,
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Value, ...]:
    return layer_norm(call, x, scale, bias, axis, epsilon)


@microsoft("SimplifiedLayerNormalization")
def _simplified_layer_norm(
    call: Call,
    x: Value,
    scale: Value,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:
    return rms_norm(call, x, scale, axis, epsilon)


@microsoft("EmbedLayerNormalization")
def _embed_layer_norm(
    call: Call,
    tokens: Value,
    segments: Value | None,
    words: Value,
    places: Value,
    kinds: Value | None,
    scale: Value,
    shift: Value,
    mask: Value | None = None,
    positions: Value | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Value, ...]:
    """Embeddings of words, places and segments, normalized; and how many tokens are no padding."""
    b = call.b
    batch, length = tokens.shape
    if positions is None:
        positions = b.iota(length=length)
    total = _sum(
        call,
        b.gather(words, tokens, axis=0),
        b.gather(places, positions, axis=0),
        None if kinds is None or segments is None else b.gather(kinds, segments, axis=0),
    )
    y, *_ = layer_norm(call, total, scale, shift, -1, epsilon)
    if mask is None:
        counts = b.full(value=0, shape=(batch,), dtype=types.i32)
    else:
        counts = b.sum(call.cast(mask, types.i32), axes=(1,))
    return y, counts, total


# ---- products --------------------------------------------------------------------------------


@microsoft("GemmFastGelu")
def _gemm_gelu(call: Call, x: Value, w: Value, bias: Value | None = None) -> Value:
    return call.b.gelu_tanh(_sum(call, matmul(call, x, w), bias))


@microsoft("FusedGemm")
def _fused_gemm(
    call: Call,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.01,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Value:
    b = call.b
    x = call.transpose(x, (1, 0)) if transA else x
    y = b.matmul(x, w, transpose_w=bool(transB))
    y = y if alpha == 1.0 else b.mul(y, call.number(alpha, y.dtype))
    if bias is not None:
        scaled = bias if beta == 1.0 else b.mul(bias, call.number(beta, bias.dtype))
        y = b.add(y, scaled)
    return activated(call, y, activation, (activation_alpha,))


def activated(call: Call, x: Value, name: str, numbers: Sequence[float]) -> Value:
    """What a fused operator makes of its result."""
    b = call.b
    if name in ("Relu", "Sigmoid", "Tanh"):
        return getattr(b, name.lower())(x)
    if name == "LeakyRelu":
        slope = b.mul(x, call.number(numbers[0], x.dtype))
        return b.where(b.lt(x, call.number(0, x.dtype)), slope, x)
    if name == "Clip":
        low, high = (call.number(v, x.dtype) for v in numbers)
        return b.minimum(b.maximum(x, low), high)
    if name:
        raise Declined(f"the activation {name!r}")
    return x
