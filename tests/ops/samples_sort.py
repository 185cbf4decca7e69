"""Samples of sorts: every dtype, equal elements, rows of one and of nothing."""

from collections.abc import Iterator

import torch

from tilewright.ir.types import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8

from .sample import Operand, Sample, below

DTYPES = (f32, f64, bf16, f16, i64, i32, i16, i8, u8, bool_)


def coarse(rng, shape, dtype):
    """Few distinct numbers: many are equal."""
    return rng.integers(-4, 4, shape) / 2


def first(x, k, axis, largest):
    """The first k; torch's own top-k does not say which of equal elements comes first."""
    found = torch.sort(x, dim=axis, descending=largest, stable=True)
    return tuple(part.narrow(axis, 0, k) for part in found)


def sorts() -> Iterator[Sample]:
    for descending in (False, True):
        for dtype in DTYPES:
            make = coarse if dtype.is_float else below(7) if dtype == u8 else None
            shapes = [((3, 7), -1), ((5, 3, 2), 0)]
            if dtype in (f32, i64):
                shapes += [((2, 1), 1), ((1, 0), 1), ((0, 3), 1), ((1, 130), 1), ((2, 1100), 1)]
            for shape, axis in shapes:
                x = Operand(shape, dtype, make)
                attrs = {"axis": axis, "descending": descending}
                call = lambda x, a=axis, d=descending: first(x, x.shape[a], a, d)  # noqa: E731
                yield Sample("sort", (x,), call, attrs, exact=True)
                k = min(3, shape[axis])
                attrs = {"k": k, "axis": axis, "largest": descending}
                call = lambda x, k=k, a=axis, d=descending: first(x, k, a, d)  # noqa: E731
                yield Sample("topk", (x,), call, attrs, exact=True)
        call = lambda x, d=descending: first(x, 50, 1, d)  # noqa: E731
        attrs = {"axis": 1, "descending": descending}
        x = Operand((4, 50), f32, coarse)
        yield Sample("sort", (x,), call, attrs, special=True, exact=True)
        for k in (0, 5, 40):
            call = lambda x, k=k, d=descending: first(x, k, 1, d)  # noqa: E731
            attrs = {"k": k, "axis": 1, "largest": descending}
            yield Sample("topk", (x,), call, attrs, special=True, exact=True)
