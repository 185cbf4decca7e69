"""Loop IR: what a kernel computes, in no language. Emitters print it as Triton or C++.

A kernel is a tuple of parts that run side by side (no part reads what another writes). Index
arithmetic is in dims (`ir/dim.py`) over axis names, graph symbols and the names of indirect
indices. Element expressions are trees of the classes below; equal sub-trees are equal objects, so
an emitter names each once. A bf16 or f16 element is widened to f32 by `Load` and narrowed by
`Store`: everything between is f32 (float64 stays float64).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..ir.combine import Combine
from ..ir.dim import Dim, Symbol, symbol
from ..ir.encoding import ROWS, Encoding
from ..ir.types import DType, TensorType, f32, f64, i16, i32, i64

# ---- elements ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Const:
    """A constant."""

    value: float | int | bool
    dtype: DType


@dataclass(frozen=True)
class Index:
    """An index expression (or a dim) as a value. `indirect` as in Load."""

    value: Dim
    dtype: DType
    indirect: tuple[tuple[str, "Element"], ...] = ()


@dataclass(frozen=True)
class Load:
    """Element `offset` of parameter `param`. `indirect` gives the symbols that are loaded values.

    dtype is the widened one: f32 for a bf16 buffer.
    """

    param: int
    offset: Dim
    dtype: DType
    indirect: tuple[tuple[str, "Element"], ...] = ()


@dataclass(frozen=True)
class Apply:
    """A function of ir/scalar.py FUNCTIONS over elements."""

    fn: str
    args: tuple["Element", ...]
    dtype: DType


@dataclass(frozen=True)
class Cast:
    """Conversion to `to`. To bf16 or f16 it rounds, and its value is an f32 again."""

    arg: "Element"
    to: DType

    @property
    def dtype(self) -> DType:
        """Of the value."""
        return widened(self.to)


@dataclass(frozen=True)
class Select:
    """`then` where lhs < rhs (index expressions), else `other`. Only the chosen side may load.

    `indirect`, as in Load, is of lhs and rhs.
    """

    lhs: Dim
    rhs: Dim
    then: "Element"
    other: "Element"
    dtype: DType
    indirect: tuple[tuple[str, "Element"], ...] = ()


@dataclass(frozen=True)
class Check:
    """`arg`, an integer, where it is fit for its use; elsewhere a fit one, and a record is left.

    An index is fit in [0, size); with `wraps`, size is added to it below 0 first; the fit one is 0.
    A divisor (size None) is fit where it is not 0; the fit one is 1. The record of check `number`
    is elements 2 * number (size + 1; 0 while there is no fault; 1 for a divisor) and the next (the
    index) of the kernel's parameter `records`.
    """

    arg: "Element"
    size: Dim | None
    wraps: bool
    number: int
    dtype: DType


@dataclass(frozen=True)
class Ref:
    """What a part computes, by name: a reduction, an accumulator (`acc0`), a scan, a scatter."""

    name: str
    dtype: DType


Element = Const | Index | Load | Apply | Cast | Select | Check | Ref


def widened(dtype: DType) -> DType:
    """The dtype in which elements stored as `dtype` are computed."""
    if dtype.is_packed:
        return i32
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def accumulator_of(dtype: DType, combine: Combine | None = None) -> DType:
    """What `combine` over elements of `dtype` runs in; None: the sum of a contraction's products.

    Floats in f32 (f64 in f64); narrow integers in i32, where they wrap the same. What only chooses
    between its operands, or their bits, stays in their dtype.
    """
    if combine is not None and combine.function in ("maximum", "minimum", "and", "or"):
        return widened(dtype)
    if dtype.is_float:
        return f64 if dtype == f64 else f32
    return i64 if dtype.bits == 64 else i32


def accumulated(name: str, dtype: DType, combine: Combine | None = None) -> Element:
    """The result `name` of accumulating elements of `dtype`: what reads it sees it wrapped."""
    ref = Ref(name, accumulator_of(dtype, combine))
    return ref if ref.dtype == widened(dtype) else Cast(ref, dtype)


def tile_dtype(x: DType, w: DType) -> DType | None:
    """What tiles of x are kept in where a CPU multiplies these: f32, or i16, whose products it adds
    in pairs. None where sums are not made in tiles.
    """
    if accumulator_of(x) == i32 and i16.holds(x) and i16.holds(w):
        return i16
    return f32 if accumulator_of(x) == f32 else None


def feed_dtype(x: DType, w: DType) -> DType:
    """What a matrix unit is given both operands in: the wider, or one that holds both."""
    wider = max(x, w, key=lambda dtype: dtype.bits)
    if x.is_integer and w.is_integer and not (wider.holds(x) and wider.holds(w)):
        return {8: i16, 16: i32}.get(wider.bits, wider)  # the others wrap the same
    return f32 if x != w and wider.is_float and wider.bits < 32 else wider


@dataclass(frozen=True)
class Store:
    """Write `value`, narrowed to the parameter's dtype, to element `offset` of `param`.

    With `guard`, only where the element `guard` (an integer) is 0 or more.
    """

    param: int
    offset: Dim
    value: Element
    indirect: tuple[tuple[str, Element], ...] = ()
    guard: Element | None = None


# ---- parts ---------------------------------------------------------------------------------

SUM = Combine("x + y", 0)
LARGEST = Combine("maximum(x, y)", "lowest")


class Part:
    """What a kernel computes, beside its other parts. A template brings a class of its own."""


@dataclass(frozen=True)
class Axis:
    """An index that runs over [0, extent). Outermost first; the last is the one of unit stride."""

    name: str
    extent: Dim


def row_major(axes: Sequence[Axis]) -> Dim:
    """The offset of a point of the axes, the last one innermost."""
    place: Dim = 0
    for axis in axes:
        place = place * axis.extent + (symbol(axis.name) if axis.extent != 1 else 0)
    return place


@dataclass(frozen=True)
class Reduction:
    """name = value, combined over the reduced axis in order; the index (i64) with `picks_index`."""

    name: str
    combine: Combine
    value: Element

    @property
    def running(self) -> DType:
        """The dtype that values are combined in."""
        return accumulator_of(self.value.dtype, self.combine)

    @property
    def dtype(self) -> DType:
        """Of the result."""
        return i64 if self.combine.picks_index else self.running


@dataclass(frozen=True)
class Pointwise(Part):
    """For every point of `axes`: the stores."""

    axes: tuple[Axis, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Reduce(Part):
    """For every row (point of `rows`): the phases in order, then the stores.

    A phase is reductions over `axis` made in one sweep; its values may use Refs of earlier phases.
    `row_stores` are made once a row, `stores` for every point of rows x axis.
    """

    rows: tuple[Axis, ...]
    axis: Axis
    phases: tuple[tuple[Reduction, ...], ...]
    row_stores: tuple[Store, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Grouping:
    """Each row m has the matrices at place `index`, an element over m, of the weights' axis `axis`.

    Where launches in front put rows in order of their groups, `order` and `starts` are parameters:
    the rows, and the place in them at which each group begins, with the number of rows at the end.
    """

    axis: Axis
    index: Element
    order: int | None = None
    starts: int | None = None


@dataclass(frozen=True)
class Contract(Part):
    """acc_i[b, m, n] = sum_k x[b, m, k] * w_i[b, n, k], for each w; then the stores.

    `x` is over batch, m, k; each of `ws` over batch, n, k; `stats` are reductions over k of
    elements over batch, m, k, one value a row (b, m); `stores` are over batch, m, n and use
    Ref("acc0"), ..., and the stats' names. Accumulates in `accumulator_of(x_dtype)`. `phases` are
    reductions over k, too, as in Reduce, made before: x and later phases may use their names.
    `x_dtype` and `w_dtype` are the dtypes a matrix unit is fed with (that of the stored operand).
    With a `group` there is no batch, and each of `ws` is over the group's axis, n, k.
    """

    batch: tuple[Axis, ...]
    m: Axis
    n: Axis
    k: Axis
    x: Element
    ws: tuple[Element, ...]
    stats: tuple[Reduction, ...]
    stores: tuple[Store, ...]
    x_dtype: DType
    w_dtype: DType
    phases: tuple[tuple[Reduction, ...], ...] = ()
    group: Grouping | None = None


@dataclass(frozen=True)
class Sample(Part):
    """The op sample: parameters by number, see ir/ops/sampling.py."""

    logits: int
    temperature: int
    top_k: int
    top_p: int
    seed: int
    step: int
    out: int
    rows: Dim
    vocab: int


@dataclass(frozen=True)
class Param:
    """A buffer a kernel is given. `encoding` as in ir.program.Buffer; offsets in Load and Store are
    of plain rows unless lowering already applied the encoding. `is_constant` promises that no
    kernel of the program writes it (a weight): it may be read before the kernels in front are done.
    `packed`: the dtype of elements that share its bytes, which is then what `type` is of.
    """

    type: TensorType
    is_written: bool
    encoding: Encoding = ROWS
    is_constant: bool = False
    packed: DType | None = None


@dataclass(frozen=True)
class LoopKernel:
    """A kernel before a schedule: its parts, parameters and the graph symbols it reads.

    `hints` are likely values of the symbols; `ranges` what is proved of them (a symbol without an
    entry may be any positive number).
    """

    params: tuple[Param, ...]
    parts: tuple[Part, ...]
    symbols: tuple[str, ...]
    template: str
    records: int | None = None  # the parameter (i64 [checks, 2]) that Checks write
    hints: dict[str, int] = field(default_factory=dict, hash=False)
    ranges: dict[str, Symbol] = field(default_factory=dict, hash=False)
