"""Random graphs over every op: operands and attributes by what its declaration takes.

What no declaration says (which shapes go together, what proves that a view reads inside) is in
random_steps.py and random_rows.py; what none of them knows is taken from the op's samples, with
operands made to fit.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import prod
from random import Random

from tilewright.ir.builder import Builder
from tilewright.ir.dim import Dim, Expr, evaluate, product
from tilewright.ir.errors import ShapeError
from tilewright.ir.facts import Facts
from tilewright.ir.graph import Graph, Value
from tilewright.ir.op import OPS, Op, broadcast_shapes
from tilewright.ir.types import DTYPES, DType, TensorType, bf16, bool_, f16, f32, f64, i32, i64

FLOATS = (f32, f64, f16, bf16)
ALL = tuple(dtype for dtype in DTYPES.values() if not dtype.is_packed)
PACKED = tuple(dtype for dtype in DTYPES.values() if dtype.is_packed)
ANY = (*FLOATS, *(dtype for dtype in ALL if not dtype.is_float))  # what is computed in
MOST = 1500  # elements of a value
LARGEST = 9  # what dims are at most, for counting elements
# kinds of which graphs are mostly made
OFTEN = {"elementwise": 8, "view": 6, "reduce": 3, "composite": 4, "contract": 2}
LEAVES = frozenset(("region", "call"))  # kinds that stand alone, in no kernel


class Declined(Exception):
    """This step cannot be made of these values."""


class Pool:
    """The values of a graph so far that belong together, and choices among them.

    `regions`: whether sub-graphs and calls may begin; `weights`: whether there are new ones.
    """

    def __init__(
        self,
        rng: Random,
        b: Builder,
        dims: Sequence[Dim],
        *,
        regions: bool = True,
        weights: bool = True,
    ):
        self.rng, self.b, self.regions, self.weights = rng, b, regions, weights
        self.dims = list(dims)  # and those that only data says
        self.values: list[Value] = []

    # ---- choices -----------------------------------------------------------------------------

    def among(self, choices: Iterable):
        """One of them; Declined where there is none."""
        choices = tuple(choices)
        if not choices:
            raise Declined
        return choices[self.rng.randint(0, len(choices) - 1)]

    def whole(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def flip(self, chance: int = 2) -> bool:
        """True once in `chance` times."""
        return self.rng.randint(1, chance) == 1

    def value(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value, mostly one of those made last, so that most nodes are live."""
        found = [v for v in self.values if fits(v)]
        return self.among(found[-3:] if self.flip() else found)

    def ranked(self, least: int = 1) -> Value:
        return self.value(lambda v: v.type.rank >= least)

    def axis(self, x: Value) -> int:
        """One of x's, counted from either end."""
        if not x.type.rank:
            raise Declined
        return self.whole(-x.type.rank, x.type.rank - 1)

    def dim(self) -> Dim:
        return self.among((*self.dims, 1, 2, 3, 4, 5, 8, self.among((0, 17, 40))))

    def shape(self, most: int = 3) -> tuple[Dim, ...]:
        return tuple(self.dim() for _ in range(self.whole(0, most)))

    @property
    def facts(self) -> Facts:
        return Facts(self.b.symbols)

    # ---- values made to fit ------------------------------------------------------------------

    def node(self, op: Op, operands: Sequence[Value], attrs: dict):
        return self.b.node(op, operands, attrs).results

    def weight(self, shape: Sequence[Dim], dtype: DType) -> Value:
        """A new one, of those sizes that are known."""
        if not self.weights:
            raise Declined
        return self.b.weight(f"w{len(self.b.weights)}", known(shape), dtype)

    def number(self, value: float, dtype: DType) -> Value:
        return self.b.constant(value if dtype.is_float else int(value), dtype)

    def cast(self, x: Value, dtype: DType) -> Value:
        """x in this dtype, in the range of an integer: what is beyond is the machine's choice."""
        if x.dtype == dtype:
            return x
        b = self.b
        if x.dtype.is_float and dtype.is_integer:
            low = 0.0 if dtype.kind == "uint" else -100.0
            x = b.where(b.isnan(x), b.constant(0.0, x.dtype), x)
            x = b.minimum(b.maximum(x, b.constant(low, x.dtype)), b.constant(100.0, x.dtype))
        return b.cast(x, dtype=dtype)

    def fit(self, x: Value, shape: Sequence[Dim], dtype: DType) -> Value:
        """x in this type: broadcast where it can be, else its sum beside numbers that count."""
        b, shape = self.b, tuple(shape)
        x = self.cast(x, dtype)
        if x.shape == shape:
            return x
        if broadcasts(x.shape, shape) == shape:
            return b.broadcast_to(x, shape=shape)
        is_bool = dtype == bool_
        if x.type.rank:
            axes = tuple(range(x.type.rank))
            x = b.any(x, axes=axes) if is_bool else b.sum(x, axes=axes)
        if not shape:
            return x
        if not self.facts.proved_le(0, product(shape)):
            raise Declined
        places = b.mod(b.iota(length=product(shape)), b.constant(2 if is_bool else 7, i64))
        places = b.reshape(b.cast(places, dtype=dtype), shape=shape)
        if is_bool:
            return b.xor(places, x)
        scale = 0.25 if dtype.is_float else 1
        return b.add(b.mul(places, b.constant(scale, dtype)), x)

    def fitted(self, shape: Sequence[Dim], dtype: DType) -> Value:
        """Any value, made to fit; often one that needs no more than a broadcast."""
        near = [v for v in self.values if broadcasts(v.shape, shape) == tuple(shape)]
        return self.fit(self.among(near) if near and self.flip() else self.value(), shape, dtype)

    def partner(self, x: Value, dtype: DType) -> Value:
        """A value that broadcasts with x, in this dtype."""
        found = [y for y in self.values if broadcasts(x.shape, y.shape) is not None]
        if found and not self.flip(4):
            return self.cast(self.among(found), dtype)
        shape = self.among((x.shape, x.shape[1:], (), tuple(self.among((1, d)) for d in x.shape)))
        return self.fitted(shape, dtype)

    def index(self, size: Dim, shape: Sequence[Dim]) -> Value:
        """Integers in [0, size)."""
        if not self.facts.proved_le(1, size):
            raise Declined
        dtype = self.among((i64, i32))
        return self.b.mod(self.fitted(shape, dtype), self.b.dim_value(value=size, dtype=dtype))

    # ---- growing -----------------------------------------------------------------------------

    def grow(self, steps: int) -> None:
        """Add what `steps` random ops make; those that cannot be made leave nothing."""
        known = by_kind()
        kinds = [kind for kind in known if self.regions or kind not in LEAVES]
        chosen = [kind for kind in kinds for _ in range(OFTEN.get(kind, 1))]
        for _ in range(steps):
            op = self.among(known[self.among(chosen)])
            try:
                made = self.make(op)
            except (Declined, ShapeError):
                continue
            made = made if isinstance(made, tuple) else (made,)
            self.values += [v for v in made if elements(v.shape) <= MOST and v.type.rank <= 5]

    def make(self, op: Op):
        """What a node of this op gives."""
        from .random_steps import STEPS

        ways = [STEPS[op.name]] if op.name in STEPS else []
        if accepted(op) and not ways:
            ways.append(declared)
        if samples_of(op) and (not ways or self.flip(4)):
            ways = [sampled]
        return self.among(ways)(self, op)


