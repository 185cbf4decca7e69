"""Samples of ops on single elements: elementwise ops, sources, views and gathers."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from tilewright.ir.types import bf16, bool_, f16, f32, f64, i32, i64

from .sample import FLOATS, INTEGERS, TO_TORCH, Operand, Sample, below, nonzero, positive

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
            ("window", {"axis": 1, "size": 2}, lambda v: v.unfold(1, 2, 1)),
            ("window", {"axis": -1, "size": 3, "step": 2}, lambda v: v.unfold(-1, 3, 2)),
            ("window", {"axis": 0, "size": 2, "step": 5}, lambda v: v.unfold(0, 2, 5)),
            (
                "window",
                {"axis": 2, "size": 2, "dilation": 2},
                lambda v: torch.stack((v[..., :2], v[..., 2:]), -1),
            ),
        ]
        for name, attrs, function in cases:
            yield Sample(name, x, function, attrs, exact=True)
        parts = (Operand((2, 3), dtype), Operand((2, 0), dtype), Operand((2, 1), dtype))
        yield Sample("concat", parts, lambda *p: torch.cat(p, 1), {"axis": 1}, exact=True)
        value = True if dtype is bool_ else 2
        attrs = {"axis": 1, "before": 1, "after": 2, "value": value}
        padded = lambda v, value=value: F.pad(v, (0, 0, 1, 2), value=value)  # noqa: E731
        yield Sample("pad", x, padded, attrs, exact=True)

    one = Operand((1, 1))
    for name, attrs, function in (
        ("reshape", {"shape": (1,)}, lambda v: v.reshape(1)),
        ("transpose", {"perm": (1, 0)}, lambda v: v.T),
        ("broadcast_to", {"shape": (3, 1)}, lambda v: v.expand(3, 1)),
        ("slice", {"axis": 1, "start": 0, "stop": 1}, lambda v: v),
        (
            "pad",
            {"axis": 0, "before": 1, "after": 0, "value": 3},
            lambda v: F.pad(v, (0, 0, 1, 0), value=3),
        ),
    ):
        yield Sample(name, (one,), function, attrs, exact=True)
    yield Sample("concat", (one, one), lambda *p: torch.cat(p, 0), {"axis": 0}, exact=True)


def gathers() -> Iterator[Sample]:
    one, place = Operand((1, 1)), Operand((1, 1), i64, below(1))
    yield Sample("gather", (one, place), lambda x, i: x[i], {"axis": 0}, exact=True)
    yield Sample("gather_elements", (one, place), lambda x, i: x, {"axis": 1}, exact=True)
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
