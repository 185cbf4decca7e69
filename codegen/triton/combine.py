"""How a reduction runs over tiles of [rows, block]: in one tile, or tile after tile.

What Triton has a word for is reduced lane by lane and across lanes at the end. Any other combine is
scanned in order, so that it need be associative only, and its last lane is the result.
"""

import sys
from collections.abc import Sequence

from ...ir.combine import Combine
from ...ir.types import DType, bool_, f32, f64, i32, u64
from ..inline import combination
from ..loops import LARGEST, SUM, Apply, LoopKernel, Reduction, Ref, accumulated
from .body import Body
from .elements import Env, Val
from .names import constant, value_type

# (function, identity) -> what Triton calls it; the bits of a bool are the largest and the smallest
_WORDS = {
    ("add", 0): "sum", ("mul", 1): "prod", ("maximum", "lowest"): "max",
    ("minimum", "highest"): "min", ("or", False): "max", ("and", True): "min",
}  # fmt: skip


def carried(dtype: DType) -> DType:
    """As what values of `dtype` are combined."""
    return i32 if dtype == bool_ else dtype


class Fold:
    """A reduction that Triton has a word for."""

    helpers: tuple[str, ...] = ()  # functions that the kernel's module needs
    any_order = True  # whether tiles may come in any order

    def __init__(self, body: Body, reduction: Reduction, shape: list[int], word: str):
        self.body, self.reduction, self.shape, self.word = body, reduction, shape, word
        self.dtype = carried(reduction.running)
        self.start = reduction.combine.identity_of(reduction.value.dtype)

    def whole(self, tile: str, at: str) -> str:
        """The column that one tile comes to; `at` is the index along the axis."""
        word, result = self.word, self.reduction.dtype
        if word == "prod":
            out = f"tl.reduce({tile}, 1, product, keep_dims=True)"
        elif word != "sum" and self.dtype.is_float:
            out = f"tl.reduce({tile}, 1, {word}_nan, keep_dims=True)"
        else:
            out = f"tl.{word}({tile}, axis=1, keep_dims=True)"
        if result == bool_:
            return f"{out} != 0"
        return out if result == self.dtype else f"{out}.to({value_type(result)})"

    def begin(self) -> None:
        """Before the first tile."""
        self.acc = self.body.fresh("acc")
        start = constant(self.start, self.dtype)
        self.body.line(f"{self.acc} = tl.full({self.shape}, {start}, {value_type(self.dtype)})")

    def add(self, tile: str, at: str, axis: frozenset[str]) -> None:
        """One more tile; `axis` is what its values depend on."""
        acc, word = self.acc, self.word
        if word in ("sum", "prod"):
            self.body.line(f"{acc} = {acc} {'+' if word == 'sum' else '*'} {tile}")
            return
        nan = ", propagate_nan=tl.PropagateNan.ALL" if self.dtype.is_float else ""
        self.body.line(f"{acc} = tl.{word}imum({acc}, {tile}{nan})")

    def result(self) -> str:
        """The column, after all tiles."""
        return self.whole(self.acc, "")


class SoftmaxFold(Fold):
    """The largest m of v, and the sum of exp(v - m), in one sweep: the sum follows m as it grows.

    Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, algorithm 3, lane by
    lane. A lane starts at the lowest finite number, so that no difference of infinities is taken
    before the end; where m is infinite or NaN the sum is NaN, as it is in two sweeps.
    """

    def begin(self) -> None:
        kind, lowest = value_type(self.dtype), sys.float_info.max
        if self.dtype == f32:
            lowest = (2 - 2**-23) * 2.0**127
        self.acc, self.sum = self.body.fresh("acc"), self.body.fresh("sum")
        self.body.line(f"{self.acc} = tl.full({self.shape}, -{lowest}, {kind})")
        self.body.line(f"{self.sum} = tl.zeros({self.shape}, {kind})")

    def add(self, tile: str, at: str, axis: frozenset[str]) -> None:
        body, acc, total = self.body, self.acc, self.sum
        scale = body.name(f"tl.exp(-tl.abs({tile} - {acc}))", axis)
        grown = f"{total} * {scale} + 1.0"
        body.line(f"{total} = tl.where({tile} > {acc}, {grown}, {total} + {scale})")
        super().add(tile, at, axis)

    def result(self) -> str:
        """The column of m; `total` is that of the sum, once m has a name."""
        # of nothing but -inf nothing was counted
        count = self.body.name(f"tl.sum({self.sum}, axis=1, keep_dims=True)")
        top = self.body.name(self.whole(self.acc, ""))
        return f'tl.where({count} == 0.0, float("-inf"), {top})'

    def total(self, top: str) -> str:
        """The column of sums, given that of m."""
        return f"tl.sum({self.sum} * tl.exp({self.acc} - {top}), axis=1, keep_dims=True)"


