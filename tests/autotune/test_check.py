"""Data that fits every kind of kernel, and what is taken for right: C++ kernels on small sizes."""

import numpy as np
import pytest

from tilewright.autotune import check
from tilewright.autotune.bucket_sizes import bucket_sizes
from tilewright.autotune.candidate import CompiledCandidate
from tilewright.autotune.check import UNTOUCHED, expected, sampled, why_wrong
from tilewright.autotune.data import index_limits, make_data
from tilewright.autotune.measure import Meter
from tilewright.codegen.backend import GroupLaunch, GroupLaunches, Variant
from tilewright.codegen.cpp.binary import compile_library
from tilewright.codegen.cpp.emit import emit_kernel
from tilewright.codegen.loops import LoopKernel, Param, Pointwise
from tilewright.ir.dim import symbol
from tilewright.ir.program import Kernel
from tilewright.ir.target import cpu
from tilewright.ir.types import TensorType, bf16, f32, i32

from ..codegen.triton import samples, samples_places

CPU = cpu(num_cores=2)
CASES = {
    "pointwise": samples.pointwise(),
    "embedding": samples.embedding(),
    "rope_append": samples.rope_append(),
    "norm": samples.norm(),
    "columns": samples.columns(),
    "linear": samples.linear(4, dtype=bf16),
    "gated": samples.gated(3),
    "paged": samples.attention([1, 3], [5, 9]),
    "dense": samples.dense_attention(**next(iter(samples.DENSE.values()))),
    "scan": samples_places.scan(),
    "scatter": samples_places.scatter(),
    "scatter_elements": samples_places.scatter_elements(),
    "sort": samples_places.sort(),
    "index": samples.faulty(),
    "rows": samples.faulty_rows(),
    "sample": samples.sample(),
}


@pytest.fixture(scope="module")
def built():
    """Every kernel, in one library."""
    sources = [(name, emit_kernel(case.kernel, name, CPU)) for name, case in CASES.items()]
    blob = compile_library(sources, CPU)
    made = {}
    for name, source in sources:
        kernel = CASES[name].kernel
        dims = tuple(symbol(s) for s in kernel.symbols)
        variant = Variant(name, tuple(range(len(kernel.params))), dims)
        launches = GroupLaunches((GroupLaunch((variant,)),), {})
        kernels = {name: Kernel(name, "cpp", "", source, "kernels.so", kernel.template)}
        made[name] = CompiledCandidate(launches, kernels, {"kernels.so": blob})
    return made


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_does_what_the_reference_does(built, name):
    kernel, meter = CASES[name].kernel, Meter("cpu")
    sizes = bucket_sizes(kernel, 0, 0, None)
    meter.prepare(kernel, CPU, sizes, 0)
    meter.load(0, built[name])
    assert meter.check(0) is None
    (place,) = meter.places
    assert place.reference is not None
    for values in place.reference.values():
        assert (values != UNTOUCHED).any()
    record = kernel.records
    if record is not None:  # no index was outside, and no divisor 0
        found = np.empty_like(place.data.stored[record])
        meter.device.download(place.sets[0][record], found)
        assert not found.any()
    ((times,),) = meter.time([0], 2)
    assert len(times) == 2
    assert min(times) > 0


def test_indices_are_within_what_they_index():
    case = CASES["rope_append"]
    sizes = {"t": 8, "pages": 3}
    names = [p.type.dtype.name for p in case.kernel.params]
    (slots,) = [i for i, name in enumerate(names) if name == "i32"]
    (pool,) = {p.type.shape[2] for p in case.kernel.params if symbol("pages") in p.type.shape}
    assert index_limits(case.kernel, sizes)[slots] == 3 * pool
    data = make_data(case.kernel, sizes, np.random.default_rng(0))
    assert len(set(data.stored[slots].tolist())) == 8, "two tokens in one slot"


def test_the_reference_computes_some_places_of_a_large_kernel(monkeypatch, rng):
    kernel = CASES["linear"].kernel
    (sizes,) = bucket_sizes(kernel, 0, 0, None)
    data = make_data(kernel, sizes, rng)
    (whole,) = expected(kernel, data, sizes, rng).values()
    monkeypatch.setattr(check, "POINTS", 700)
    places = sampled(kernel, sizes, rng)
    assert places
    assert all(at[0] == 0 for at in places.values())
    (some,) = expected(kernel, data, sizes, rng).values()
    known = some != UNTOUCHED
    assert 0 < known.sum() < known.size
    np.testing.assert_array_equal(some[known], whole[known])


def outputs(dtype) -> LoopKernel:
    """A kernel of one output."""
    params = (Param(TensorType((4,), dtype), True),)
    return LoopKernel(params, (Pointwise((), ()),), (), "pointwise")


def test_what_differs_by_the_order_of_sums_is_right_and_more_is_wrong():
    kernel, right = outputs(f32), {0: np.array([1.0, -2.0, 300.0, 0.5])}
    usual = [(right[0] * (1 + 1e-6)).astype(np.float32)]
    for share, is_right in ((0.0, True), (2e-6, True), (1e-4, False), (0.5, False)):
        found = [usual[0] + np.float32(300 * share)]
        assert (why_wrong(kernel, found, usual, right) is None) == is_right, share
    assert "off the reference" in why_wrong(kernel, [usual[0] * 1.01], None, right)
    # without a reference the default schedule is what there is
    assert why_wrong(kernel, usual, usual, None) is None
    assert "off the default" in why_wrong(kernel, [usual[0] * 1.01], usual, None)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_must_be_so_by_default(value):
    kernel, usual = outputs(f32), [np.array([1, 2, 3, 4], np.float32)]
    found = [usual[0].copy()]
    found[0][2] = value
    assert "not finite" in why_wrong(kernel, found, usual, None)
    assert why_wrong(kernel, found, found, None) is None


def test_integers_are_the_same():
    kernel, usual = outputs(i32), [np.arange(4, dtype=np.int32)]
    assert why_wrong(kernel, usual, usual, {0: usual[0]}) is None
    assert why_wrong(kernel, [usual[0] + 1], usual, None) == "4 of 4 integers of parameter 0 differ"
