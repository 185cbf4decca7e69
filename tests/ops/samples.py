"""One table of what each op is called with, and the torch expression it must agree with.

A sample is shapes, dtypes and attributes; arrays are made from it. Sizes include 1, odd ones, and
0 where an op allows it; floats include infinities and NaN where `special` says that they matter.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tilewright.ir.builder import Builder
from tilewright.ir.graph import Graph
from tilewright.ir.ops.sampling import gumbel
from tilewright.ir.types import DTYPES, DType, bf16, bool_, f16, f32, f64, i32, i64

FLOATS = (f32, f64, bf16, f16)
INTEGERS = (i64, i32)
Maker = Callable[[np.random.Generator, tuple[int, ...], DType], np.ndarray]


@dataclass(frozen=True)
class Operand:
    """One operand; `make` draws it where standard-normal numbers will not do."""

    shape: tuple[int, ...]
    dtype: DType = f32
    make: Maker | None = None


@dataclass(frozen=True)
class Sample:
    """A call of an op and what torch says of it. `expected` gets tensors, gives one or a tuple."""

    op: str
    operands: tuple[Operand, ...]
    expected: Callable[..., Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    special: bool = False  # also try infinities, NaN, zeros and large numbers
    exact: bool = False  # results must be equal to the bit

    @property
    def id(self) -> str:
        shown = "-".join(f"{o.dtype}{list(o.shape)}".replace(" ", "") for o in self.operands)
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.op}-{shown}" + (f"-{attrs}" if attrs else "")

    def graph(self) -> Graph:
        """A graph of this one call."""
        b = Builder(self.op)
        values = []
        for i, operand in enumerate(self.operands):
            declare = b.state if self.op == "kv_append" and i == 0 else b.input
            values.append(declare(f"x{i}", operand.shape, operand.dtype))
        out = getattr(b, self.op)(*values, **self.attrs)
        return b.graph(out if isinstance(out, tuple) else [out])

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Operands, rounded to their dtypes."""
        arrays = []
        for operand in self.operands:
            make = operand.make or _normal
            array = make(rng, operand.shape, operand.dtype)
            if self.special and operand.dtype.is_float:
                array = with_special(rng, array)
            arrays.append(np.asarray(array).astype(operand.dtype.numpy))
        return arrays


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    if dtype is bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return rng.integers(-20, 20, shape)
    return rng.standard_normal(shape)


def with_special(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """`array` with a third of its elements made infinite, NaN, zero or large."""
    values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e4, -1e4, 0.5, -0.5])
    chosen = rng.choice(values, array.shape)
    return np.where(rng.random(array.shape) < 0.34, chosen, array)


def positive(rng, shape, dtype):
    return np.abs(rng.standard_normal(shape)) + 0.1


def nonzero(rng, shape, dtype):
    if dtype.is_float:
        return positive(rng, shape, dtype) * rng.choice([-1, 1], shape)
    return rng.integers(1, 9, shape) * rng.choice([-1, 1], shape)


def below(bound: int) -> Maker:
    return lambda rng, shape, dtype: rng.integers(0, bound, shape)


