"""Sample: a launch that draws from pieces of every row, and one that joins them. No sort.

Temperature 0 and plain temperature need one look at each logit, shared out among programs. A row
with top-k or top-p needs a cut first: the largest threshold that still keeps enough. Floats map to
32-bit integers in the same order, and the threshold is found digit by digit (of 2 bits, highest
first), each by a sweep that counts, or weighs, what reaches each of the 4 candidates; it is done
once a single logit is left between two of them. The first launch keeps the noise of such a row.
A logit that is NaN or infinite ranks above all, so that the second launch sees it and gives -1.
"""

from ...ir.types import TensorType, i32
from ..loops import LoopKernel, Sample
from ..templates.sample import SampleJoin, SampleSchedule, SampleSplit
from ..templates.template import Schedule
from .body import Body, Context, Emitted, finish
from .elements import Emitter
from .split_kernels import Piece, handed_on

DIGITS = (1, 2, 3)
NO_NUMBER, NOTHING = 2**31 - 1, -(2**31) + 0x7FFFFF  # ranks: of NaN and infinity; of minus infinity
LEAST = -3.4028234663852886e38  # what a finite logit stays above, whatever noise is added

HELPERS = """\
@triton.jit
def order_key(x):
    # an integer that orders as the float does; -0 equals 0; NaN above all
    raw = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(x != x, 0x7FFFFFFF, raw ^ ((raw >> 31) & 0x7FFFFFFF))


@triton.jit
def from_place(place):
    # the float at a place in [0, 2^32) of that order; places below minus infinity's are that
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


def sample_pieces(
    kernel: LoopKernel, schedule: SampleSchedule
) -> tuple[list[Piece], list[Schedule]]:
    """The two launches; workspaces: each piece's best, and the noisy keys of rows with a cut."""
    (part,) = kernel.parts
    assert isinstance(part, Sample)
    pieces = -(-part.vocab // schedule.piece)
    spaces = {
        "best": TensorType((part.rows, pieces), i32),
        "best_at": TensorType((part.rows, pieces), i32),
        "noisy": TensorType((part.rows, part.vocab), i32),
    }
    return (
        list(handed_on(kernel, part, part, spaces, ("_split", "_join"))),
        [
            SampleSplit(schedule.piece, pieces),
            SampleJoin(pieces, schedule.block, schedule.num_warps),
        ],
    )


def emit_sample(
    kernel: LoopKernel, schedule: SampleSplit | SampleJoin, context: Context
) -> Emitted:
    """One of the two launches."""
    (part,) = kernel.parts
    assert isinstance(part, Sample)
    body = Body.waiting(context)
    emitter = _Emitter(kernel, part, schedule, body)
    emitter.read_row()
    if isinstance(schedule, SampleSplit):
        emitter.draw_piece(schedule)
        grid = (part.rows, schedule.pieces)
        warps = 4
    else:
        emitter.join(schedule)
        grid = (part.rows,)
        warps = schedule.num_warps
    return finish(kernel, body, context, grid=grid, num_warps=warps, helpers=HELPERS)


class _Emitter(Emitter):
    def __init__(self, kernel: LoopKernel, part: Sample, schedule: Schedule, body: Body):
        super().__init__(kernel, part, schedule, body)
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

    def draw_piece(self, schedule: SampleSplit) -> None:
        """The first largest of logit + temperature * noise in one piece of the row."""
        part = self.part
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
rank = tl.where(x < float("inf"), order_key(noisy), {NO_NUMBER})
rank = tl.where(inside, rank, -2147483648)
top = tl.max(rank, axis=0)
first = tl.min(tl.where(inside & (rank == top), index, 2147483647), axis=0)
tl.store(p{self.best} + row * {schedule.pieces} + piece, top)
tl.store(p{self.best_at} + row * {schedule.pieces} + piece, first)""")
        with self.body.block("if has_k | has_p:", is_conditional=True):
            self.lines(f"tl.store(p{self.noisy} + start + index, rank, mask=inside)")

    def join(self, schedule: SampleJoin) -> None:
        """The best piece; or, for a row with a cut, the best of what it keeps."""
        pieces = schedule.pieces
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
                self.find_cut(schedule.block, "top_k.to(tl.float32)", by_mass=False)
            with self.body.block("if has_p:", is_conditional=True):
                self.weigh(schedule.block)
            self.draw(schedule.block)
        with self.body.block("else:", is_conditional=True):
            self.lines(f"""
firsts = tl.load(p{self.best_at} + place, mask=lane < {pieces}, other=2147483647)
winner = tl.min(tl.where(tops == highest, firsts, 2147483647), axis=0)
tl.store(p{self.part.out} + row, tl.where(is_sound, winner, -1))""")

    # ---- rows with a cut ----

    def sweep(self, block: int):
        """A loop over the row in steps of `block`; x is the logits, minus infinity past the end."""
        self.step = block
        return self.body.block(f"for at in range(0, {self.part.vocab}, {block}):")

    def load(self) -> None:
        self.lines(f"""
index = at + tl.arange(0, {self.step})
inside = index < {self.part.vocab}
x = tl.load(p{self.part.logits} + start + index, mask=inside, other=float("-inf"))""")

    def weigh(self, block: int) -> None:
        """top-p: weights relative to the largest logit; only what top-k kept counts."""
        self.lines(f"largest = tl.full([{block}], float('-inf'), tl.float32)")
        with self.sweep(block):
            self.load()
            self.lines("largest = tl.maximum(largest, x)")
        self.lines(f"""
peak = tl.max(largest, axis=0)
masses = tl.zeros([{block}], tl.float32)
kept = cut""")
        with self.sweep(block):
            self.load()
            self.lines("masses += tl.where(x >= kept, tl.exp((x - peak) / heat), 0.0)")
        self.lines("wanted = tl.maximum(top_p * tl.sum(masses, axis=0), 1e-30)")
        self.find_cut(block, "wanted", by_mass=True)
        self.lines("cut = tl.maximum(cut, kept)")

    def find_cut(self, block: int, wanted: str, *, by_mass: bool) -> None:
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
                    self.lines(f"{kind}{digit}_sums = tl.zeros([{block}], tl.float32)")
            with self.sweep(block):
                self.load()
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

    def draw(self, block: int) -> None:
        """The first largest noisy key among the kept."""
        self.lines(f"""
best = tl.full([{block}], -2147483648, tl.int32)
best_at = tl.full([{block}], 2147483647, tl.int32)""")
        with self.sweep(block):
            self.load()
            self.lines(f"""
rank = tl.load(p{self.noisy} + start + index, mask=inside & (x >= cut), other=-2147483648)
is_better = rank > best
best = tl.where(is_better, rank, best)
best_at = tl.where(is_better, index, best_at)""")
        self.lines(f"""
first = tl.min(tl.where(best == tl.max(best, axis=0), best_at, 2147483647), axis=0)
first = tl.where(first == 2147483647, 0, first)
tl.store(p{self.part.out} + row, tl.where(is_sound, first, -1))""")
