"""Recurrences that stand in the place of attention, and gates beside them."""

import math
from collections.abc import Sequence

from ....ir.graph import Value
from ....ir.types import f32
from ...declined import Declined
from ...nn.conv import conv
from ...nn.pad import part
from ...nn.scan import scanned
from ..operators import Call, onnx_op


@onnx_op("LinearAttention", since=27)
def _linear_attention(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    state: Value | None = None,
    decay: Value | None = None,
    beta: Value | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Value, Value]:
    """S' = exp(g) S + beta k (v - exp(g) S^T k); o = scale q^T S', one step after the other.

    Without the delta rule beta is 1 and nothing is taken from v; without a gate g is 0. In float32.
    """
    b, groups = call.b, kv_num_heads
    batch, time, _ = q.shape
    is_gated, is_delta = "gated" in update_rule, "delta" in update_rule
    if update_rule not in ("linear", "gated", "delta", "gated_delta"):
        raise Declined(f"update_rule {update_rule!r}")
    if (decay is not None) != is_gated or (beta is not None) != is_delta:
        raise Declined(f"update_rule {update_rule!r} with what it does not go with")

    def by_time(x: Value, count: int, rows: int) -> Value:
        """[B, T, count * rows * D] -> [T, B, count, rows, D]."""
        x = call.cast(call.transpose(x, (1, 0, 2)), f32)
        return call.reshape(x, (time, batch, count, rows, x.shape[2] // (count * rows)))

    shared = q_num_heads // groups
    slices = [by_time(q, groups, shared), by_time(k, groups, 1), by_time(v, groups, 1)]
    keys, values = slices[1].shape[-1], slices[2].shape[-1]
    if decay is not None:
        rows = by_time(decay, groups, 1)
        slices.append(call.reshape(rows, (time, batch, groups, rows.shape[-1], 1)))
    if beta is not None:
        slices.append(by_time(beta, groups if beta.shape[-1] == groups else 1, 1))
    factor = scale or 1 / math.sqrt(call.static(keys, "the head size"))

    def step(b, s, q, k, v, *others):
        if is_gated:
            s = b.mul(s, b.exp(others[0]))
        if is_delta:
            v = b.mul(b.sub(v, b.matmul(k, s)), others[-1])
        s = b.add(s, b.mul(b.transpose(k, perm=(0, 1, 3, 2)), v))
        return s, b.mul(b.matmul(q, s), b.constant(factor, f32))

    shape = (batch, groups, keys, values)
    first = b.full(value=0.0, shape=shape, dtype=f32) if state is None else call.cast(state, f32)
    last, y = scanned(b, step, [first], slices)
    y = call.transpose(call.reshape(y, (time, batch, q_num_heads * values)), (1, 0, 2))
    return call.cast(y, q.dtype), call.cast(last, q.dtype if state is None else state.dtype)


@onnx_op("CausalConvWithState", since=27)
def _causal_conv(
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    state: Value | None = None,
    *,
    activation: str = "none",
) -> tuple[Value, Value]:
    """A convolution of each channel by itself, over what came before it and x: [B, C, L]."""
    b, reach = call.b, call.static(weight.shape[2], "the kernel size") - 1
    channels = call.static(x.shape[1], "the number of channels")
    if activation not in ("none", "silu", "swish"):
        raise Declined(f"activation {activation!r}")
    if state is None:
        whole = b.pad(x, axis=2, before=reach, after=0, value=0)
    else:
        whole = b.concat(state, x, axis=2)
    one: Sequence[int] = (1,)
    y = conv(b, whole, weight, bias, strides=one, padding=((0, 0),), dilation=one, groups=channels)
    size = whole.shape[2]
    return (y if activation == "none" else b.silu(y)), part(b, whole, 2, size - reach, size)


@onnx_op("SwiGLU", since=28)
def _swiglu(call: Call, gate: Value, x: Value, *, alpha: float = 1.0) -> Value:
    b = call.b
    if alpha == 1.0:
        return b.mul(b.silu(gate), x)
    scaled = b.mul(gate, call.number(alpha, gate.dtype))
    return b.mul(b.mul(gate, b.sigmoid(scaled)), x)
