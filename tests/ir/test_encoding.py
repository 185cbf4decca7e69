"""Encodings: packed, and each element found where `place` says."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate, symbol
from tilewright.ir.encoding import ROWS, Encoding
from tilewright.ir.errors import ShapeError
from tilewright.ir.evaluate import evaluate as run
from tilewright.ir.types import DTYPES, TensorType, bf16, f32, i2, i4, i8, i32, u2, u4, u8

PACKED = (i4, u4, i2, u2)
SHAPES = ((), (1,), (7,), (0,), (3, 0), (3, 5), (2, 3, 33), (2, 40, 5))


def codes(shape, dtype, seed=0) -> np.ndarray:
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
    numbers = np.random.default_rng(seed).integers(low, low + 2**dtype.bits, shape)
    return numbers.astype(dtype.numpy)


def encodings(type: TensorType) -> list[Encoding]:
    found = [ROWS]
    if len(type.shape) >= 2 and not type.dtype.is_packed:
        found += [Encoding(order) for order in ("panel32", "panel32i", "panel32p", "panel32q")]
    return found


@pytest.mark.parametrize("dtype", [*PACKED, bf16, i8], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_lie_where_they_are_said_to(shape, dtype):
    type = TensorType(shape, dtype)
    array = codes(shape, dtype if dtype.is_integer else i8).astype(dtype.numpy)
    index = tuple(symbol(f"i{axis}") for axis in range(len(shape)))
    for encoding in encodings(type):
        packed, expected = encoding.pack(array, dtype), encoding.stored(type)
        assert (packed.shape, packed.dtype) == (expected.shape, expected.dtype.numpy)
        assert packed.nbytes == encoding.nbytes(type)
        stored, (offset, bit) = packed.reshape(-1), encoding.place(type, index)
        for at in itertools.product(*map(range, shape)):
            values = {f"i{axis}": i for axis, i in enumerate(at)}
            element = stored[evaluate(offset, values)]
            if dtype.is_packed:
                element = dtype.element(int(element) >> evaluate(bit, values))
            assert element == array[at]


def test_neighbours_share_a_byte_low_bits_first():
    array = np.arange(32, dtype=np.uint8) % 16
    assert list(ROWS.pack(array, u4)[:2]) == [0x10, 0x32]
    assert list(ROWS.pack(np.array([-1, 3, -8]), i4)) == [0x3F, 0x08]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_sizes_in_bytes(dtype):
    """Of one element alone a byte at least; of rows, whole bytes each."""
    t = symbol("t")
    assert dtype.nbytes >= 1
    for count in (0, 1, 2, 3, 8, 9):
        assert dtype.size(count) == -(-count * dtype.bits // 8)
        assert TensorType((count,), dtype).nbytes == dtype.size(count)
        assert TensorType((5, count), dtype).nbytes == 5 * dtype.size(count)
        assert evaluate(dtype.size(t), {"t": count}) == dtype.size(count)
    assert TensorType((), dtype).nbytes == dtype.nbytes
    assert ROWS.nbytes(TensorType((6, 9), dtype)) == TensorType((6, 9), dtype).nbytes


GROUPED = Encoding(group=32, scale="w.scale", zero="w.zero")


def test_encodings_as_text_and_what_is_none():
    assert str(GROUPED) == "rows, groups of 32 by w.scale from w.zero"
    for wrong in ({"order": "tiles"}, {"group": -1}, {"group": 32}, {"scale": "s"}):
        with pytest.raises(ValueError, match=r"no order of elements 'tiles'|is no encoding"):
            Encoding(**wrong)


def test_panels_are_of_whole_elements_on_two_axes():
    for type in (TensorType((40,), bf16), TensorType((40, 64), u4), TensorType((), f32)):
        with pytest.raises(ValueError, match="no panel32 of "):
            Encoding("panel32").stored(type)


@given(st.sampled_from(PACKED), st.integers(-300, 300))
def test_integers_wrap_into_few_bits(dtype, number):
    assert dtype.element(number) == int(np.array(number).astype(dtype.numpy))
    assert int(dtype.convert(np.array(number))) == dtype.element(number)


def test_few_bits_are_moved_and_cast_and_nothing_else():
    b = Builder()
    w = b.weight("w", (4, 6), u4)
    i, x = b.input("i", (3,), i32), b.input("x", (2, 6), f32)
    kept = b.transpose(b.gather(w, i), perm=(1, 0))
    out = b.cast(kept, dtype=u8)
    assert kept.type == TensorType((6, 3), u4)
    for op in ("add", "mul", "maximum", "eq"):
        with pytest.raises(ShapeError, match="u4 is a dtype to store in, not to compute in"):
            getattr(b, op)(w, w)
    with pytest.raises(ShapeError, match="u4 is a dtype to store in"):
        b.sum(w, axes=(0,))
    with pytest.raises(ShapeError, match="u4 is a dtype to store in"):
        b.matmul(x, w, transpose_w=True)
    table = codes((4, 6), u4)
    found, _ = run(
        b.graph([out]), {"i": np.array([2, 0, 3], np.int32), "x": np.zeros((2, 6))}, {"w": table}
    )
    np.testing.assert_array_equal(found[0], table[[2, 0, 3]].T.astype(np.uint8))
