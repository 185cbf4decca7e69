"""Samples of regions, and of results whose sizes depend on data."""

import numpy as np
import torch

from tilewright.ir.builder import Builder
from tilewright.ir.graph import Graph
from tilewright.ir.host_functions import register_function
from tilewright.ir.types import TensorType, bool_, f16, f32, f64, i32, i64

from .sample import Operand, Sample


def function(name, types, body) -> Graph:
    """A sub-graph: `body` gets a Builder and values of these types, and gives its results."""
    b = Builder(name)
    return b.graph(body(b, *(b.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types))))


def conds():
    for flag in (True, False):
        for shape, dtype in [((3, 5), f32), ((1,), f64), ((0, 2), f16)]:
            type = TensorType(shape, dtype)
            then = function(f"sum_{flag}", [type, type], lambda b, x, y: [b.add(x, y), b.neg(y)])
            swap = function("swap", [type, type], lambda b, x, y: [y, x])
            operands = (_flag(flag), Operand(shape, dtype), Operand(shape, dtype))
            yield Sample(
                "cond",
                operands,
                lambda p, x, y: (x + y, -y) if p else (y, x),
                {"then": then, "otherwise": swap},
            )


def whiles():
    """From a count on, doubles x and swaps it with y."""
    for count, limit in [(0, 5), (3, 4), (2, 2)]:
        types = [TensorType((), i64), *[TensorType((4, 3), f32)] * 2, TensorType((), i64)]
        condition = function("less", types, lambda b, i, x, y, n: [b.lt(i, n)])
        body = function(
            f"twice_{limit - count}",
            types,
            lambda b, i, x, y, n: [b.add(i, b.constant(1, i64)), y, b.add(x, x)],
        )
        numbers = [Operand((), i64, lambda *_, n=n: n) for n in (count, limit)]
        x = Operand((4, 3))

        def expected(i, x, y, n):
            while i < n:
                i, x, y = i + 1, y, x + x
            return i, x, y

        attrs = {"carried": 3, "condition": condition, "body": body}
        yield Sample("while_loop", (numbers[0], x, x, numbers[1]), expected, attrs)


def loops():
    """The carried value takes in x, scaled; stacked are what it was before, and twice x."""
    for count in (0, 1, 6):
        for dtype in (f32, i32):
            row = TensorType((3,), dtype)
            body = function(
                "step",
                [row, row, TensorType((), dtype)],
                lambda b, c, x, k: [b.add(c, b.mul(x, k)), c, b.add(x, x)],
            )

            def expected(c, x, k):
                rows = []
                for each in x:
                    rows.append(c)
                    c = c + each * k
                return c, torch.stack(rows) if rows else x, x + x

            operands = (Operand((3,), dtype), Operand((count, 3), dtype), Operand((), dtype))
            attrs = {"carried": 1, "stacked": 1, "count": count, "body": body}
            yield Sample("scan", operands, expected, attrs)


def calls():
    register_function("samples.split", lambda x: (x[:, :1].copy(), x * 2))
    results = (TensorType((3, 1), f32), TensorType((3, 2), f32))
    yield Sample(
        "call",
        (Operand((3, 2)),),
        lambda x: (x[:, :1], x * 2),
        {"function": "samples.split", "results": results},
    )
    for number, (shape, dtype) in enumerate(
        [((7,), i32), ((3, 4), bool_), ((2, 0), f32), ((5, 1, 2), f16), ((), f32)]
    ):
        yield Sample(
            "nonzero", (Operand(shape, dtype),), torch.nonzero, {"binds": (f"found{number}",)}
        )

    for number, shape in enumerate([(), (1, 1)]):
        size = Operand(shape, i64, lambda _, shape, __: np.full(shape, 3))
        yield Sample("read_dim", (size,), lambda x: x.reshape(()), {"binds": (f"size{number}",)})


def _flag(value: bool) -> Operand:
    return Operand((), bool_, lambda *_: value)