class PlaceFold(Fold):
    """Where the largest or smallest lies: the first index whose key is the largest."""

    any_order = False

    def whole(self, tile: str, at: str) -> str:
        key = self.body.name(order_key(tile, self.dtype, self.word))
        return self._first(key, f"{at} + tl.zeros({self.shape}, tl.int32)")

    @property
    def kind(self) -> str:
        """Integers that hold every key and one below all: those of float32 leave the lowest out."""
        return "tl.int32" if self.dtype == f32 else "tl.int64"

    def begin(self) -> None:
        self.acc = self.body.fresh("acc")
        lowest = -(2**31) if self.dtype == f32 else -(2**63)
        self.body.line(f"{self.acc} = tl.full({self.shape}, {lowest}, {self.kind})")
        self.body.line(f"{self.acc}_at = tl.zeros({self.shape}, tl.int32)")

    def add(self, tile: str, at: str, axis: frozenset[str]) -> None:
        body, acc = self.body, self.acc
        key = f"({order_key(tile, self.dtype, self.word)}).to({self.kind})"
        if self.dtype == u64:  # in the order of signed numbers
            key = f"{key} ^ {-(2**63)}"
        key = body.name(key, axis)
        better = body.fresh("better")
        body.line(f"{better} = {key} > {acc}")
        body.line(f"{acc} = tl.where({better}, {key}, {acc})")
        body.line(f"{acc}_at = tl.where({better}, {at}, {acc}_at)")

    def result(self) -> str:
        return self._first(self.acc, f"{self.acc}_at")

    def _first(self, key: str, index: str) -> str:
        top = self.body.name(f"tl.max({key}, axis=1, keep_dims=True)")
        return (
            f"tl.min(tl.where({key} == {top}, {index}, 2147483647), axis=1, keep_dims=True)"
            ".to(tl.int64)"
        )


class InOrder(Fold):
    """Any associative combine. The index, where it is wanted, goes along with the value."""

    any_order = False

    def __init__(self, body: Body, reduction: Reduction, shape: list[int], kernel: LoopKernel):
        super().__init__(body, reduction, shape, f"combine_{reduction.name}")
        self.picks = reduction.combine.picks_index
        function = combine_function(kernel, reduction.combine, reduction.running, self.word)
        self.helpers = (LAST, function)

    def whole(self, tile: str, at: str) -> str:
        return self._out(*self._last(tile, at))

    def begin(self) -> None:
        self.acc = self.body.fresh("acc")
        rows = [self.shape[0], 1]
        start = constant(self.start, self.dtype)
        self.body.line(f"{self.acc} = tl.full({rows}, {start}, {value_type(self.dtype)})")
        if self.picks:
            self.body.line(f"{self.acc}_at = tl.zeros({rows}, tl.int32)")

    def add(self, tile: str, at: str, axis: frozenset[str]) -> None:
        acc = f"{self.acc}, {self.acc}_at" if self.picks else self.acc
        self.body.line(f"{acc} = {self.word}({acc}, {', '.join(self._last(tile, at))})")

    def result(self) -> str:
        return self._out(self.acc, f"{self.acc}_at")

    def _last(self, tile: str, at: str) -> tuple[str, ...]:
        """What the elements of a tile come to, and where that lies."""
        made = [self.body.fresh("s") for _ in range(1 + self.picks)]
        given = f"({tile}, {at} + tl.zeros({self.shape}, tl.int32))" if self.picks else tile
        self.body.line(f"{', '.join(made)} = tl.associative_scan({given}, 1, {self.word})")
        return tuple(last_column(name, dtype) for name, dtype in zip(made, (self.dtype, i32)))

    def _out(self, value: str, at: str = "") -> str:
        if self.picks:
            return f"{at}.to(tl.int64)"
        return f"{value} != 0" if self.reduction.dtype == bool_ else value


