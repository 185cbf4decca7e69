"""Weights whose elements share bytes, from graph to results on the CPU, and what they cost."""

import numpy as np
import pytest

from tilewright.api.compile_graph import compile_graph
from tilewright.ir.builder import Builder
from tilewright.ir.encoding import Encoding
from tilewright.ir.errors import ShapeError, UnsupportedOp
from tilewright.ir.target import cpu
from tilewright.ir.types import f32, i2, i4, i8, i32, i64, u2, u4, u8
from tilewright.ir.weight_only import decoding
from tilewright.passes.pipelines import dense
from tilewright.runtime.artifact import Artifact, load_artifact, save_artifact
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.executable import Executable
from tilewright.runtime.stored_program import StoredProgram

from .packed import Packed, linear, lookup, moved, numbers, symmetric

CASES = {
    "u4, zeros in u4": lambda: linear(u4, 3, 40, 96, 32, u4),
    "u4, zeros in f32": lambda: linear(u4, 1, 33, 64, 16),
    "i4, no zeros": lambda: linear(i4, 5, 7, 30, 15, None),
    "u2, a group a row": lambda: linear(u2, 2, 24, 37, 37),
    "i2, groups of one": lambda: linear(i2, 2, 5, 3, 1, None),
    "i8": lambda: linear(i8, 3, 40, 64, 32, None),
    "written out": lambda: symmetric(3, 40, 70),
    "moved u4": lambda: moved(u4, 5, 6),
    "moved i2": lambda: moved(i2, 3, 8),
    "rows of u4": lambda: lookup(u4, 9, 7),
    "rows of i2": lambda: lookup(i2, 4, 5),
}


def compiled(case):
    return compile_graph(case.graph(), case.weights, dense(), cpu())


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_reference(name):
    case = CASES[name]()
    made = compiled(case)
    results = Executable(made.program, made.weights, CpuDevice())(*case.inputs.values())
    for got, want in zip(results, case.wanted(), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=2e-6, atol=2e-6 * np.abs(want).max())


def test_codes_are_read_where_they_are_used_and_counted_as_they_lie():
    """One kernel; no float of the weight is stored, at build time or at run time."""
    m, n, k, group = 3, 40, 96, 32
    made = compiled(linear(u4, m, n, k, group, u4))
    (step,) = made.program.steps
    stored = {b.name: b.stored for b in made.program.weights}
    assert {name: str(type) for name, type in stored.items()} == {
        "w": "u8[40, 48]", "scale": "f32[40, 3]", "zero": "u8[40, 2]",
    }  # fmt: skip
    assert {name: a.nbytes for name, a in made.weights.items()} == {
        name: type.nbytes for name, type in stored.items()
    }
    of_weights = n * k // 2 + n * (k // group) * 4 + n * 2
    assert step.traffic == of_weights + 4 * m * (k + n)
    assert made.program.arena_bytes == 0
    assert made.program.buffers["w"].encoding == Encoding(group=32, scale="scale", zero="zero")


def test_arithmetic_that_is_written_out_is_read_as_well():
    made = compiled(symmetric(3, 40, 70))
    (step,) = made.program.steps
    assert {name: a.nbytes for name, a in made.weights.items()} == {"w": 40 * 35, "s": 160}
    assert step.traffic == 40 * 35 + 160 + 4 * 3 * (70 + 40)
    assert made.program.buffers["w"].encoding == Encoding(group=70, scale="s")


def test_a_long_chain_of_arithmetic_takes_no_time_to_look_through():
    """Linear in its length: looking back from each of 4000 operations would take minutes."""
    b = Builder()
    y = b.cast(b.weight("w", (4,), u4), dtype=f32)
    for _ in range(4000):
        y = b.add(y, y)
    assert len(decoding(b.graph([y]))) == 4001


