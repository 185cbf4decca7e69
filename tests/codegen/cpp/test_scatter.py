"""Scatter kernels: places that meet and that do not; results stored as they are, or followed."""

import numpy as np
import pytest

from tilewright.ir.ops.scatter import COMBINES
from tilewright.ir.types import bf16, bool_, f64, i8

from ..triton.samples_places import scatter, scatter_elements
from .harness import Library

CASES = {
    **{f"rows_{c}": scatter(c, (2, 50, 33), (400,), 1) for c in COMBINES},
    **{f"lines_{c}": scatter_elements(c, (9, 50, 3), (7, 90, 3), 1) for c in COMBINES},
    "first": scatter("add", (50, 7), (3, 90), 0),
    "last": scatter_elements("add", (2, 40), (2, 300), 1),
    "one": scatter("mul", (3,), (1,), 0),
    "none": scatter("add", (3, 2), (0,), 0),
    "halves": scatter("add", dtype=bf16),
    "doubles": scatter_elements("add", dtype=f64),
    "bytes": scatter_elements("add", dtype=i8),
    "flags": scatter_elements("max", dtype=bool_),
}


@pytest.fixture(scope="module")
def library():
    return Library({name: case.kernel for name, case in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_results(library, name):
    library.check_case(name, CASES[name], 8e-3 if name == "halves" else 1e-5)


@pytest.mark.parametrize("name", ["rows_add", "lines_mul", "first", "last", "rows_replace"])
def test_the_number_of_threads_changes_no_bit(library, name):
    case = CASES[name]
    (written, *_) = case.written()
    found = set()
    for threads in (1, 2, 3, 7):
        arrays = [a.copy() for a in case.arrays]
        library.run(name, arrays, {}, threads)
        found.add(arrays[written].tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("name", ["first", "last"])
def test_an_index_outside_writes_nothing_outside(library, name):
    """It is recorded, and the memory around the result stays as it was."""
    case = CASES[name]
    out, records = case.written()
    (where,) = (
        i
        for i, p in enumerate(case.kernel.params)
        if p.type.dtype.name == "i64" and i not in (out, records)
    )
    for wrong in (-1, 1 << 40, 50 if name == "first" else 40):
        arrays = [a.copy() for a in case.arrays]
        arrays[where].reshape(-1)[5] = wrong
        guarded = np.full(arrays[out].size + 200, 7, arrays[out].dtype)
        arrays[out] = guarded[100:-100].reshape(arrays[out].shape)
        library.run(name, arrays, {}, 2)
        assert (guarded[:100] == 7).all()
        assert (guarded[-100:] == 7).all()
        assert arrays[records][0, 1] == wrong
        assert arrays[records][0, 0] == (51 if name == "first" else 41)
