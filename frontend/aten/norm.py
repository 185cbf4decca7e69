"""Normalizations: kept as one op over the last axis, written out elsewhere."""

from collections.abc import Iterator
from typing import Any

import torch

from ...ir.dim import Dim
from ...ir.graph import Value
from ..dtypes import TO_TORCH, from_torch
from ..importer import Call, Declined, handles
from ..nn.norm import batch_norm, group_norm, layer_norm, rms_norm, row_statistics


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
    first = x.type.rank - len(normalized_shape)
    return layer_norm(call.b, x, first, weight, bias, eps)


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
    result = _layer_norm(call, x, normalized_shape, weight, bias, eps)
    return result, *_statistics(call, x, x.type.rank - len(normalized_shape), eps)


def _statistics(call: Call, x: Value, first: int, eps: float) -> Iterator[Any]:
    """What follows a result: the means and inverse deviations of its rows, where they are read."""
    if not call.reads(1) and not call.reads(2):
        return iter((_Unused(), _Unused()))
    kind = call.expected[1]
    shape, dtype = call.importer.table.shape(kind.shape), from_torch(kind.dtype)
    found = row_statistics(call.b, x, first, eps)
    return (call.reshape(call.value(v, dtype), shape) for v in found)


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
    return rms_norm(call.b, x, x.type.rank - len(normalized_shape), weight, eps)


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


@handles("batch_norm.default")
def _any_batch_norm(
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Value:
    if training or running_mean is None or running_var is None:
        raise Declined("the statistics of a batch, which training reads")
    return batch_norm(call.b, x, weight, bias, running_mean, running_var, eps)


@handles("instance_norm.default")
def _instance_norm(
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Value:
    if not use_input_stats:
        return batch_norm(call.b, x, weight, bias, running_mean, running_var, eps)
    groups = call.static(x.shape[1], "the number of channels")
    return group_norm(call.b, x, groups, weight, bias, eps)


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
    rows = call.reshape(x, (batch, group, channels * space // group))
    return result, *_statistics(call, rows, 2, eps)
