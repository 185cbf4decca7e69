"""Scatters: updates are put at places of one axis, one after another, whoever works on them.

Updates of one place are combined in order of their index, so that a result is the same in every run
and for any number of threads and programs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ...ir.combine import Combine
from ...ir.dim import Dim, product
from ...ir.graph import Node, Value
from ...ir.indexing import delinearize
from ...ir.op import normalize_axis
from ...ir.ops.scatter import COMBINES
from ...ir.target import Target
from ...ir.types import DType
from ..elements import index_facts
from ..forward import stores_after
from ..inline import Inliner
from ..loops import Axis, Element, LoopKernel, Part, Ref, Store, widened
from .sort import SortSchedule, sort_schedules
from .template import (
    WARPS,
    Bucket,
    Schedule,
    SurroundedTemplate,
    declare_axes,
    power_of_2,
    powers_of_2,
    settled,
)

FEW = 32  # updates that every program goes through
RESULT = "scatter"  # the name under which stores find what has become of an element


@dataclass(frozen=True)
class Scatter(Part):
    """For every point of outer x target x inner: `start`, then the updates put there; the stores.

    The updates of a line (a point of outer x inner) are `value` at the places of `source`, in
    order; `index` says where on `target` each is put: it is inside, or there is a fault. `counts`
    are the extents of outer, then inner, over which there are updates. In the stores Ref(RESULT) is
    the result, in `dtype`: f32 for floats (f64 for f64); integers wrap in their own width.
    """

    outer: tuple[Axis, ...]
    target: Axis
    inner: tuple[Axis, ...]
    source: Axis
    counts: tuple[Dim, ...]
    start: Element
    index: Element
    value: Element
    combine: Combine
    dtype: DType
    stores: tuple[Store, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the result."""
        return (*self.outer, self.target, *self.inner)

    @property
    def updates(self) -> Dim:
        """How many there are."""
        return product((*self.counts, self.source.extent))

    @property
    def lines(self) -> tuple[Axis, ...]:
        """Outer, then inner, as long as there are updates along them."""
        axes = (*self.outer, *self.inner)
        return tuple(replace(a, extent=n) for a, n in zip(axes, self.counts, strict=True))


@dataclass(frozen=True)
class ScatterSchedule(Schedule):
    """`rows` places of the target a program, `width` lines within it.

    With `order` the updates are put in order of their places first, so that a program finds its
    own; without, it goes through all of them.
    """

    domain: ClassVar = {
        "rows": powers_of_2(1, 1024),
        "width": powers_of_2(1, 1024),
        "num_warps": WARPS,
    }

    rows: int
    width: int
    num_warps: int = 4
    order: SortSchedule | None = None


class ScatterTemplate(SurroundedTemplate):
    """One scatter, with what is computed before and after it element by element."""

    name = "scatter"
    kinds = frozenset(("scatter",))
    parts = (Scatter,)

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Scatter]:
        (node,) = [n for n in nodes if n.op.kind == "scatter"]
        x, where, updates = node.operands
        result = node.results[0]
        at = normalize_axis(node.attrs["axis"], x.type.rank)
        # an index of its own for each line
        is_rows = not where.type.rank == x.type.rank == updates.type.rank
        axes, index = declare_axes(inliner, x.shape)
        given = where.shape if is_rows else (where.shape[at],)
        rest = tuple(i for i in range(x.type.rank) if i != at)
        # an axis of one line is none that is gone through: where it has no update, no line has
        few = () if is_rows else (where.shape[i] for i in rest if x.shape[i] == 1)
        source = Axis("_s", product((*given, *few)))
        place = delinearize(inliner.axis("_s", source.extent), given, inliner.facts)
        update = (*index[:at], *place, *index[at + 1 :])
        if is_rows:
            counts = tuple(x.shape[i] for i in rest)
            chosen = inliner.element(where, place)
        else:
            counts = tuple(where.shape[i] for i in rest)
            chosen = inliner.element(where, update)
        checked = inliner.checked(chosen, node, where, x.shape[at])
        start, value = inliner.element(x, index), inliner.element(updates, update)
        dtype = widened(x.dtype)
        stores = stores_after(inliner, {result: Ref(RESULT, dtype)}, index, outputs)
        return (
            Scatter(
                axes[:at],
                axes[at],
                axes[at + 1 :],
                source,
                counts,
                start,
                checked,
                value,
                COMBINES[node.attrs["combine"]],
                dtype,
                stores,
            ),
        )

    def points(self, part: Scatter) -> Dim:
        return part.updates

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        (part,) = kernel.parts
        facts = index_facts(kernel, ())
        width = min(power_of_2(facts.hint(product(a.extent for a in part.inner))), 64)
        through = ScatterSchedule(256 // width, width)
        extent = part.source.extent
        table: list[Bucket] = [(0, FEW, through)]
        for lo, hi, order in sort_schedules(extent, facts):
            if hi is None or hi > FEW:
                table.append((max(lo, FEW + 1), hi, replace(through, order=order)))
        return settled(extent, table, facts)
