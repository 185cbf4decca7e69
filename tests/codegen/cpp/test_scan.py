"""Scan kernels: every combine, rows long and short, along the last axis and across it."""

import numpy as np
import pytest

from tilewright.codegen.cpp.scan import CHUNK
from tilewright.ir.op import OPS
from tilewright.ir.types import bf16, f32, f64, i8, i64, u8

from ..triton.samples_places import scan
from .harness import Library

SCANS = [name for name, op in OPS.items() if op.kind == "scan"]
SHAPES = {
    "row": ((1, 3 * CHUNK + 17), 1),
    "rows": ((5, 700), 1),
    "columns": ((200, 131), 0),
    "between": ((2, 130, 3), 1),
    "one": ((1, 1), 0),
    "empty": ((3, 0), 1),
    "none": ((0, 3), 1),
}


def cases():
    found = {f"{name}_{shape}": scan(name, *SHAPES[shape]) for name in SCANS for shape in SHAPES}
    for dtype in (bf16, f64, i64, i8, u8):
        for name in ("cumsum", "cummax"):
            found[f"{name}_{dtype}"] = scan(name, *SHAPES["row"], dtype)
    return {name: case for name, case in found.items() if "cumprod_row" not in name}


@pytest.fixture(scope="module")
def library():
    return Library({name: case.kernel for name, case in cases().items()})


@pytest.mark.parametrize("name", cases())
def test_results(library, name):
    library.check_case(name, cases()[name], 8e-3 if "bf16" in name else 1e-5)


@pytest.mark.parametrize("name", ["cumsum_row", "logcumsumexp_row", "cumsum_rows"])
def test_the_number_of_threads_changes_no_bit(library, name):
    """Few rows are shared chunk by chunk, many row by row."""
    case = cases()[name]
    found = set()
    for threads in (1, 2, 3, 7):
        arrays = [a.copy() for a in case.arrays]
        library.run(name, arrays, {}, threads)
        found.add(arrays[1].tobytes())
    assert len(found) == 1


def test_a_chunk_of_its_own_adds_up_as_in_a_longer_row(library):
    """The bits of a place do not depend on what comes after it."""
    case = cases()["cumsum_row"]
    first = scan("cumsum", (1, CHUNK + 5), 1)
    other = Library({"first": first.kernel})
    long_arrays = [a.copy() for a in case.arrays]
    library.run("cumsum_row", long_arrays, {}, 2)
    arrays = [long_arrays[0][:, : CHUNK + 5].copy(), first.arrays[1]]
    other.run("first", arrays, {}, 2)
    np.testing.assert_array_equal(arrays[1], long_arrays[1][:, : CHUNK + 5])
    assert arrays[1].dtype == f32.numpy
