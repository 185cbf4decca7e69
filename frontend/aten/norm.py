"""Normalizations: kept as one op over the last axis, written out elsewhere."""

from typing import Any

import torch

from ...ir.dim import Dim, product
from ...ir.graph import Value
from ..dtypes import TO_TORCH, from_torch
from ..importer import Call, handles
from ..nn.norm import batch_norm, group_norm


def _rows(call: Call, x: Value, normalized: tuple[Dim, ...]) -> Value:
    """X with its normalized axes as one last axis."""
    if len(normalized) == 1:
        return x
    kept = x.shape[: x.type.rank - len(normalized)]
    return call.reshape(x, (*kept, product(normalized)))


def _flat(call: Call, weight: Value | None, width: Dim, fill: float, like: Value) -> Value:
    if weight is None:
        return call.b.full(value=fill, shape=(width,), dtype=like.dtype)
    return call.value(call.reshape(weight, (width,)), like.dtype)


@handles("layer_norm.default")
def _layer_norm(
    call: Call,
    x: Value,
    normalized_shape: tuple[Dim, ...],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    rows = _rows(call, x, normalized_shape)
    width = rows.shape[-1]
    result = call.b.layer_norm(
        rows, _flat(call, weight, width, 1.0, x), _flat(call, bias, width, 0.0, x), eps=eps
    )
    return call.reshape(result, x.shape)


class _Unused:
    """The result slot of a statistic that only training reads; indexing into it is an error."""


@handles("native_layer_norm.default")
def _native_layer_norm(
    call: Call,
    x: Value,
    normalized_shape: tuple[Dim, ...],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Any, ...]:
    rows = _rows(call, x, normalized_shape)
    result = _layer_norm(call, x, normalized_shape, weight, bias, eps)
    if not call.reads(1) and not call.reads(2):
        return result, _Unused(), _Unused()
    shape = call.importer.table.shape(call.expected[1].shape)
    return result, *(call.reshape(v, shape) for v in _statistics(call, rows, eps))


def _statistics(call: Call, rows: Value, eps: float) -> tuple[Value, Value]:
    """The mean of each row, and one over its standard deviation. rows: [..., N] -> [..., 1]"""
    b = call.b
    mean = b.mean(rows, axes=(-1,), keepdims=True)
    centered = b.sub(rows, mean)
    variance = b.mean(b.mul(centered, centered), axes=(-1,), keepdims=True)
    return mean, b.rsqrt(b.add(variance, call.parameter(eps)))


@handles("rms_norm.default")
def _rms_norm(
    call: Call,
    x: Value,
    normalized_shape: tuple[Dim, ...],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value:
    # without eps torch takes the machine epsilon of the input's dtype
    eps = torch.finfo(TO_TORCH[x.dtype]).eps if eps is None else eps
    rows = _rows(call, x, normalized_shape)
    result = call.b.rms_norm(rows, _flat(call, weight, rows.shape[-1], 1.0, x), eps=eps)
    return call.reshape(result, x.shape)


@handles("_native_batch_norm_legit_no_training.default")
def _batch_norm(
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    result = batch_norm(call.b, x, weight, bias, running_mean, running_var, eps)
    b, dtype = call.b, from_torch(call.expected[1].dtype)
    # no statistics of the batch: torch gives two empty tensors on a CPU, elsewhere those used
    if call.expected[1].numel() == 0:
        nothing = b.full(value=0.0, shape=(0,), dtype=dtype)
        return result, nothing, nothing
    scale = b.rsqrt(b.add(call.value(running_var, dtype), call.value(eps, dtype)))
    return result, call.value(running_mean, dtype), scale


@handles("group_norm.default")
def _group_norm(
    call: Call,
    x: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    return group_norm(call.b, x, num_groups, weight, bias, eps)


@handles("native_group_norm.default")
def _native_group_norm(
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: Dim,
    channels: Dim,
    space: Dim,
    group: int,
    eps: float,
) -> tuple[Any, ...]:
    result = group_norm(call.b, x, group, weight, bias, eps)
    if not call.reads(1) and not call.reads(2):
        return result, _Unused(), _Unused()
    rows = call.reshape(x, (batch, group, channels * space // group))
    return result, *(call.reshape(v, (batch, group)) for v in _statistics(call, rows, eps))