def sum_beside(reduction: Reduction, following: Sequence[Sequence[Reduction]]) -> Reduction | None:
    """The sum of exp(v - m) that the next phase makes, where `reduction` is the largest m of v."""
    if reduction.combine != LARGEST or not reduction.value.dtype.is_float or not following:
        return None
    v = reduction.value
    m = accumulated(reduction.name, v.dtype, LARGEST)
    value = Apply("exp", (Apply("sub", (v, m), v.dtype),), v.dtype)
    return next((r for r in following[0] if r.combine == SUM and r.value == value), None)


def fold_of(
    body: Body, reduction: Reduction, shape: list[int], kernel: LoopKernel, *, with_sum: bool
) -> Fold:
    """How `reduction` runs over tiles of `shape`, `with_sum` with that of `sum_beside`."""
    combine = reduction.combine
    word = _WORDS.get((combine.function, combine.identity))
    if combine.function in ("and", "or") and reduction.value.dtype != bool_:
        word = None
    if combine.picks_index and word not in ("max", "min"):
        word = None
    if word is None:
        return InOrder(body, reduction, shape, kernel)
    kind = PlaceFold if combine.picks_index else SoftmaxFold if with_sum else Fold
    return kind(body, reduction, shape, word)


LAST = """

@triton.jit
def last(x, bits: tl.constexpr):
    # the last lane of each row; summed as bits, as a sum of floats loses the sign of -0
    lanes = tl.arange(0, x.shape[1])[None, :]
    kept = tl.where(lanes == x.shape[1] - 1, x.to(bits, bitcast=True), 0)
    return tl.sum(kept, axis=1, keep_dims=True).to(bits).to(x.dtype, bitcast=True)

"""


def last_column(tile: str, dtype: DType) -> str:
    """The last column of a tile of `dtype`, to the bit. The module needs `LAST`."""
    return f"last({tile}, tl.int{dtype.bits})"


def combine_function(kernel: LoopKernel, combine: Combine, dtype: DType, name: str) -> str:
    """A function for Triton's reductions and scans: x (earlier) and y combined; bools are i32.

    With `picks_index`, of values and their indices in turn: (x, x_at, y, y_at).
    """
    body = Body()
    env = Env(body, kernel)
    for text in "xy":
        given = Val(text)
        env.refs[text] = env.to(given, i32, bool_) if dtype == bool_ else given
    made = combination(combine, Ref("x", dtype), Ref("y", dtype))
    out = env.to(env.to(env.value(made), made.dtype, dtype), dtype, carried(dtype)).text
    if not combine.picks_index:
        head, last = "x, y", out
    else:  # the first of equals, and a NaN before all
        later = body.name(f"tl.where({out} != {out}, x == x, {out} != x)", prefix="later")
        head, last = "x, x_at, y, y_at", f"{out}, tl.where({later}, y_at, x_at)"
    lines = [f"@triton.jit\ndef {name}({head}):", *body.root.lines(1), f"    return {last}"]
    return "\n" + "\n".join(lines) + "\n\n"


def order_key(text: str, dtype: DType, word: str) -> str:
    """An integer that orders as the float does, with NaN above all; -0 equals 0.

    For the smallest the order is turned round and NaN stays above all.
    """
    flip = "~" if word == "min" else ""
    if not dtype.is_float:
        return f"{flip}({text})"
    bits, low = ("tl.int64", 63) if dtype == f64 else ("tl.int32", 31)
    top = 2**low - 1
    raw = f"({text} + 0.0).to({bits}, bitcast=True)"
    ordered = f"({raw} ^ (({raw} >> {low}) & {top}))"
    return f"tl.where({text} != {text}, {top}, {flip}{ordered})"
