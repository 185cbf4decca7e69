"""Float8 as bytes: what reads and writes it in integer arithmetic.

Triton's own conversions know float8 on some targets, from some dtypes and in some roundings. These
are the same on all of them, and give what codegen/cpp/tw.h gives.
"""

# emitted before the kernels that use them; `x` is a float32
FLOAT8 = """

@triton.jit
def from_f8e5m2(byte):
    # the high byte of a half
    return (byte.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def to_f8e5m2(x):
    # to nearest even; from half a step over 57344 on infinity; a NaN stays one
    bits = x.to(tl.int32, bitcast=True)
    sign, size = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    # adding 128 makes the unit of the sum's last place 2^-16, the step of subnormals
    small = (tl.abs(x) + 128.0).to(tl.int32, bitcast=True) - 0x43000000
    normal = (size - 0x38000000 + 0xFFFFF + ((size >> 21) & 1)) >> 21
    large = tl.where(size > 0x7F800000, 0x7F, 0x7C)
    value = tl.where(size >= 0x47800000, large, tl.where(size < 0x38800000, small, normal))
    return (sign | value).to(tl.uint8)


@triton.jit
def from_f8e4m3(byte):
    # as a half, whose exponent counts from 15 in place of 7; no infinity, and one NaN
    half = ((byte & 0x80).to(tl.int16) << 8) | ((byte & 0x7F).to(tl.int16) << 7)
    value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((byte & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def to_f8e4m3(x):
    # to nearest even; over 448 it stays 448; a NaN stays one
    bits = x.to(tl.int32, bitcast=True)
    sign, size = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    # adding 16384 makes the unit of the sum's last place 2^-9, the step of subnormals
    small = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    normal = (size - 0x3C000000 + 0x7FFFF + ((size >> 20) & 1)) >> 20
    large = tl.where(size > 0x7F800000, 0x7F, 0x7E)
    value = tl.where(size > 0x43E00000, large, tl.where(size < 0x3C800000, small, normal))
    return (sign | value).to(tl.uint8)
"""
