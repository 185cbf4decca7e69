"""One table of what each op is called with, and the torch expression it must agree with.

Sizes include 1, odd ones, and 0 where an op allows it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.ir.op import get_op

from .sample import Sample
from .samples_control import calls, conds, loops, whiles
from .samples_elements import elementwise, gathers, sources, views
from .samples_rows import (
    attentions,
    composites,
    contractions,
    grouped,
    paging,
    reductions,
    sampling,
)
from .samples_scans import scans
from .samples_scatter import scatters
from .samples_sort import sorts

# kinds of ops that take operands of any size
FREE = frozenset(("elementwise", "reduce", "scan", "contract"))


def units(samples: Sequence[Sample]) -> Iterator[Sample]:
    """The first sample of each op that allows it, with every size 1."""
    first = {s.op: s for s in reversed(samples) if get_op(s.op).kind in FREE}
    for sample in first.values():
        yield replace(
            sample, operands=tuple(replace(o, shape=(1,) * len(o.shape)) for o in sample.operands)
        )


_SIZED: tuple[Sample, ...] = tuple(
    sample
    for family in (
        elementwise, sources, views, gathers, reductions, contractions, grouped, composites,
        attentions, paging, sampling, scans, scatters, sorts, conds, whiles, loops, calls,
    )
    for sample in family()
)  # fmt: skip
SAMPLES = (*_SIZED, *(s for s in units(_SIZED) if s.id not in {one.id for one in _SIZED}))