@pytest.mark.parametrize(("made", "products"), [(i32, "i8"), (i64, "i64")], ids=str)
def test_bytes_stay_bytes_however_wide_their_products_are(made, products):
    """Sums in i32 are made of the bytes; those in i64 are not, which wrap elsewhere."""
    rng, b = np.random.default_rng(0), Builder()
    x, w = b.input("x", (5, 72), i8), b.weight("w", (40, 72), i8)
    y = b.matmul(b.cast(x, dtype=made), b.cast(w, dtype=made), transpose_w=True)
    case = Packed(b, [y], {"x": numbers(rng, i8, (5, 72))}, {"w": numbers(rng, i8, (40, 72))})
    program = compiled(case)
    (got,) = Executable(program.program, program.weights, CpuDevice())(*case.inputs.values())
    np.testing.assert_array_equal(got.numpy(), case.wanted()[0])
    assert [a.dtype for a in program.weights.values()] == [np.int8]
    assert program.program.steps[-1].products == (products, products)


def test_rows_of_a_table_count_the_bits_of_their_elements():
    """Three rows of 16 elements of 4 bits are read, the table whole; both are written as f32."""
    made = compiled(lookup(u4, 9, 16))
    rows, whole = (made.program.steps[i].traffic for i in (0, 1))
    assert rows == 3 * 4 + 3 * 16 // 2 + 3 * 16 * 4
    assert whole == 9 * 16 // 2 + 8 * 16 * 4


def test_an_artifact_holds_the_packed_bytes(tmp_path):
    case = linear(u4, 3, 40, 96, 32, u4)
    made = compiled(case)
    artifact = Artifact((StoredProgram(made.program),), made.weights)
    loaded = load_artifact(save_artifact(tmp_path / "packed", artifact))
    assert loaded.program.buffers == made.program.buffers
    assert {n: a.shape for n, a in loaded.weights.items()} == {
        "w": (40, 48), "scale": (40, 3), "zero": (40, 2),
    }  # fmt: skip
    (got,) = Executable(loaded.program, loaded.weights, CpuDevice())(*case.inputs.values())
    (want,) = Executable(made.program, made.weights, CpuDevice())(*case.inputs.values())
    np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_what_shares_bytes_is_never_written():
    b = Builder()
    w, x = b.weight("w", (4, 6), u4), b.input("x", (4, 6), i2)
    narrow = b.cast(b.input("y", (4, 6), f32), dtype=i4)
    s = b.state("s", (3,), u2)
    b.updates = {"s": s}
    graph = b.graph([w, b.cast(x, dtype=f32), narrow])
    every = "input x is i2(.|\n)*state s is u2(.|\n)*result 0 is u4(.|\n)*result 2 is i4"
    with pytest.raises(UnsupportedOp, match=f"only weights(.|\n)*{every}(.|\n)*to u8 or i8"):
        compile_graph(graph, {}, dense(), cpu())
    b = Builder()
    stored = b.cast(b.input("y", (4, 6), f32), dtype=u4)
    sums = [b.sum(b.cast(stored, dtype=i32), axes=(axis,)) for axis in (0, 1)]
    with pytest.raises(UnsupportedOp, match=r"u4 are read from weights(.|\n)*cast it to u8 or i8"):
        compile_graph(b.graph(sums), {}, dense(), cpu())


@pytest.mark.parametrize("dtype", [u4, i4, u2, i2], ids=str)
def test_rounding_to_few_bits_inside_a_kernel(dtype):
    b = Builder()
    x = b.input("x", (300,), i32)
    y = b.cast(b.cast(x, dtype=dtype), dtype=f32)
    case = Packed(b, [y], {"x": np.arange(-150, 150, dtype=np.int32)}, {})
    made = compiled(case)
    (got,) = Executable(made.program, made.weights, CpuDevice())(*case.inputs.values())
    np.testing.assert_array_equal(got.numpy(), case.wanted()[0])


def test_groups_divide_rows():
    b = Builder()
    codes, scale = b.weight("w", (4, 6), u8), b.weight("s", (4, 4), f32)
    with pytest.raises(ShapeError, match=r"scale is f32\[4, 4\], codes are u8\[4, 6\]"):
        b.dequantize(codes, scale)
    with pytest.raises(ShapeError, match="must be integers to become floats"):
        b.dequantize(scale, scale)
