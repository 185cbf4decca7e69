"""Samples of scans: of every combine, along any axis, in every dtype."""

from collections.abc import Iterator

from tilewright.ir.types import bf16, f16, f32, f64, i8, i16, i32, i64, u8

from .sample import Operand, Sample, below, wide

NUMBERS = (f32, f64, bf16, f16, i64, i32, i16, i8, u8)
SHAPES = (((3, 5), 0), ((3, 5), -1), ((1, 1), 1), ((4, 0), 1), ((0, 4), 0), ((2, 3, 5), 1))


def scans() -> Iterator[Sample]:
    # halves are combined in float32, and rounded once; integers wrap in their own width
    functions = {
        "cumsum": lambda x, a: wide(x).cumsum(a).to(x.dtype),
        "cumprod": lambda x, a: wide(x).cumprod(a).to(x.dtype),
        "cummax": lambda x, a: x.cummax(a).values,
        "cummin": lambda x, a: x.cummin(a).values,
        "logcumsumexp": lambda x, a: wide(x).logcumsumexp(a).to(x.dtype),
    }
    for name, function in functions.items():
        for dtype in NUMBERS:
            if name == "logcumsumexp" and not dtype.is_float:
                continue
            make = below(7) if dtype == u8 else None
            for shape, axis in SHAPES if dtype in (f32, i64) else SHAPES[1:2]:
                call = lambda x, f=function, a=axis: f(x, a)  # noqa: E731
                yield Sample(name, (Operand(shape, dtype, make),), call, {"axis": axis})
        if name in ("cummax", "cummin", "logcumsumexp"):
            call = lambda x, f=function: f(x, 1)  # noqa: E731
            yield Sample(name, (Operand((4, 70)),), call, {"axis": 1}, special=True)
        # longer than what is scanned at once
        large = lambda rng, shape, dtype: rng.standard_normal(shape) / 64 + (name == "cumprod")  # noqa: E731, B023
        call = lambda x, f=function: f(x, 1)  # noqa: E731
        yield Sample(name, (Operand((1, 9001), f32, large),), call, {"axis": 1})
