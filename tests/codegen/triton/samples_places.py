"""Kernels over the places of an axis: scans, scatters and sorts, with what goes around them."""

import numpy as np

from tilewright.ir.builder import Builder
from tilewright.ir.types import bool_, f32, i64

from .harness import Case
from .samples import make


def scan(name="cumsum", shape=(3, 13), axis=1, dtype=f32) -> Case:
    """What is scanned is computed in the kernel, and so is what follows."""
    b = Builder()
    x = b.input("x", shape, dtype)
    return make(b, [b.mul(getattr(b, name)(b.add(x, x), axis=axis), x)], {})


def scatter(combine="add", shape=(3, 5, 4), index=(7,), axis=1, dtype=f32) -> Case:
    """Rows put at one of few places, computed in the kernel, with what follows."""
    b = Builder()
    x, where = b.input("x", shape, dtype), b.input("where", index, i64)
    given = b.input("given", (*shape[:axis], *index, *shape[axis + 1 :]), dtype)
    put = b.scatter(x, where, b.add(given, given), axis=axis, combine=combine)
    return make(b, [b.mul(put, x)], {})


def scatter_elements(combine="add", shape=(3, 5, 4), index=(2, 7, 4), axis=1, dtype=f32) -> Case:
    """One place each, along the axis of lines that are not all there."""
    b = Builder()
    x, where, given = (
        b.input(n, s, d)
        for n, s, d in zip(("x", "where", "given"), (shape, index, index), (dtype, i64, dtype))
    )
    return make(b, [b.scatter_elements(x, where, given, axis=axis, combine=combine)], {})


def sort(shape=(3, 21), axis=1, descending=False, keep=None, dtype=f32) -> Case:
    """What is put in order is computed in the kernel, and so is what follows; many are equal."""
    b = Builder()
    x = b.input("x", shape, dtype)
    y = b.add(x, x) if dtype != bool_ else b.not_(x)
    if keep is None:
        values, places = b.sort(y, axis=axis, descending=descending)
    else:
        values, places = b.topk(y, k=keep, axis=axis, largest=descending)
    data = np.random.default_rng(1).integers(0, 6, shape) / 2
    return make(b, [b.neg(values) if dtype != bool_ else values, places], {}, {"x": data})
