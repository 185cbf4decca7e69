"""One table of what each op is called with, and the torch expression it must agree with.

Sizes include 1, odd ones, and 0 where an op allows it.
"""

from .sample import Sample
from .samples_control import calls, conds, loops, whiles
from .samples_elements import elementwise, gathers, sources, views
from .samples_rows import attentions, composites, contractions, paging, reductions, sampling
from .samples_scans import scans
from .samples_scatter import scatters
from .samples_sort import sorts

SAMPLES: tuple[Sample, ...] = tuple(
    sample
    for family in (
        elementwise, sources, views, gathers, reductions, contractions, composites, attentions,
        paging, sampling, scans, scatters, sorts, conds, whiles, loops, calls,
    )
    for sample in family()
)  # fmt: skip
