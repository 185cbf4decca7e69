"""Sample: one program a row, no sort.

The cut of top-k and of top-p is the largest threshold that still keeps enough. Logits are mapped to
32-bit integers in the same order, and the threshold is found digit by digit (16 of 2 bits), each by
one sweep that counts, or weighs, what lies above each of the 4 candidates: about where comparing
takes as long as reading.
"""

from ..loops import LoopKernel, Sample
from .body import Body, Context, Emitted, finish
from .elements import Env
from .schedule import SampleSchedule

HELPERS = """\
@triton.jit
def order_key(x):
    # unsigned order of the key in 64 bits is the order of x; -0 equals 0; NaN above all
    raw = (x + 0.0).to(tl.int32, bitcast=True)
    ordered = raw ^ ((raw >> 31) & 0x7FFFFFFF)
    return tl.where(x != x, 0x7FFFFFFF, ordered).to(tl.int64) + 2147483648


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


def emit_sample(kernel: LoopKernel, schedule: SampleSchedule, context: Context) -> Emitted:
    """One launch, a program a row."""
    (part,) = kernel.parts
    assert isinstance(part, Sample)
    body = Body(pdl=context.pdl)
    body.start_dependents()
    body.wait()
    _Emitter(kernel, part, schedule, body).emit()
    return finish(
        kernel, body, context, grid=(part.rows,), num_warps=schedule.num_warps, helpers=HELPERS
    )


class _Emitter:
    def __init__(self, kernel: LoopKernel, part: Sample, schedule: SampleSchedule, body: Body):
        self.part, self.block, self.body = part, schedule.block, body
        self.lanes = ""
        self.small = max(schedule.block // 2, 16)  # a sweep for a digit holds 4 values an element
        self.scalars = Env(body, kernel, (), {}, "", 0)

    def lines(self, text: str) -> None:
        for line in text.splitlines():
            if line.strip():
                self.body.line(line)

    def emit(self) -> None:
        part = self.part
        self.lines(f"""
row = tl.program_id(0)
logits = p{part.logits} + row.to(tl.int64) * {part.vocab}
temperature = tl.load(p{part.temperature} + row)
top_k = tl.load(p{part.top_k} + row)
top_p = tl.load(p{part.top_p} + row)
seed = tl.load(p{part.seed} + row)
step = tl.load(p{part.step} + row)
is_greedy = temperature == 0.0
heat = tl.where(is_greedy, 1.0, temperature)
key = mix(seed.to(tl.uint32))
key = mix(key ^ (seed >> 32).to(tl.uint32))
key = mix(key ^ step.to(tl.uint32))
cut = tl.zeros((), tl.int64)""")
        test = f"if (top_k > 0) & (top_k < {part.vocab}) & (temperature != 0.0):"
        with self.body.block(test, is_conditional=True):
            self.find_cut("(order >= candidates).to(tl.float32)", "top_k * 1.0")
        with self.body.block("if (top_p < 1.0) & (temperature != 0.0):", is_conditional=True):
            self.weigh()
        self.draw()

    def sweep(self, block: int) -> str:
        """The header of a loop over the vocabulary; `load` follows inside."""
        self.lanes = f"tl.arange(0, {block})"
        return f"for at in range(0, {self.part.vocab}, {block}):"

    def load(self) -> None:
        """x: this step's logits over temperature; minus infinity past the end."""
        self.lines(f"""
index = at + {self.lanes}
inside = index < {self.part.vocab}
x = tl.load(logits + index, mask=inside, other=float("-inf")) / heat""")

    def weigh(self) -> None:
        """top-p: weights are relative to the largest logit; only what top-k kept counts."""
        self.lines(f"largest = tl.full([{self.block}], float('-inf'), tl.float32)")
        with self.body.block(self.sweep(self.block)):
            self.load()
            self.lines("largest = tl.maximum(largest, x)")
        self.lines(f"""
peak = tl.max(largest, axis=0)
masses = tl.zeros([{self.block}], tl.float32)
kept = cut""")
        with self.body.block(self.sweep(self.block)):
            self.load()
            self.lines("masses += tl.where(order_key(x) >= kept, tl.exp(x - peak), 0.0)")
        self.lines("wanted = top_p * tl.sum(masses, axis=0)")
        weight = "tl.where(order >= kept, tl.exp(x - peak)[:, None], 0.0)"
        self.find_cut(f"tl.where(order >= candidates, {weight}, 0.0)", "wanted")
        self.lines("cut = tl.maximum(cut, kept)")

    def find_cut(self, amount: str, wanted: str) -> None:
        """cut: the largest threshold for which the sum of `amount` above it reaches `wanted`."""
        self.lines("digits = tl.arange(0, 4)\nfound = tl.zeros((), tl.int64)")
        with self.body.block("for turn in range(0, 16):"):
            self.lines(f"""
shift = 30 - 2 * turn
candidates = found + (digits.to(tl.int64) << shift)[None, :]
above = tl.zeros([{self.small}, 4], tl.float32)""")
            with self.body.block(self.sweep(self.small)):
                self.load()
                self.lines(f"order = order_key(x)[:, None]\nabove += {amount}")
            self.lines(f"""
reached = (tl.sum(above, axis=0) >= {wanted}).to(tl.int64)
found += tl.maximum(tl.sum(reached, axis=0) - 1, 0) << shift""")
        self.lines("cut = found")

    def draw(self) -> None:
        """The first largest of x + noise among what is kept (of x alone when greedy)."""
        self.lines(f"""
best = tl.full([{self.block}], -1, tl.int64)
best_at = tl.zeros([{self.block}], tl.int32)""")
        with self.body.block(self.sweep(self.block)):
            self.load()
            self.lines("""
noisy = tl.where(is_greedy, x, x + gumbel(index, key))
rank = tl.where(inside & (order_key(x) >= cut), order_key(noisy), -1)
is_better = rank > best
best = tl.where(is_better, rank, best)
best_at = tl.where(is_better, index, best_at)""")
        self.lines(f"""
first = tl.min(tl.where(best == tl.max(best, axis=0), best_at, 2147483647), axis=0)
tl.store(p{self.part.out} + row, first)""")