def declared(pool: Pool, op: Op):
    """Operands of dtypes that the rule takes, and attributes by their names."""
    first, *others = pool.among(accepted(op))
    x = pool.value(lambda v: v.type.rank or not op.attrs)
    operands = [pool.cast(x, first), *(pool.partner(x, dtype) for dtype in others)]
    if op.name in ("floordiv", "mod") and first.is_integer:
        operands[1] = pool.b.or_(operands[1], pool.number(1, first))  # which is not 0
    return pool.node(op, operands, {name: ATTRIBUTES[name][1](pool, x) for name in op.attrs})


def sampled(pool: Pool, op: Op):
    """As a sample calls it."""
    sample = pool.among(samples_of(op))
    operands = [pool.fitted(o.shape, o.dtype) for o in sample.operands]
    return pool.node(op, operands, sample.attrs)


def _axes(pool: Pool, x: Value) -> tuple[int, ...]:
    first = pool.axis(x)
    more = (axis for axis in range(x.type.rank) if axis != first % x.type.rank and pool.flip())
    return (first, *more)


def _perm(pool: Pool, x: Value) -> tuple[int, ...]:
    return tuple(pool.rng.sample(range(x.type.rank), x.type.rank))


def _flip(pool: Pool, x: Value) -> bool:
    return pool.flip()