def distinct(rng, shape, dtype):
    """Distinct numbers, so that the place of the largest is the same for everyone."""
    count = int(np.prod(shape, dtype=int))
    return (rng.permutation(count).reshape(shape) - count // 2) / 4


# ---- elementwise ---------------------------------------------------------------------------

UNARY = {
    "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "expm1": torch.expm1,
    "exp2": torch.exp2, "log2": torch.log2, "log10": torch.log10,
    "log": torch.log, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh,
    "erf": torch.erf, "sigmoid": torch.sigmoid, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "trunc": torch.trunc, "relu": torch.relu, "silu": F.silu,
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "isnan": torch.isnan,
}  # fmt: skip
EXACT = frozenset(
    "neg abs floor ceil round trunc relu isnan eq ne lt le gt ge and or xor not".split()
)
# infinity minus infinity and the like inside a formula: torch takes care of them, we promise less
FINITE = frozenset(("gelu", "gelu_tanh", "silu"))

BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "minimum": torch.minimum, "maximum": torch.maximum,
}  # fmt: skip
COMPARE = {
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
LOGIC = {
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
}  # fmt: skip

ONE = ((7,), (3, 1, 5), (), (0, 4))
PAIRS = (((7,), (7,)), ((3, 1, 4), (5, 4)), ((), (2, 3)), ((0, 4), (1, 4)))


def elementwise() -> Iterator[Sample]:
    for name, function in UNARY.items():
        for dtype in FLOATS:
            for shape in ONE[: 4 if dtype is f32 else 1]:
                yield Sample(
                    name, (Operand(shape, dtype),), function,
                    special=name not in FINITE, exact=name in EXACT,
                )  # fmt: skip
    for name in ("neg", "abs"):
        yield Sample(name, (Operand((5,), i64),), UNARY[name], exact=True)
    for name, function in BINARY.items():
        dtypes = FLOATS if name == "div" else (*FLOATS, *INTEGERS)
        for dtype in dtypes:
            for one, two in PAIRS[: 4 if dtype is f32 else 2]:
                yield Sample(
                    name, (Operand(one, dtype), Operand(two, dtype)), function, special=True
                )
    for name, function in COMPARE.items():
        for dtype in (f32, bf16, i64):
            for one, two in PAIRS:
                operands = Operand(one, dtype), Operand(two, dtype)
                yield Sample(name, operands, function, special=True, exact=True)
    for name, function in LOGIC.items():
        for dtype in (bool_, *INTEGERS):
            yield Sample(name, (Operand((3, 4), dtype), Operand((4,), dtype)), function, exact=True)
    for dtype in (bool_, i64):
        yield Sample("not", (Operand((6,), dtype),), torch.bitwise_not, exact=True)
    for dtype in (f32, f64, *INTEGERS):
        divisor = Operand((4,), dtype, nonzero)
        floor = lambda x, y: torch.div(x, y, rounding_mode="floor")  # noqa: E731
        yield Sample("floordiv", (Operand((3, 4), dtype), divisor), floor)
        yield Sample("mod", (Operand((3, 4), dtype), divisor), torch.remainder)
    for dtype in FLOATS:
        yield Sample("pow", (Operand((3, 4), dtype, positive), Operand((4,), dtype)), torch.pow)
    for dtype in (*FLOATS, i64):
        condition = Operand((3, 1), bool_)
        operands = condition, Operand((3, 4), dtype), Operand((4,), dtype)
        yield Sample("where", operands, torch.where, special=True, exact=True)
    for source in (f32, f64, bf16, f16, i64, i32, bool_):
        for target in (f32, f64, bf16, f16, i64, i32, bool_):
            to = TO_TORCH[target.name]
            yield Sample(
                "cast", (Operand((3, 5), source),), lambda x, to=to: x.to(to),
                {"dtype": target}, exact=True,
            )  # fmt: skip


TO_TORCH = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "bool": torch.bool, "i8": torch.int8,
    "i16": torch.int16, "u8": torch.uint8,
}  # fmt: skip

# ---- sources and views ---------------------------------------------------------------------


def sources() -> Iterator[Sample]:
    for value, dtype in ((1.5, f32), (0.1, bf16), (3, i64), (True, bool_), (float("inf"), f16)):
        to = TO_TORCH[dtype.name]
        for shape in ((), (2, 3), (0,)):
            make = lambda value=value, shape=shape, to=to: torch.full(shape, value, dtype=to)  # noqa: E731
            attrs = {"value": value, "shape": shape, "dtype": dtype}
            yield Sample("full", (), make, attrs, exact=True)
    for length, start, step, dtype in (
        (5, 0, 1, i64),
        (4, 7, -2, i32),
        (0, 1, 1, i64),
        (3, 2, 3, f32),
    ):
        make = lambda n=length, a=start, s=step, d=dtype: (  # noqa: E731
            torch.arange(n) * s + a
        ).to(TO_TORCH[d.name])
        attrs = {"length": length, "start": start, "step": step, "dtype": dtype}
        yield Sample("iota", (), make, attrs, exact=True)
    yield Sample("dim_value", (), lambda: torch.tensor(12), {"value": 12}, exact=True)


