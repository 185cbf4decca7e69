"""Sample: a launch that draws from pieces of every row, and one that joins them. No sort.

Temperature 0 and plain temperature need one look at each logit, shared out among programs. A row
with top-k or top-p needs a cut first: the largest threshold that still keeps enough. Floats map to
32-bit integers in the same order, and the threshold is found digit by digit (of 2 bits, highest
first), each by a sweep that counts, or weighs, what reaches each of the 4 candidates; it is done
once a single logit is left between two of them. The first launch keeps the noise of such a row.
A logit that is NaN or infinite ranks above all, so that the second launch sees it and gives -1.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...ir.dim import Dim
from ...ir.types import TensorType, f32, i32
from ..loops import LoopKernel, Sample
from ..templates.sample import SampleJoin, SampleSchedule, SampleSplit
from .combine import order_key
from .launch import Context, Emitter
from .split_kernels import Piece, handed_on

DIGITS = (1, 2, 3)
NO_NUMBER, NOTHING = 2**31 - 1, -(2**31) + 0x7FFFFF  # ranks: of NaN and infinity; of minus infinity
LEAST = -3.4028234663852886e38  # what a finite logit stays above, whatever noise is added

HELPERS = """\
@triton.jit
def from_place(place):
    # the float at a place in [0, 2^32) of the order of keys (combine.order_key); places below minus
    # infinity's are that
    key = (tl.maximum(place, 0x007FFFFF) - 2147483648).to(tl.int32)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def mix(x):
    x = x ^ (x >> 16)
    x = x * 0x21F0AAAD
    x = x ^ (x >> 15)
    x = x * 0xD35A2D97
    return x ^ (x >> 15)


@triton.jit
def gumbel(index, key):
    bits = mix(mix(index.to(tl.uint32) ^ key) + key) >> 8
    # u = (bits + 1/2) / 2^24 is exact for the lower half, 1 - u for the upper
    is_low = bits < 8388608
    count = tl.where(is_low, bits, 16777215 - bits)
    small = (count.to(tl.int32).to(tl.float32) + 0.5) * 5.960464477539063e-08
    return -tl.log(tl.where(is_low, -tl.log(small), -log1p(-small)))