# attribute -> (one that any x of rank 2 has, how one is chosen)
ATTRIBUTES: dict[str, tuple] = {
    "axis": (0, Pool.axis),
    "axes": ((0,), _axes),
    "perm": ((1, 0), _perm),
    "keepdims": (False, _flip),
    "descending": (False, _flip),
}


@cache
def accepted(op: Op) -> tuple[tuple[DType, ...], ...]:
    """Dtypes of operands that the op's rule takes where all are of one shape."""
    count = len(op.operands) - op.num_optional
    if op.is_variadic or not count or not op.attrs.keys() <= ATTRIBUTES.keys():
        return ()
    attrs = {name: ATTRIBUTES[name][0] for name in op.attrs}
    found = []
    for first in ALL:
        for other in ALL if count > 1 else (first,):
            dtypes = (first, *(other,) * (count - 1))
            try:
                op.rule(*(TensorType((2, 3), d) for d in dtypes), **attrs)
            except TypeError:
                continue
            found.append(dtypes)
    return tuple(found)


@cache
def samples_of(op: Op) -> tuple:
    """Small samples that ask nothing of their numbers, and lie in a kernel."""
    from ..ops.samples import SAMPLES

    return tuple(
        s
        for s in SAMPLES
        if s.op == op.name and op.kind not in (*LEAVES, "state") and s.operands
        and all(o.make is None and prod(o.shape) <= 400 for o in s.operands)
    )  # fmt: skip


@cache
def by_kind() -> dict[str, tuple[Op, ...]]:
    """The ops that can be made, by their kinds."""
    from .random_steps import STEPS

    found: dict[str, tuple[Op, ...]] = {}
    for op in OPS.values():
        if op.name in STEPS or accepted(op) or samples_of(op):
            found[op.kind] = (*found.get(op.kind, ()), op)
    return found


def broadcasts(*shapes: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """The common shape, None where there is none."""
    try:
        return broadcast_shapes(*shapes)
    except TypeError:
        return None


def known(shape: Sequence[Dim]) -> tuple[int, ...]:
    """The sizes that do not vary."""
    return tuple(d for d in shape if isinstance(d, int))


def elements(shape: Sequence[Dim]) -> int:
    """How many elements there are at most."""
    count = product(shape)
    if not isinstance(count, Expr):
        return int(count)
    return evaluate(count, dict.fromkeys(TensorType(tuple(shape), f32).symbols, LARGEST))


def random_graph(
    rng: Random,
    *,
    islands: int = 1,
    max_nodes: int = 12,
    dtypes: Sequence[DType] = ALL,
    regions: bool = True,
) -> Graph:
    """A graph of `islands` that share nothing but dims, so that one program tries many.

    Without `regions` there are kernels alone: no sub-graphs, and no calls.
    """
    b = Builder("random")
    least = rng.randint(0, 1)
    dims = (b.dim("t", least, least + 7), b.dim("n", 1, None, rng.randint(1, 2)))
    outputs: list[Value] = []
    for island in range(islands):
        pool = Pool(rng, b, dims, regions=regions)
        for number in range(rng.randint(1, 3)):
            name, shape = f"x{island}_{number}", pool.shape()
            if pool.flip(8):  # of a dtype that only weights have
                pool.values.append(pool.cast(pool.weight(shape, pool.among(PACKED)), f32))
                continue
            declare = pool.among((b.input, b.input, b.weight))
            if declare == b.weight:  # which sizes of a call do not determine
                shape = known(shape)
            pool.values.append(declare(name, shape, pool.among(dtypes)))
        # one that says what the dims are
        sizes = b.input(
            f"x{island}", pool.among((dims, dims[::-1], (*dims, 4))), pool.among(dtypes)
        )
        pool.values.append(sizes)
        state = None
        if pool.flip(4):
            state = b.state(f"s{island}", known(pool.shape()), pool.among(dtypes))
            pool.values.append(state)
        pool.grow(rng.randint(1, max_nodes))
        if state is not None:
            b.updates[state.name or ""] = pool.fit(pool.values[-1], state.shape, state.dtype)
        outputs.append(pool.values[-1])
        outputs += [pool.among(pool.values) for _ in range(rng.randint(0, 2))]
    return b.graph(outputs)
