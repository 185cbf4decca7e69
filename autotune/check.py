"""Whether a candidate computes what it should: what the reference and the default schedule do."""

from collections.abc import Sequence

import numpy as np

from ..codegen.elements import walk
from ..codegen.loops import Axis, Contract, Load, LoopKernel, Part
from ..codegen.templates import template_with
from ..codegen.templates.attention import Attention
from ..codegen.templates.scatter import Scatter
from ..ir.dim import evaluate
from ..ir.types import DType, f64
from .bucket_sizes import Sizes
from .data import Data
from .reference import Places, run_kernel, widened

POINTS = 1 << 21  # of a kernel that the reference computes
UNTOUCHED = 1.5e300  # what no kernel leaves
POISON = 77
SLACK = 2.0  # times the default schedule's error: sums in another order err as much
ROUNDINGS = 8  # of the result's dtype, or of float32 where sums are made, that are no fault


def sampled(kernel: LoopKernel, sizes: Sizes, rng: np.random.Generator) -> Places | None:
    """Which places the reference computes, so few that it is quick; both ends of axes are in.

    None where even so there are too many.
    """
    places: dict[str, np.ndarray] = {}
    for part in kernel.parts:
        free, whole = _axes(part)
        points = int(
            np.prod([max(evaluate(axis.extent, sizes), 1) for axis in whole], dtype=object)
        )
        for number, axis in enumerate(free):
            extent, left = evaluate(axis.extent, sizes), max(POINTS / points, 1)
            each = max(int(left ** (1 / (len(free) - number))), 2)
            if extent > each:
                inner = rng.choice(extent, each - 2, replace=False)
                places[axis.name] = np.unique(np.append(inner, [0, extent - 1]))
            points *= min(max(extent, 1), each)
        if points > 4 * POINTS:
            return None
    return places


def _axes(part: Part) -> tuple[Sequence[Axis], Sequence[Axis]]:
    """Axes along which the results are independent, and the others."""
    if isinstance(part, Contract):
        return (*part.batch, part.m, part.n), (part.k,)
    every = [item for item in walk(part) if isinstance(item, Axis)]
    free = () if isinstance(part, Scatter) else getattr(part, "axes", getattr(part, "rows", ()))
    free = free if isinstance(free, tuple) else ()
    return free, [axis for axis in every if axis not in free]


def _work(part: Part, sizes: Sizes) -> int:
    return evaluate(template_with(part).operations(part), sizes)


def is_read(kernel: LoopKernel, number: int) -> bool:
    """Whether the kernel reads a parameter."""
    if not kernel.params[number].is_written:
        return True
    return any(isinstance(i, Load) and i.param == number for p in kernel.parts for i in walk(p))


def poison(kernel: LoopKernel, data: Data) -> None:
    """Fill what is only written with numbers that a kernel would hardly leave."""
    for number, array in enumerate(data.stored):
        if number != kernel.records and not is_read(kernel, number):
            array[...] = POISON if array.dtype != bool else True


def expected(
    kernel: LoopKernel, data: Data, sizes: Sizes, rng: np.random.Generator
) -> dict[int, np.ndarray] | None:
    """What the written parameters should hold, flat and wide; UNTOUCHED where nobody says.

    None where the reference does not know the kernel, or would take too long.
    """
    only = sampled(kernel, sizes, rng)
    if any(_work(part, sizes) > POINTS << 8 for part in kernel.parts if not _axes(part)[1]):
        return None
    paged = [p for p in kernel.parts if isinstance(p, Attention) and p.pages is not None]
    if only is None or any(p.heads or p.seen or p.bias for p in paged):
        return None
    written = [n for n, p in enumerate(kernel.params) if p.is_written and n != kernel.records]
    buffers = list(data.plain)
    for number in written:
        start = widened(data.plain[number]).copy()
        # integers have no number apart: those that no reference computes are compared as they began
        if not is_read(kernel, number) and start.dtype.kind == "f":
            start[...] = UNTOUCHED
        buffers[number] = start
    if kernel.records is not None:
        buffers[kernel.records] = data.plain[kernel.records].copy()
    with np.errstate(all="ignore"):
        run_kernel(kernel, buffers, sizes, only)
    return {number: buffers[number] for number in written}


def why_wrong(
    kernel: LoopKernel,
    found: Sequence[np.ndarray],
    default: Sequence[np.ndarray] | None,
    reference: dict[int, np.ndarray] | None,
) -> str | None:
    """What is wrong with the results `found` of all written parameters; None where they are right.

    They are flat, and held against those of the default schedule at every element, where they are
    not its own, and against the reference where that computed. A float may err by ROUNDINGS units
    of its dtype of the largest number, and by SLACK times what the default errs: sums in another
    order differ by as much. Integers, and what is not finite, are the same as by default.
    """
    written = [n for n, p in enumerate(kernel.params) if p.is_written and n != kernel.records]
    for number, values, usual in zip(written, found, default or found):
        if not kernel.params[number].type.dtype.is_float:
            wrong = int((values != usual).sum())
            if wrong:
                return f"{wrong} of {values.size} integers of parameter {number} differ"
            continue
        wide, base = widened(values), widened(usual)
        finite = np.isfinite(base)
        if not np.array_equal(np.isfinite(wide), finite):
            return f"parameter {number} is not finite where it is by default, or the other way"
        allowed = ROUNDINGS * unit(kernel.params[number].type.dtype) * _largest(base[finite])
        if reference is not None:
            right = reference[number]
            known = finite & (right != UNTOUCHED) & np.isfinite(right)
            if default is not None:
                allowed += SLACK * _largest(base[known] - right[known])
            off = _largest(wide[known] - right[known])
            if off > allowed:
                return f"parameter {number}: off the reference by {off:.3g}, allowed {allowed:.3g}"
        off = _largest(wide[finite] - base[finite])
        if off > 2 * allowed:
            return f"parameter {number}: off the default by {off:.3g}, allowed {2 * allowed:.3g}"
    return None


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0))


def unit(dtype: DType) -> float:
    """The rounding of a result: of its dtype, or of the float32 that its sums are made in."""
    narrow = {"bf16": 2.0**-8, "f16": 2.0**-11, "f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3}
    return 2.0**-52 if dtype == f64 else narrow.get(dtype.name, 2.0**-20)
