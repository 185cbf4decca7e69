"""Sort kernels: rows short and long, shared by threads and not, all of them and the first few."""

import numpy as np
import pytest

from tilewright.ir.types import bf16, bool_, f64, i8, i64

from ..triton.samples_places import sort
from .harness import Library

CASES = {
    "row": sort((1, 9000)),
    "rows": sort((5, 700), descending=True),
    "columns": sort((300, 3), 0),
    "short": sort((40, 9)),
    "first": sort((1, 9000), keep=40),
    "few": sort((3, 700), descending=True, keep=5),
    "most": sort((1, 9000), descending=True, keep=8000),
    "one": sort((1, 1)),
    "empty": sort((2, 0)),
    "none": sort((2, 90), keep=0),
    "halves": sort((2, 700), dtype=bf16),
    "doubles": sort((1, 9000), descending=True, dtype=f64),
    "longs": sort((1, 9000), keep=100, dtype=i64),
    "bytes": sort((1, 9000), dtype=i8),
    "flags": sort((1, 9000), descending=True, dtype=bool_),
}


@pytest.fixture(scope="module")
def library():
    return Library({f"sort_{name}": case.kernel for name, case in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_results_whatever_the_number_of_threads(library, name):
    case = CASES[name]
    library.check_case(f"sort_{name}", case, 1e-3)
    found = set()
    for threads in (1, 3, 7):
        arrays = [a.copy() for a in case.arrays]
        library.run(f"sort_{name}", arrays, {}, threads)
        found.add(tuple(arrays[i].tobytes() for i in case.written()))
    assert len(found) == 1


def test_what_is_no_number_and_what_is_the_same(library):
    """NaN is largest, nothing is told of zero's sign, and equal elements stay in their order."""
    for name in ("row", "doubles", "first"):
        case = CASES[name]
        arrays = [a.copy() for a in case.arrays]
        x = np.random.default_rng(0).choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1], (1, 9000))
        arrays[0][:] = x
        library.run(f"sort_{name}", arrays, {}, 3)
        places = np.argsort(x[0], kind="stable")
        if name == "doubles":  # descending, and turned round by what follows
            places = 8999 - np.argsort(x[0, ::-1], kind="stable")[::-1]
        _, found, values = arrays
        places = places[: found.shape[1]]
        np.testing.assert_array_equal(found[0], places)
        np.testing.assert_array_equal(-values[0], 2 * x[0, places])
