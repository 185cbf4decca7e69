"""Samples of scatters: every combine and dtype, places that are met often and never."""

from collections.abc import Iterator

import torch

from tilewright.ir.types import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8

from .sample import Operand, Sample, below, wide

COMBINES = ("replace", "add", "mul", "max", "min")
_REDUCES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def in_order(x, index, updates, axis, combine):
    """What torch makes of one update after another; halves in float32, rounded once."""
    out = wide(x).clone()
    for at, place in enumerate(index.reshape(-1).tolist()):
        row, update = out.select(axis, place), wide(updates).select(axis, at)
        if combine == "replace":
            row.copy_(update)
        elif combine == "add":
            row += update
        elif combine == "mul":
            row *= update
        else:
            row.copy_(getattr(torch, f"{combine}imum")(row, update))
    return out.to(x.dtype)


def rows(x, index, updates, axis, combine):
    shape = (*x.shape[:axis], index.numel(), *x.shape[axis + 1 :])
    return in_order(x, index, updates.reshape(shape), axis, combine)


def elements(x, index, updates, axis, combine):
    if combine == "replace":
        return x.scatter(axis, index.long(), updates)
    reduce = _REDUCES[combine]
    return wide(x).scatter_reduce(axis, index.long(), wide(updates), reduce).to(x.dtype)


def scatters() -> Iterator[Sample]:
    dtypes = (f32, f64, bf16, f16, i64, i32, i16, i8, u8, bool_)
    for combine in COMBINES:
        for dtype in dtypes:
            if dtype == bool_ and combine in ("add", "mul"):
                continue
            make = below(7) if dtype == u8 else None
            x, index = Operand((4, 5, 3), dtype, make), Operand((2, 4), i64, below(5))
            updates = Operand((4, 2, 4, 3), dtype, make)
            call = lambda x, i, u, c=combine: rows(x, i, u, 1, c)  # noqa: E731
            yield Sample("scatter", (x, index, updates), call, {"axis": 1, "combine": combine})
        for index, axis in (((9,), 0), ((0,), 0), ((1,), 1)):
            x = Operand((1, 6) if axis else (7, 2))
            updates = Operand((1, 1) if axis else (*index, 2))
            place = Operand(index, i32, below(x.shape[axis]))
            call = lambda x, i, u, a=axis, c=combine: rows(x, i, u, a, c)  # noqa: E731
            yield Sample("scatter", (x, place, updates), call, {"axis": axis, "combine": combine})
        for shape, index, axis in (
            ((5, 4), (9, 4), 0),
            ((5, 4), (3, 7), 1),
            ((3, 1, 6), (2, 1, 6), 2),
            ((2, 3), (2, 0), 1),
            ((1, 5), (0, 3), 1),
            ((5, 2, 1), (3, 2, 0), 0),
            ((5, 2, 3), (3, 2, 0), 0),
        ):
            for dtype in (f32, i64) if axis else (f32,):
                if combine == "replace":  # torch does not say which of equal places stays
                    place = Operand(index, i64, apart(axis))
                else:
                    place = Operand(index, i64, below(shape[axis]))
                operands = Operand(shape, dtype), place, Operand(index, dtype)
                if combine == "replace" and index[axis] > shape[axis]:
                    continue
                call = lambda x, i, u, a=axis, c=combine: elements(x, i, u, a, c)  # noqa: E731
                attrs = {"axis": axis, "combine": combine}
                yield Sample("scatter_elements", operands, call, attrs)
        operands = Operand((3, 8)), Operand((40,), i64, below(8)), Operand((3, 40))
        call = lambda x, i, u, c=combine: rows(x, i, u, 1, c)  # noqa: E731
        attrs = {"axis": 1, "combine": combine}
        yield Sample("scatter", operands, call, attrs, special=True)


def apart(axis):
    """Indices of which no two along the axis are equal."""

    def make(rng, shape, dtype):
        count = shape[axis]
        order = rng.random(shape).argsort(axis) if count else rng.random(shape)
        return order.astype(int)

    return make
