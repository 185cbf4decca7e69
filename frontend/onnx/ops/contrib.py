"""Operators of com.microsoft that exporters and optimizers of onnxruntime write: floats."""

from functools import partial, reduce

from ....ir import types
from ....ir.graph import Value
from ...declined import Declined
from ...nn.norm import layer_norm, rms_norm, row_statistics
from ..operators import MICROSOFT, Call, onnx_op
from .contract import gemm, matmul
from .elementwise import formula

microsoft = partial(onnx_op, domain=MICROSOFT)


def _sum(call: Call, *values: Value | None) -> Value:
    """The sum of those that are there."""
    return reduce(call.b.add, [v for v in values if v is not None])


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
    b, last = call.b, total.type.rank - 1
    statistics = row_statistics(b, total, last, epsilon)
    return layer_norm(b, total, last, scale, shift, epsilon), *statistics, total


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
    x = call.cast(total, scale.dtype)
    return rms_norm(call.b, x, x.type.rank - 1, scale, epsilon), None, None, total


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
    y = layer_norm(b, total, total.type.rank - 1, scale, shift, epsilon)
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
    transA: bool = False,
    transB: bool = False,
) -> Value:
    y = gemm(call, x, w, bias, alpha=alpha, beta=beta, transA=transA, transB=transB)
    if activation in ("Relu", "Sigmoid", "Tanh"):
        return getattr(call.b, activation.lower())(y)
    if activation == "LeakyRelu":
        return formula("LeakyRelu", call, y, alpha=activation_alpha)
    if activation:
        raise Declined(f"the activation {activation!r}")
    return y
