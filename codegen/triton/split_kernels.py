"""Loop kernels made from a loop kernel: several launches in place of one.

Parameters past the kernel's own are workspaces: buffers that live between the launches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir.dim import Dim, substitute, symbol
from ...ir.types import DType, TensorType, i32
from ..elements import index_facts, substituted, substituted_store, walk
from ..loops import (
    Apply,
    Axis,
    Const,
    Contract,
    Element,
    Grouping,
    Index,
    Load,
    LoopKernel,
    Param,
    Part,
    Pointwise,
    Reduce,
    Reduction,
    Ref,
    Select,
    Store,
    accumulator_of,
    row_major,
    widened,
)
from ..templates.contract_schedules import DotSchedule, GemvSchedule
from ..templates.pointwise import PointwiseSchedule
from ..templates.reduce import (
    ReduceSchedule,
    is_strided,
    piece_of,
    reduce_schedule,
)
from ..templates.template import Schedule


@dataclass(frozen=True)
class Piece:
    """One launch: its kernel and schedule, and the workspaces at the end of its parameters."""

    kernel: LoopKernel
    schedule: Schedule
    workspaces: tuple[str, ...] = ()
    suffix: str = ""


def handed_on(
    kernel: LoopKernel,
    first: tuple[Part, Schedule],
    second: tuple[Part, Schedule],
    spaces: Mapping[str, TensorType],
    suffixes: tuple[str, str],
    own: tuple[str, ...] = (),
) -> tuple[Piece, Piece]:
    """Launches of `first`, which writes the workspaces `spaces`, and of `second`, which reads them.

    They are the parameters after the kernel's, of which the last, `own`, are workspaces already.
    """

    def piece(part: Part, schedule: Schedule, is_written: bool, suffix: str) -> Piece:
        params = (Param(type, is_written) for type in spaces.values())
        made = replace(kernel, params=(*kernel.params, *params), parts=(part,))
        return Piece(made, schedule, (*own, *spaces), suffix)

    return piece(*first, True, suffixes[0]), piece(*second, False, suffixes[1])


def materialize(kernel: LoopKernel, schedule: Schedule) -> tuple[Piece, Piece]:
    """A launch that computes x and the row statistics, and the contraction that reads them."""
    (part,) = kernel.parts
    assert isinstance(part, Contract)
    rows = (*part.batch, part.m) if part.m.extent != 1 else part.batch
    shape = tuple(a.extent for a in rows)
    row, at = row_major(rows), symbol(part.k.name)
    own = len(kernel.params)
    spaces = {"x": TensorType((*shape, part.k.extent), part.x_dtype)}
    spaces |= {s.name: TensorType(shape, s.dtype) for s in part.stats}
    x_store = Store(own, row * part.k.extent + at, part.x)
    row_stores = tuple(
        Store(own + 1 + i, row, Ref(s.name, s.dtype)) for i, s in enumerate(part.stats)
    )
    before: tuple[Part, Schedule]
    phases = (*part.phases, part.stats) if part.stats else part.phases
    if phases:
        first = Reduce(rows, part.k, phases, row_stores, (x_store,))
        before = first, reduce_schedule(first, index_facts(kernel))
    else:
        before = Pointwise((*rows, part.k), (x_store,)), PointwiseSchedule()
    refs: dict[str, Element] = {
        s.name: Load(own + 1 + i, row, s.dtype) for i, s in enumerate(part.stats)
    }
    second = replace(
        part,
        x=Load(own, row * part.k.extent + at, widened(part.x_dtype)),
        stats=(),
        phases=(),
        stores=tuple(substituted_store(s, refs=refs) for s in part.stores),
    )
    return handed_on(kernel, before, (second, schedule), spaces, ("_x", ""))


def split_k(piece: Piece, splits: int) -> tuple[Piece, Piece]:
    """Partial products over equal pieces of k, and a launch that adds them in order."""
    kernel = piece.kernel
    (part,) = kernel.parts
    assert isinstance(part, Contract)
    assert not part.stats, "materialize the statistics first"
    assert not part.phases, "materialize the statistics first"
    assert isinstance(part.k.extent, int)
    assert part.k.extent % splits == 0, "pieces of k must be equal"
    size = part.k.extent // splits
    split = Axis("_split", splits)
    to = {part.k.name: symbol("_split") * size + symbol(part.k.name)}
    dtype = accumulator_of(part.x_dtype)
    outer = (split, *part.batch)
    # the innermost axis of a partial result is n; axes of extent 1 have no symbol
    space = tuple(a for a in (*outer, part.m, part.n) if a.extent != 1)
    shape = tuple(a.extent for a in space)
    own = len(kernel.params)
    spaces = {f"partial{i}": TensorType(shape, dtype) for i in range(len(part.ws))}
    first = replace(
        part,
        batch=outer,
        k=Axis(part.k.name, size),
        x=substituted(part.x, to),
        ws=tuple(substituted(w, to) for w in part.ws),
        stores=tuple(
            Store(own + i, row_major(space), Ref(f"acc{i}", dtype)) for i in range(len(part.ws))
        ),
    )
    refs: dict[str, Element] = {}
    for i in range(len(part.ws)):
        loads = [
            Load(own + i, substitute(row_major(space), {"_split": s}), dtype) for s in range(splits)
        ]
        total: Element = loads[0]
        for load in loads[1:]:
            total = Apply("add", (total, load), dtype)
        refs[f"acc{i}"] = total
    points = tuple(a for a in (*part.batch, part.m, part.n) if a.extent != 1)
    second = Pointwise(points, tuple(substituted_store(s, refs=refs) for s in part.stores))
    sums = second, PointwiseSchedule(256, 4)
    return handed_on(
        kernel, (first, piece.schedule), sums, spaces, ("_k", "_sum"), piece.workspaces
    )


def contract_pieces(kernel: LoopKernel, schedule: GemvSchedule | DotSchedule) -> Sequence[Piece]:
    """Of a contraction: one, or one before it that computes x, one after it that adds pieces of k.

    Statistics that x needs are made by the launch before.
    """
    (part,) = kernel.parts
    pieces = [Piece(kernel, schedule)]
    is_tiled = isinstance(schedule, DotSchedule)
    if part.phases or (is_tiled and schedule.materialize):
        pieces = [*materialize(kernel, schedule)]
    if is_tiled and part.group is not None:
        pieces += group_rows(pieces.pop())
    if is_tiled and schedule.split_k > 1:
        pieces += split_k(pieces.pop(), schedule.split_k)
    return pieces


@dataclass(frozen=True)
class GroupRows(Part):
    """Rows put in order of their groups, as in Grouping: `order` and `starts` are written."""

    m: Axis
    group: Grouping


@dataclass(frozen=True)
class GroupRowsSchedule(Schedule):
    """A program a group, which goes through the index `block` rows at a time."""

    block: int = 1024
    num_warps: int = 4


def group_rows(piece: Piece) -> tuple[Piece, Piece]:
    """A launch that puts the rows in order of their groups, and the product over that order."""
    kernel = piece.kernel
    (part,) = kernel.parts
    own = len(kernel.params)
    spaces = {
        "order": TensorType((part.m.extent,), i32),
        "starts": TensorType((part.group.axis.extent + 1,), i32),
    }
    group = replace(part.group, order=own, starts=own + 1)
    first = GroupRows(part.m, group), GroupRowsSchedule()
    second = replace(part, group=group), piece.schedule
    return handed_on(kernel, first, second, spaces, ("_rows", ""), piece.workspaces)


def split_rows(kernel: LoopKernel, schedule: ReduceSchedule) -> list[Piece]:
    """Reductions of pieces of each row, and a launch that joins the pieces in order, a phase.

    Stores along the axis are made by a launch at the end.
    """
    (part,) = kernel.parts
    assert isinstance(part, Reduce)
    extent, size = part.axis.extent, piece_of(part.axis.extent, schedule.splits)
    split = Axis("_split", schedule.splits)
    # neighbouring rows stay neighbours
    cut = (split, *part.rows) if is_strided(part) else (*part.rows, split)
    at = symbol("_split") * size + symbol(part.axis.name)
    fits = isinstance(extent, int) and size * schedule.splits == extent
    spaces: dict[str, TensorType] = {}
    launches: list[tuple[Part, Schedule]] = []

    def keep(value: Element, rows: Sequence[Axis], stores: list[Store]) -> Load:
        """Store a value a row; -> how later launches load it."""
        number, place = len(kernel.params) + len(spaces), row_major(rows)
        spaces[f"piece{len(spaces)}"] = TensorType(tuple(a.extent for a in rows), value.dtype)
        stores.append(Store(number, place, value))
        return Load(number, place, value.dtype)

    known: dict[str, Element] = {}  # results of the phases before
    for number, phase in enumerate(part.phases):
        reductions: list[Reduction] = []
        joins: list[Reduction] = []
        stores: list[Store] = []
        results: dict[str, Element] = {}  # in the join
        for r in phase:
            value = substituted(r.value, {part.axis.name: at}, known)
            if not fits:
                nothing = Const(r.combine.identity_of(value.dtype), value.dtype)
                value = Select(at, extent, value, nothing, value.dtype)
            reductions.append(replace(r, value=value))
            loaded = keep(Ref(r.name, r.dtype), cut, stores)
            if not r.combine.picks_index:
                joins.append(replace(r, value=loaded))
                results[r.name] = Ref(r.name, r.dtype)
                continue
            # which piece wins, by its best value; then where the best lies in that piece
            best = Reduction(f"{r.name}_best", replace(r.combine, picks_index=False), value)
            reductions.append(best)
            winner = Ref(f"{r.name}_piece", r.dtype)
            of_best = keep(Ref(best.name, best.dtype), cut, stores)
            joins.append(Reduction(winner.name, r.combine, of_best))
            piece = f"_{r.name}"
            inside = replace(
                loaded,
                offset=substitute(loaded.offset, {"_split": symbol(piece)}),
                indirect=((piece, winner),),
            )
            start = Apply("mul", (winner, _number(size, r.dtype)), r.dtype)
            results[r.name] = Apply("add", (start, inside), r.dtype)
        pieces = Reduce(cut, Axis(part.axis.name, size), (tuple(reductions),), tuple(stores), ())
        launches.append((pieces, replace(schedule, splits=1)))
        is_last, ends = number == len(part.phases) - 1, []
        if is_last:
            refs = known | results
            ends = [substituted_store(s, refs=refs) for s in part.row_stores]
        if part.stores or not is_last:
            known |= {name: keep(value, part.rows, ends) for name, value in results.items()}
        joined = Reduce(part.rows, split, (tuple(joins),), tuple(ends), ())
        launches.append((joined, reduce_schedule(joined, index_facts(kernel))))
    labels = ["_split", "_join"]
    if part.stores:
        along = tuple(substituted_store(s, refs=known) for s in part.stores)
        launches.append((Pointwise((*part.rows, part.axis), along), PointwiseSchedule()))
        labels = [""]
    before = (f"_m{i}" for i in range(len(launches) - len(labels)))
    return [
        Piece(_given(kernel, own, spaces), how, tuple(spaces), suffix)
        for (own, how), suffix in zip(launches, (*before, *labels), strict=True)
    ]


def _given(kernel: LoopKernel, part: Part, spaces: Mapping[str, TensorType]) -> LoopKernel:
    """The kernel with `part` alone, and workspaces behind its parameters."""
    written = {store.param for store in walk(part) if isinstance(store, Store)}
    first = len(kernel.params)
    params = (Param(type, first + i in written) for i, type in enumerate(spaces.values()))
    return replace(kernel, params=(*kernel.params, *params), parts=(part,))


def _number(dim: Dim, dtype: DType) -> Element:
    return Const(dim, dtype) if isinstance(dim, int) else Index(dim, dtype)
