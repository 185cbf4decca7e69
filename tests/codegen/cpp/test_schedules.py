"""Schedules of C++ kernels: none changes a bit, and sizes may have schedules of their own."""

from itertools import pairwise

import numpy as np
import pytest

from tilewright.codegen.build import build
from tilewright.codegen.cpp.emit import choices
from tilewright.codegen.cpp.schedules import (
    ColumnsSchedule,
    FixedSchedule,
    QueriesSchedule,
    RunSchedule,
    TileSchedule,
)
from tilewright.codegen.loops import Load
from tilewright.ir.builder import Builder
from tilewright.ir.dim import symbol
from tilewright.ir.errors import BuildError
from tilewright.ir.steps import launches
from tilewright.ir.target import cpu
from tilewright.ir.types import bf16, f32, i8
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.executable import Executable

from . import test_reduce, test_special
from .harness import Library
from .test_contract import batched, linear
from .test_pointwise import long_axis

TILES = [
    TileSchedule(),
    TileSchedule(60, 1, 32, 0),
    TileSchedule(480, 16, 1, 65536),
    TileSchedule(120, 2, 2, 2048),
]
KERNELS = {
    "packed": linear(136, 520, bf16, weights=2, norm=True),
    "rows": linear(70, 300, f32, packed=False),
    "batched": batched(f32, f32, transposed=True),
    "bytes": batched(i8, i8, transposed=False),
}


@pytest.fixture(scope="module")
def library():
    named = {f"{name}_{i}": (k, s) for name, k in KERNELS.items() for i, s in enumerate(TILES)}
    return Library(
        {name: kernel for name, (kernel, _) in named.items()},
        schedules={name: schedule for name, (_, schedule) in named.items()},
    )


@pytest.mark.parametrize("rows", [1, 13, 250, 500])
@pytest.mark.parametrize("name", KERNELS)
def test_a_contraction_has_the_same_bits_under_every_schedule(library, rng, name, rows):
    kernel = KERNELS[name]
    sizes = {"t": rows, "M": rows, "B": 3, "N": 45, "K": 270}
    dims = {s: sizes[s] for s in kernel.symbols}
    inputs = []
    for param in kernel.params:
        shape = tuple(d if isinstance(d, int) else dims[str(d)] for d in param.type.shape)
        drawn = rng.integers(-99, 99, shape) / (1 if param.type.dtype == i8 else 40)
        inputs.append(drawn.astype(param.type.dtype.numpy))
    results = []
    for i in range(len(TILES)):
        for threads in (1, 2):
            arrays = [a.copy() for a in inputs]
            library.run(f"{name}_{i}", arrays, dims, threads)
            results.append(arrays[-1].tobytes())
    assert len(set(results)) == 1
    assert results[0] != inputs[-1].tobytes()


OTHERS = {
    "columns": (
        test_reduce.sums(Load(0, symbol("r") * symbol("n") + symbol("i"), f32)),
        [ColumnsSchedule(columns) for columns in (128, 32, 1024)],
    ),
    "paged": (
        test_special.attention(6, 2, 64, 16),
        [QueriesSchedule(rows) for rows in (0, 24, 384)],
    ),
}


@pytest.fixture(scope="module")
def others():
    named = {f"{n}_{i}": (k, s) for n, (k, all) in OTHERS.items() for i, s in enumerate(all)}
    return Library(
        {name: kernel for name, (kernel, _) in named.items()},
        schedules={name: schedule for name, (_, schedule) in named.items()},
    )


def test_columns_have_the_same_bits_under_every_schedule(others, rng):
    for rows, width in ((300, 5), (70, 300), (1, 0)):
        x = rng.standard_normal((rows, width + 3)).astype(np.float32)
        sizes = {"n": rows, "w": width}
        found = [others.check(f"columns_{i}", [x], sizes, rtol=1e-5, atol=1e-3) for i in range(3)]
        assert len({result.tobytes() for (result,) in found}) == 1


def test_attention_has_the_same_bits_under_every_schedule(others, rng):
    kernel, _ = OTHERS["paged"]
    for lengths, contexts in (([1], [777]), ([150, 1], [300, 9])):
        arrays = test_special.make_batch(rng, kernel, lengths, contexts)
        sizes = test_special.sizes_of(arrays)
        found = [others.check(f"paged_{i}", arrays, sizes, atol=1e-5) for i in range(3)]
        assert len({result.tobytes() for (result,) in found}) == 1


def test_nothing_is_chosen_of_rows_that_lie_one_after_another():
    assert choices(test_reduce.softmax()) == (0, [(0, None, FixedSchedule())])


def test_every_kernel_has_default_buckets_that_cover_its_sizes():
    for kernel in (*KERNELS.values(), long_axis()):
        _, buckets = choices(kernel)
        assert buckets[0][0] == 0
        assert buckets[-1][1] is None
        assert all(a[1] + 1 == b[0] for a, b in pairwise(buckets))


def test_a_schedule_stays_within_its_domain():
    with pytest.raises(BuildError, match=r"block=7 is outside the domain of RunSchedule"):
        RunSchedule(7)


class ByRows:
    """Other tiles from 2 rows on, and for 17 to 128 others again."""

    def buckets(self, kernel, target, size, default):
        if not isinstance(default[0][2], TileSchedule):
            return default
        assert [b[:2] for b in default] == [(0, 1), (2, 16), (17, 128), (129, None)]
        return [(0, 1, TILES[0]), (2, 16, TILES[1]), (17, 128, TILES[2]), (129, None, TILES[1])]


def test_sizes_run_under_their_own_schedules(rng):
    b = Builder("g")
    s = b.dim("s", 1, 300)
    x, w = b.input("x", (s, 64)), b.weight("w", (40, 64))
    graph = b.graph([b.matmul(x, w, transpose_w=True)])
    tuned, plain = build(graph, cpu(), schedules=ByRows()), build(graph, cpu())
    (step,) = launches(tuned.steps)
    assert [(c.lo, c.hi) for c in step.choices] == [(0, 1), (2, 16), (17, 128), (129, None)]
    assert len(tuned.kernels) == 3  # equal schedules share one
    assert len({c.kernel for c in step.choices}) == 3
    assert [c.schedule for c in step.choices] == list(map(str, [*TILES[:3], TILES[1]]))
    (step,) = launches(plain.steps)
    assert [(c.lo, c.hi) for c in step.choices] == [(0, None)]
    weights = {"w": rng.standard_normal((40, 64), dtype=np.float32)}
    runs = [Executable(p, pack(p, weights), CpuDevice()) for p in (tuned, plain)]
    for rows in (1, 2, 16, 17, 129, 300):
        value = rng.standard_normal((rows, 64), dtype=np.float32)
        results = [run(value)[0] for run in runs]
        assert np.asarray(results[0]).tobytes() == np.asarray(results[1]).tobytes()


def pack(program, weights):
    return {
        buffer.name: buffer.encoding.pack(weights[buffer.name], buffer.type.dtype)
        for buffer in program.weights
    }
