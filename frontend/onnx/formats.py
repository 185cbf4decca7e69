"""Floats of formats that nothing computes in: bytes of codes, which tables turn into numbers.

In a graph that is being imported their dtypes stand for the codes; `packed.widened` takes them out.
"""

from collections.abc import Callable
from functools import lru_cache

import ml_dtypes
import numpy as np

from ...ir.builder import Builder
from ...ir.graph import Value
from ...ir.lazy_arrays import LazyArray
from ...ir.types import DType, f32, i32, i64, u8

Table = Callable[[np.ndarray], Value]  # f32 numbers -> a weight of them

_NAMES = {
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT6E2M3": "float6_e2m3fn",
    "FLOAT6E3M2": "float6_e3m2fn",
    "FLOAT4E2M1": "float4_e2m1fn",
}
# by ONNX's names
FORMATS = {
    theirs: DType(theirs.lower().replace("float", "f"), int(theirs[5]), "float", np.dtype(numpy))
    for theirs, numpy in ((name, getattr(ml_dtypes, n)) for name, n in _NAMES.items())
}
E8M0 = FORMATS["FLOAT8E8M0"]


def is_coded(dtype: DType) -> bool:
    """Whether numbers of a dtype are codes here."""
    return dtype in FORMATS.values()


def codes_of(array: LazyArray) -> LazyArray:
    """An array of such a format as its codes; another as it is."""
    if not is_coded(array.dtype):
        return array
    return LazyArray(array.shape, u8, lambda: array.load().view(np.uint8))


@lru_cache(maxsize=16)
def numbers(dtype: DType) -> np.ndarray:
    """What each code stands for, as float32."""
    return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy).astype(np.float32)


def decoded(b: Builder, codes: Value, dtype: DType, table: Table) -> Value:
    """Codes (u8) as the numbers (f32) that they stand for."""
    return b.gather(table(numbers(dtype)), b.cast(codes, dtype=i64), axis=0)


def encoded(b: Builder, x: Value, dtype: DType, table: Table) -> Value:
    """The codes (u8) of the numbers nearest to x (f32), ties to even, at most the largest."""
    every = numbers(dtype)
    upwards = every[: 1 << dtype.bits - 1] if dtype != E8M0 else every
    upwards = upwards[np.isfinite(upwards)].astype(np.float64)
    middles = ((upwards[1:] + upwards[:-1]) / 2).astype(np.float32)
    after = np.nextafter(middles, np.float32(np.inf))
    stays = np.arange(len(middles)) % 2 == 0  # the code below a middle is even, and takes it
    code = _count(b, b.abs(x), table(np.where(stays, after, middles)))
    if dtype != E8M0:
        code = b.add(code, _sign(b, x, code, dtype))
    nan = int(np.array(np.nan, np.float32).astype(dtype.numpy).view(np.uint8))
    return b.cast(b.where(b.isnan(x), b.constant(nan, i32), code), dtype=u8)


def _sign(b: Builder, x: Value, code: Value, dtype: DType) -> Value:
    """What the code of a number gets for its sign; 0 where the format has no negative zero."""
    zero = b.constant(0.0, x.dtype)
    is_negative = b.lt(x, zero)
    if numbers(dtype)[1 << dtype.bits - 1] == 0:
        tiny = b.and_(b.eq(x, zero), b.lt(b.reciprocal(x), zero))
        is_negative = b.or_(is_negative, tiny)
    else:
        is_negative = b.and_(is_negative, b.gt(code, b.constant(0, i32)))
    return b.where(is_negative, b.constant(1 << dtype.bits - 1, i32), b.constant(0, i32))


def power_of_two(b: Builder, x: Value, mode: str, saturate: bool, table: Table) -> Value:
    """The power of two (f32) that |x| is as E8M0, rounded up, down or to the nearest, ties up.

    From 2^-127 to 2^127; what is past it is NaN without `saturate`, as infinity always is.
    """
    powers = numbers(E8M0)[:-1]
    starts = {
        "up": np.nextafter(powers[:-1], np.float32(np.inf)),
        "down": powers[1:],
        "nearest": powers[:-1] * np.float32(1.5),
    }
    if mode not in starts:
        raise ValueError(f"round_mode {mode!r}")
    size = b.abs(x)
    code = _count(b, size, table(starts[mode]))
    power = b.gather(table(powers), b.cast(code, dtype=i64), axis=0)
    past = b.constant(float(powers[-1] * (1.5 if mode == "nearest" else 1)), f32)
    is_past = {"up": b.gt, "down": b.gt, "nearest": b.ge}[mode](size, past)
    if saturate or mode == "down":
        is_past = b.eq(size, b.constant(float("inf"), f32))
    nan = b.constant(float("nan"), f32)
    return b.where(b.or_(is_past, b.isnan(x)), nan, power)


def _count(b: Builder, x: Value, starts: Value) -> Value:
    """How many of `starts` are at most x, as i32."""
    reached = b.ge(b.reshape(x, shape=(*x.shape, 1)), starts)
    return b.sum(b.cast(reached, dtype=i32), axes=(-1,))