"""


def sample_pieces(kernel: LoopKernel, schedule: SampleSchedule) -> Sequence[Piece]:
    """The two launches; workspaces: each piece's best, and the noisy keys of rows with a cut."""
    (part,) = kernel.parts
    assert isinstance(part, Sample)
    pieces = -(-part.vocab // schedule.piece)
    spaces = {
        "best": TensorType((part.rows, pieces), i32),
        "best_at": TensorType((part.rows, pieces), i32),
        "noisy": TensorType((part.rows, part.vocab), i32),
    }
    first = part, SampleSplit(schedule.piece, pieces)
    second = part, SampleJoin(pieces, schedule.block, schedule.num_warps)
    return handed_on(kernel, first, second, spaces, ("_split", "_join"))


class _SampleEmitter(Emitter):
    fuses = True
    helpers = HELPERS
    part: Sample

    def __init__(self, kernel: LoopKernel, schedule: SampleSplit | SampleJoin, context: Context):
        super().__init__(kernel, schedule, context)
        self.best, self.best_at, self.noisy = range(len(kernel.params) - 3, len(kernel.params))

    def read_row(self) -> None:
        """Which row, and its parameters."""
        part = self.part
        self.lines(f"""
row = tl.program_id(0)
start = row.to(tl.int64) * {part.vocab}
temperature = tl.load(p{part.temperature} + row)
top_k = tl.load(p{part.top_k} + row)
top_p = tl.load(p{part.top_p} + row)
# divides what is not greedy; 0 / heat must be 0 for a temperature that counts as 0 in a division
heat = tl.maximum(temperature, 1e-30)
has_k = (top_k > 0) & (top_k < {part.vocab}) & (temperature != 0.0)
has_p = (top_p < 1.0) & (temperature != 0.0)""")


class SplitEmitter(_SampleEmitter):
    """The first largest of logit + temperature * noise in one piece of each row."""

    def emit(self) -> tuple[Dim, ...]:
        part, schedule = self.part, self.schedule
        self.read_row()
        self.lines(f"""
seed = tl.load(p{part.seed} + row)
step = tl.load(p{part.step} + row)
key = mix(seed.to(tl.uint32))
key = mix(key ^ (seed >> 32).to(tl.uint32))
key = mix(key ^ step.to(tl.uint32))
piece = tl.program_id(1)
index = piece * {schedule.piece} + tl.arange(0, {schedule.piece})
inside = index < {part.vocab}
x = tl.load(p{part.logits} + start + index, mask=inside, other=float("-inf"))
noisy = x + temperature * gumbel(index, key)
noisy = tl.where(x == float("-inf"), x, tl.maximum(noisy, {LEAST!r}))
rank = tl.where(x < float("inf"), {order_key("noisy", f32, "max")}, {NO_NUMBER})
rank = tl.where(inside, rank, -2147483648)
top = tl.max(rank, axis=0)
first = tl.min(tl.where(inside & (rank == top), index, 2147483647), axis=0)
tl.store(p{self.best} + row * {schedule.pieces} + piece, top)
tl.store(p{self.best_at} + row * {schedule.pieces} + piece, first)""")
        with self.body.block("if has_k | has_p:", is_conditional=True):
            self.lines(f"tl.store(p{self.noisy} + start + index, rank, mask=inside)")
        return part.rows, schedule.pieces


class JoinEmitter(_SampleEmitter):
    """The best piece; or, for a row with a cut, the best of what it keeps."""

    def emit(self) -> tuple[Dim, ...]:
        pieces = self.schedule.pieces
        self.read_row()
        width = 1 << (pieces - 1).bit_length()
        self.lines(f"""
lane = tl.arange(0, {width})
place = row * {pieces} + lane
tops = tl.load(p{self.best} + place, mask=lane < {pieces}, other=-2147483648)
highest = tl.max(tops, axis=0)
is_sound = (highest != {NO_NUMBER}) & (highest > {NOTHING})""")
        with self.body.block("if has_k | has_p:", is_conditional=True):
            self.lines('cut = tl.zeros((), tl.float32) + float("-inf")')
            with self.body.block("if has_k:", is_conditional=True):
                self.find_cut("top_k.to(tl.float32)", by_mass=False)
            with self.body.block("if has_p:", is_conditional=True):
                self.weigh()
            self.draw()
        with self.body.block("else:", is_conditional=True):
            self.lines(f"""
firsts = tl.load(p{self.best_at} + place, mask=lane < {pieces}, other=2147483647)
winner = tl.min(tl.where(tops == highest, firsts, 2147483647), axis=0)
tl.store(p{self.part.out} + row, tl.where(is_sound, winner, -1))""")
        return (self.part.rows,)

    # ---- rows with a cut ----

    @contextmanager
    def sweep(self) -> Iterator[None]:
        """A loop over the row in steps; x is the logits, minus infinity past the end."""
        block, part = self.schedule.block, self.part
        with self.body.block(f"for at in range(0, {part.vocab}, {block}):"):
            self.lines(f"""
index = at + tl.arange(0, {block})
inside = index < {part.vocab}
x = tl.load(p{part.logits} + start + index, mask=inside, other=float("-inf"))""")
            yield

    def weigh(self) -> None:
        """top-p: weights relative to the largest logit; only what top-k kept counts."""
        block = self.schedule.block
        self.lines(f"largest = tl.full([{block}], float('-inf'), tl.float32)")
        with self.sweep():
            self.lines("largest = tl.maximum(largest, x)")
        self.lines(f"""
peak = tl.max(largest, axis=0)
masses = tl.zeros([{block}], tl.float32)
kept = cut""")
        with self.sweep():
            self.lines("masses += tl.where(x >= kept, tl.exp((x - peak) / heat), 0.0)")
        self.lines("wanted = tl.maximum(top_p * tl.sum(masses, axis=0), 1e-30)")
        self.find_cut("wanted", by_mass=True)
        self.lines("cut = tl.maximum(cut, kept)")

    def find_cut(self, wanted: str, *, by_mass: bool) -> None:
        """cut: a threshold that keeps what the largest one with enough keeps.

        Enough is a count, or a mass of `weight`. What reaches digit 0 is known to be enough.
        """
        kinds = ("count", "mass") if by_mass else ("count",)
        self.lines(f"""
found = tl.zeros((), tl.int64)
turn = tl.zeros((), tl.int32)
above = tl.zeros((), tl.float32)
count0 = tl.zeros((), tl.float32) + {self.part.vocab}.0
between = count0""")
        with self.body.block("while (turn < 16) & (between > 1.5):"):
            self.lines("shift = 30 - 2 * turn")
            for digit in DIGITS:
                place = f"found + (({digit} + found * 0) << shift)"
                self.lines(f"candidate{digit} = from_place({place})")
                for kind in kinds:
                    sums = f"tl.zeros([{self.schedule.block}], tl.float32)"
                    self.lines(f"{kind}{digit}_sums = {sums}")
            with self.sweep():
                if by_mass:
                    self.lines("weight = tl.exp((x - peak) / heat)")
                for digit in DIGITS:
                    self.lines(f"reaches{digit} = inside & (x >= candidate{digit})")
                    if by_mass:
                        self.lines(f"""
reaches{digit} = reaches{digit} & (x >= kept)
mass{digit}_sums += tl.where(reaches{digit}, weight, 0.0)""")
                    self.lines(f"count{digit}_sums += reaches{digit}.to(tl.float32)")
            for digit in DIGITS:
                self.lines(f"count{digit} = tl.sum(count{digit}_sums, axis=0)")
                amount = f"tl.sum(mass{digit}_sums, axis=0)" if by_mass else f"count{digit}"
                self.lines(f"enough{digit} = ({amount} >= {wanted}).to(tl.int32)")
            self.lines("""
digit = enough1 + enough2 + enough3
beyond = tl.where(digit == 0, count1, tl.where(digit == 1, count2, count3))
above = tl.where(digit == 3, above, beyond)
least = tl.where(digit == 1, count1, tl.where(digit == 2, count2, count3))
count0 = tl.where(digit == 0, count0, least)
between = count0 - above
found += digit.to(tl.int64) << shift
turn += 1""")
        self.lines("cut = from_place(found)")

    def draw(self) -> None:
        """The first largest noisy key among the kept."""
        block = self.schedule.block
        self.lines(f"""
best = tl.full([{block}], -2147483648, tl.int32)
best_at = tl.full([{block}], 2147483647, tl.int32)""")
        with self.sweep():
            self.lines(f"""
rank = tl.load(p{self.noisy} + start + index, mask=inside & (x >= cut), other=-2147483648)
is_better = rank > best
best = tl.where(is_better, rank, best)
best_at = tl.where(is_better, index, best_at)""")
        self.lines(f"""
first = tl.min(tl.where(best == tl.max(best, axis=0), best_at, 2147483647), axis=0)
first = tl.where(first == 2147483647, 0, first)
tl.store(p{self.part.out} + row, tl.where(is_sound, first, -1))""")
