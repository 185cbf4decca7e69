"""Float8 as bytes: what reads and writes it in integer arithmetic.

Triton's own conversions know float8 on some targets, from some dtypes and in some roundings. These
are the same on all of them, and give what codegen/cpp/tw.h gives. Where the hardware converts as
they do, `NATIVE` takes their place.
"""

# emitted before the kernels that use them; `x` is a float32
FLOAT8 = """

@triton.jit
def to_float8(x, unit: tl.constexpr, unit_bits: tl.constexpr, bias: tl.constexpr,
              shift: tl.constexpr, end: tl.constexpr, top: tl.constexpr):
    # to nearest even, from the bits `end` on `top`; a NaN stays one
    bits = x.to(tl.int32, bitcast=True)
    sign, size = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    # adding the unit makes the last place of the sum the step of subnormals
    small = (tl.abs(x) + unit).to(tl.int32, bitcast=True) - unit_bits
    normal = (size - bias + ((1 << (shift - 1)) - 1) + ((size >> shift) & 1)) >> shift
    large = tl.where(size > 0x7F800000, 0x7F, top)
    value = tl.where(size >= end, large, tl.where(size < bias + 0x800000, small, normal))
    return (sign | value).to(tl.uint8)


@triton.jit
def from_f8e5m2(byte):
    # the high byte of a half
    return (byte.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def to_f8e5m2(x):
    # steps of 2^-16; from half a step over 57344 on infinity
    return to_float8(x, 128.0, 0x43000000, 0x38000000, 21, 0x47800000, 0x7C)


@triton.jit
def from_f8e4m3(byte):
    # as a half, whose exponent counts from 15 in place of 7; no infinity, and one NaN
    half = ((byte & 0x80).to(tl.int16) << 8) | ((byte & 0x7F).to(tl.int16) << 7)
    value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((byte & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def to_f8e4m3(x):
    # steps of 2^-9; over 448 it stays 448
    return to_float8(x, 16384.0, 0x46800000, 0x3C000000, 20, 0x43E00001, 0x7E)
"""

# targets with arithmetic in f8e4m3 round to nearest even and saturate
NATIVE = """

@triton.jit
def from_f8e4m3(byte):
    return byte.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def to_f8e4m3(x):
    return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
"""
