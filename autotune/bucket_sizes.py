"""At which sizes a bucket of a kernel is measured."""

from ..codegen.loops import LoopKernel
from ..codegen.templates.attention import Attention
from ..ir.dim import Dim, Symbol, evaluate, symbols_of

LIKELY = 1024  # of a symbol of which nothing is known
MOST = 1 << 40  # where a search for a symbol's value ends
MOST_BYTES = 2 << 30  # of a kernel's parameters

Sizes = dict[str, int]


def sizes_at(kernel: LoopKernel, size: Dim, wanted: int) -> Sizes | None:
    """Values of all symbols, likely ones, of which `size` is `wanted` or as near below as it can.

    None where it cannot be that small, or would take too much memory.
    """
    names = sorted(symbols_of(size))
    likely = {name: _value(kernel, name) for name in (*_symbols(kernel), *names)}
    values = likely | {name: _low(kernel, name) for name in names}
    # each symbol by itself where that will do; else one after the other from the smallest on
    options = [
        others | {name: _most(kernel, name, size, wanted, others)}
        for others in (likely, values)
        for name in names
    ] or [likely]
    for name in names:
        values[name] = _most(kernel, name, size, wanted, values)
    options = [_made_whole(kernel, option) for option in (*options, values)]
    fits = [o for o in options if evaluate(size, o) <= wanted and _bytes(kernel, o) <= MOST_BYTES]
    return max(fits, key=lambda option: evaluate(size, option), default=None)


def bucket_sizes(kernel: LoopKernel, size: Dim, lo: int, hi: int | None) -> list[Sizes]:
    """Sizes at both ends of a bucket, one at least; the larger come first.

    Of a bucket whose end is none, or larger than memory, some size well within it is taken.
    """
    likely = {name: _value(kernel, name) for name in _symbols(kernel) | symbols_of(size)}
    inner = max(evaluate(size, likely), 4 * lo, 1)
    ends = (inner,) if hi is None else (hi, min(16 * max(lo, 1), hi), min(4 * max(lo, 1), hi))
    found = [sizes_at(kernel, size, at) for at in (*ends, max(lo, 1))]
    made = [s for s in found if s is not None and lo <= evaluate(size, s)]
    made = [made[0], made[-1]] if made else [_made_whole(kernel, likely)]
    return made[: 1 + (made[0] != made[-1])]


def _symbols(kernel: LoopKernel) -> frozenset[str]:
    shapes = (d for param in kernel.params for d in param.type.shape)
    return frozenset(kernel.symbols).union(*map(symbols_of, shapes))


def _declared(kernel: LoopKernel, name: str) -> Symbol:
    return kernel.ranges.get(name) or Symbol(name)


def _low(kernel: LoopKernel, name: str) -> int:
    known = _declared(kernel, name)
    return -(-max(known.lo, 1) // known.multiple) * known.multiple


def _value(kernel: LoopKernel, name: str) -> int:
    """A likely one: the hint, within its range."""
    known = _declared(kernel, name)
    value = max(kernel.hints.get(name, known.hint or LIKELY), _low(kernel, name))
    value = value if known.hi is None else min(value, known.hi)
    return value // known.multiple * known.multiple


def _most(kernel: LoopKernel, name: str, size: Dim, wanted: int, values: Sizes) -> int:
    """The largest value of a symbol that keeps `size`, which grows with it, within `wanted`."""
    known = _declared(kernel, name)
    low = _low(kernel, name) // known.multiple
    high = (MOST if known.hi is None else known.hi) // known.multiple
    while low < high:
        middle = (low + high + 1) // 2
        if evaluate(size, values | {name: middle * known.multiple}) <= wanted:
            low = middle
        else:
            high = middle - 1
    # a size that does not depend on it leaves it as likely as it was
    grown = evaluate(size, values | {name: low * known.multiple})
    return low * known.multiple if low < MOST and grown > 0 else _value(kernel, name)


def _bytes(kernel: LoopKernel, values: Sizes) -> int:
    return sum(evaluate(param.type.nbytes, values) for param in kernel.params)


def _made_whole(kernel: LoopKernel, values: Sizes) -> Sizes:
    """With a token or more a sequence of a paged attention, and pages enough for all of them."""
    for part in kernel.parts:
        if isinstance(part, Attention) and part.pages is not None:
            sequences, width = (
                evaluate(d, values) for d in (part.pages.sequences, part.pages.width)
            )
            values |= {n: max(values[n], sequences) for n in symbols_of(part.queries)}
            per = -(-evaluate(part.queries, values) // max(sequences, 1))
            for name in symbols_of(part.pages.width):
                values[name] = max(width, -(-per // part.pages.size))
            width = evaluate(part.pages.width, values)
            (count, *_) = kernel.params[part.k.param].type.shape
            values |= dict.fromkeys(symbols_of(count), sequences * width)
    return values