def views() -> Iterator[Sample]:
    for dtype in (f32, bf16, i64, bool_):
        x = (Operand((2, 3, 4), dtype),)
        cases = [
            ("reshape", {"shape": (6, 4)}, lambda v: v.reshape(6, 4)),
            ("reshape", {"shape": (2, 1, 12)}, lambda v: v.reshape(2, 1, 12)),
            ("transpose", {"perm": (2, 0, 1)}, lambda v: v.permute(2, 0, 1)),
            ("broadcast_to", {"shape": (5, 2, 3, 4)}, lambda v: v.expand(5, 2, 3, 4)),
            ("slice", {"axis": 1, "start": 1, "stop": 3}, lambda v: v[:, 1:3]),
            ("slice", {"axis": -1, "start": 0, "stop": 4, "step": 3}, lambda v: v[..., 0:4:3]),
            ("slice", {"axis": 0, "start": 1, "stop": 1}, lambda v: v[1:1]),
        ]
        for name, attrs, function in cases:
            yield Sample(name, x, function, attrs, exact=True)
        parts = (Operand((2, 3), dtype), Operand((2, 0), dtype), Operand((2, 1), dtype))
        yield Sample("concat", parts, lambda *p: torch.cat(p, 1), {"axis": 1}, exact=True)
        value = True if dtype is bool_ else 2
        attrs = {"axis": 1, "before": 1, "after": 2, "value": value}
        padded = lambda v, value=value: F.pad(v, (0, 0, 1, 2), value=value)  # noqa: E731
        yield Sample("pad", x, padded, attrs, exact=True)


def gathers() -> Iterator[Sample]:
    for dtype in (f32, bf16, i64):
        for index in (i64, i32):
            ids = Operand((2, 3), index, below(5))
            yield Sample(
                "gather", (Operand((5, 4), dtype), ids), lambda x, i: x[i.long()],
                {"axis": 0}, exact=True,
            )  # fmt: skip
        ids = Operand((3,), i64, below(4))
        yield Sample(
            "gather",
            (Operand((2, 4, 5), dtype), ids),
            lambda x, i: x[:, i],
            {"axis": 1},
            exact=True,
        )
        ids = Operand((2, 3, 5), i64, below(4))
        yield Sample(
            "gather_elements", (Operand((2, 4, 5), dtype), ids),
            lambda x, i: torch.gather(x, 1, i), {"axis": 1}, exact=True,
        )  # fmt: skip
    for index in (i64, i32):
        ids = Operand((2, 3), index, lambda rng, shape, dtype: rng.integers(-5, 5, shape))
        attrs = {"size": 5, "wraps": True}
        yield Sample(
            "check_index", (ids,), lambda i: torch.where(i < 0, i + 5, i), attrs, exact=True
        )


# ---- reductions ----------------------------------------------------------------------------


def reductions() -> Iterator[Sample]:
    # sums of halves are made in float32, as ours are, and rounded once
    functions = {
        "sum": lambda x, a, k: wide(x).sum(a, k).to(x.dtype),
        "mean": lambda x, a, k: wide(x).mean(a, k).to(x.dtype),
        "max": lambda x, a, k: x.amax(a, k),
        "min": lambda x, a, k: x.amin(a, k),
    }
    for name, function in functions.items():
        for dtype in (*FLOATS, *(() if name == "mean" else INTEGERS)):
            for axes, keepdims in (((-1,), False), ((0, 2), True), ((1,), True)):
                attrs = {"axes": axes, "keepdims": keepdims}
                call = lambda x, f=function, a=axes, k=keepdims: f(x, a, k)  # noqa: E731
                yield Sample(name, (Operand((3, 5, 4), dtype),), call, attrs)
    empty = (Operand((0, 3)),)
    yield Sample("sum", empty, lambda x: x.sum(0), {"axes": (0,)})
    yield Sample("mean", empty, lambda x: x.mean(0), {"axes": (0,)})
    yield Sample("max", empty, lambda x: torch.full((3,), -math.inf), {"axes": (0,)})
    yield Sample("min", empty, lambda x: torch.full((3,), math.inf), {"axes": (0,)})
    yield Sample("max", (Operand((4, 6)),), lambda x: x.amax(1), {"axes": (1,)}, special=True)
    yield Sample("min", (Operand((4, 6)),), lambda x: x.amin(1), {"axes": (1,)}, special=True)
    for dtype in (f32, f64, i64):
        yield Sample(
            "prod", (Operand((4, 3), dtype, nonzero),), lambda x: x.prod(0), {"axes": (0,)}
        )
    for name in ("any", "all"):
        for shape in ((3, 4), (0, 4)):
            call = lambda x, name=name: getattr(x, name)(0)  # noqa: E731
            yield Sample(name, (Operand(shape, bool_),), call, {"axes": (0,)}, exact=True)
    for name in ("argmax", "argmin"):
        for dtype in (f32, bf16, i64):
            for keepdims in (False, True):
                call = lambda x, n=name, k=keepdims: getattr(x, n)(-1, keepdim=k)  # noqa: E731
                attrs = {"axis": -1, "keepdims": keepdims}
                yield Sample(name, (Operand((3, 7), dtype, distinct),), call, attrs, exact=True)
    first = lambda rng, shape, dtype: np.array([[1.0, 3, 3, 2], [np.nan, 4, np.nan, 4]])  # noqa: E731
    expected = lambda x: torch.tensor([1, 0])  # noqa: E731  the first of equals; NaN is largest
    yield Sample("argmax", (Operand((2, 4), f32, first),), expected, {"axis": -1}, exact=True)
    for dtype in (f32, f64, i64):
        for axis in (0, -1):
            call = lambda x, a=axis: x.cumsum(a)  # noqa: E731
            yield Sample("cumsum", (Operand((3, 5), dtype),), call, {"axis": axis})


def wide(x: torch.Tensor) -> torch.Tensor:
    """float32 for halves."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


# ---- contractions, composites, attention -----------------------------------------------------


def contractions() -> Iterator[Sample]:
    for dtype in FLOATS:
        for x, w, transposed in (
            ((3, 4), (4, 5), False),
            ((2, 3, 4), (5, 4), True),
            ((2, 1, 3, 4), (5, 4, 6), False),
            ((1, 7), (1, 7), True),
            ((0, 4), (4, 2), False),
        ):

            def product(x, w, transposed=transposed):
                return wide(x) @ (wide(w).mT if transposed else wide(w))

            attrs = {"transpose_w": transposed}
            call = lambda x, w, f=product: f(x, w).to(x.dtype)  # noqa: E731
            yield Sample("matmul", (Operand(x, dtype), Operand(w, dtype)), call, attrs)
    activations = {
        "silu": F.silu, "gelu": F.gelu, "gelu_tanh": UNARY["gelu_tanh"], "relu": torch.relu,
        "sigmoid": torch.sigmoid,
    }  # fmt: skip
    for name, function in activations.items():
        call = lambda x, g, u, f=function: f(x @ g.T) * (x @ u.T)  # noqa: E731
        operands = Operand((2, 3, 4)), Operand((6, 4)), Operand((6, 4))
        yield Sample("gated_linear", operands, call, {"activation": name})


def composites() -> Iterator[Sample]:
    for dtype in FLOATS:
        for axis in (-1, 0):
            call = lambda x, a=axis: torch.softmax(wide(x), a).to(x.dtype)  # noqa: E731
            yield Sample("softmax", (Operand((3, 6), dtype),), call, {"axis": axis})
        x, w = Operand((2, 3, 8), dtype), Operand((8,), dtype)
        for eps in (1e-6, 1e-2):
            call = lambda x, w, e=eps: F.rms_norm(wide(x), (8,), wide(w), e).to(x.dtype)  # noqa: E731
            yield Sample("rms_norm", (x, w), call, {"eps": eps})
            call = lambda x, w, c, e=eps: F.layer_norm(  # noqa: E731
                wide(x), (8,), wide(w), wide(c), e
            ).to(x.dtype)
            yield Sample("layer_norm", (x, w, w), call, {"eps": eps})
    for cos in ((5, 4), (2, 1, 5, 4), (4,)):
        operands = Operand((2, 3, 5, 4)), Operand(cos), Operand(cos)
        yield Sample("rope", operands, _rope)


def _rope(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


def attentions() -> Iterator[Sample]:
    cases: list[dict[str, Any]] = [
        {},
        {"is_causal": True},
        {"is_causal": True, "window": 2},
        {"softcap": 2.0},
        {"is_causal": True, "softcap": 5.0, "window": 3},
    ]
    for heads, kv_heads, queries, keys in ((4, 2, 5, 5), (3, 1, 2, 7), (2, 2, 1, 4)):
        q = Operand((2, heads, queries, 8))
        k, v = Operand((2, kv_heads, keys, 8)), Operand((2, kv_heads, keys, 6))
        for case in cases:
            attrs = {"scale": 0.3, **case}
            call = lambda q, k, v, m=None, a=attrs: _attention(q, k, v, m, **a)  # noqa: E731
            yield Sample("attention", (q, k, v), call, attrs)
            for mask in (Operand((queries, keys), bool_), Operand((2, 1, 1, keys), f32)):
                yield Sample("attention", (q, k, v, mask), call, attrs)


def _attention(q, k, v, mask=None, *, scale, is_causal=False, window=None, softcap=None):
    group = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = q @ k.mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    queries, keys = scores.shape[-2:]
    at = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if is_causal:
        seen = seen & (key <= at)
    if window is not None:
        seen = seen & (key > at - window)
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & mask
    elif mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)
    return torch.nan_to_num(weights, nan=0.0) @ v  # a query that sees nothing gives 0


def paging() -> Iterator[Sample]:
    slots = lambda rng, shape, dtype: np.array([9, 2, -1, 0])  # noqa: E731
    for dtype in (f32, bf16):
        kv, new = Operand((3, 2, 2, 4, 8), dtype), Operand((4, 2, 8), dtype)
        yield Sample("kv_append", (kv, new, new, Operand((4,), i32, slots)), _append, exact=True)
    table = lambda rng, shape, dtype: np.array([[3, 1], [0, 4], [2, 2]])  # noqa: E731
    starts = lambda rng, shape, dtype: np.array([0, 3, 4, 4])  # noqa: E731
    lens = lambda rng, shape, dtype: np.array([6, 1, 0])  # noqa: E731
    metadata = (
        Operand((3, 2), i32, table), Operand((4,), i32, starts), Operand((3,), i32, lens),
    )  # fmt: skip
    for case in ({}, {"window": 2}, {"softcap": 3.0}):
        attrs = {"scale": 0.4, **case}
        call = lambda *a, attrs=attrs: _paged(*a, **attrs)  # noqa: E731
        operands = Operand((4, 4, 8)), Operand((5, 2, 2, 4, 8)), *metadata
        yield Sample("paged_attention", operands, call, attrs)


def _append(kv, k, v, slots):
    kv = kv.clone()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            kv[slot // 4, 0, :, slot % 4] = k[row]
            kv[slot // 4, 1, :, slot % 4] = v[row]
    return kv


def _paged(q, kv, table, starts, lens, **attrs):
    rows = []
    for s, context in enumerate(lens.tolist()):
        first, last = starts[s], starts[s + 1]
        if first == last:
            continue
        cached = [kv[table[s, at // 4], :, :, at % 4] for at in range(context)]
        k, v = torch.stack(cached, 2)  # [2, G, context, D]
        one = _attention(q[first:last].transpose(0, 1), k, v, is_causal=True, **attrs)
        rows.append(one.transpose(0, 1))
    return torch.cat(rows)


# ---- choosing tokens -----------------------------------------------------------------------


def sampling() -> Iterator[Sample]:
    def given(*values):
        return lambda rng, shape, dtype: np.array(values)

    parameters = (
        Operand((4,), f32, given(0.0, 1.0, 0.7, 1.3)),
        Operand((4,), i32, given(0, 0, 3, 5)),
        Operand((4,), f32, given(1.0, 1.0, 1.0, 0.6)),
        Operand((4,), i64, given(1, 2, 3, 2**40 + 5)),
        Operand((4,), i64, given(0, 1, 2, 3)),
    )
    yield Sample("sample", (Operand((4, 50), f32, distinct), *parameters), _sampled, exact=True)


def _sampled(logits, temperature, top_k, top_p, seed, step):
    rows = []
    for r in range(len(logits)):
        if temperature[r] == 0:
            rows.append(int(logits[r].argmax()))
            continue
        scaled = (logits[r] / temperature[r]).double()
        if 0 < top_k[r] < len(scaled):
            least = scaled.topk(int(top_k[r])).values[-1]
            scaled = scaled.masked_fill(scaled < least, -math.inf)
        if top_p[r] < 1:
            ordered, places = scaled.softmax(0).sort(descending=True)
            count = int((ordered.cumsum(0) < float(top_p[r])).sum()) + 1
            kept = torch.zeros(len(scaled), dtype=torch.bool)
            kept[places[:count]] = True
            scaled = scaled.masked_fill(~kept, -math.inf)
        noise = torch.from_numpy(gumbel(int(seed[r]), int(step[r]), len(scaled)))
        rows.append(int((scaled + noise).argmax()))
    return torch.tensor(rows, dtype=torch.int32)


SAMPLES: tuple[Sample, ...] = tuple(
    sample
    for family in (
        elementwise, sources, views, gathers, reductions, contractions, composites, attentions,
        paging, sampling,
    )
    for sample in family()
)  # fmt: skip

__all__ = ["DTYPES", "SAMPLES", "Operand", "Sample", "with_special"]
