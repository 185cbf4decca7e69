"""Each op's reference against torch, and each decomposition against the reference."""

import zlib

import numpy as np
import pytest
import torch

from tilewright.ir.builder import Builder
from tilewright.ir.evaluate import evaluate
from tilewright.ir.op import OPS, get_op
from tilewright.ir.types import bool_

from .sample import TO_TORCH, Sample
from .samples import SAMPLES

# relative to the largest magnitude of the result; halves: one rounding of the result, and in
# torch one more for each step of a formula
TOLERANCE = {"f64": 1e-12, "f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}


def as_torch(array: np.ndarray, name: str) -> torch.Tensor:
    if name in ("bf16", "f16"):
        return torch.from_numpy(array.astype(np.float32)).to(TO_TORCH[name])
    return torch.from_numpy(array.copy())


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()


def inputs_of(sample: Sample) -> list[np.ndarray]:
    return sample.arrays(np.random.default_rng(zlib.crc32(sample.id.encode())))


def run(sample: Sample, graph, arrays, precision):
    given = {f"x{i}": a for i, a in enumerate(arrays)}
    outputs, _ = evaluate(graph, given, states=given, precision=precision)
    return outputs


def check(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert actual.shape == expected.shape
    with np.errstate(invalid="ignore"):  # of NaN that signal
        actual = actual.astype(expected.dtype)
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    if same.all():
        return
    assert tolerance > 0, (actual, expected)
    assert expected.dtype.kind == "f"
    assert (np.isfinite(actual) == np.isfinite(expected)).all(), (actual, expected)
    finite = np.isfinite(expected)
    gap = np.abs(actual[finite] - expected[finite])
    # element by element for large results, against the typical size for those near zero
    scale = np.maximum(np.abs(expected[finite]), 0.1)
    assert (gap <= tolerance * scale * 4).all(), gap.max()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.id)
def test_reference_in_declared_dtypes(sample):
    """Every value rounded to its dtype, as torch does it."""
    graph, arrays = sample.graph(), inputs_of(sample)
    tensors = [as_torch(a, o.dtype.name) for a, o in zip(arrays, sample.operands)]
    with np.errstate(all="ignore"):
        results = run(sample, graph, arrays, None)
    for actual, expected, out in zip(results, wanted(sample, tensors), graph.outputs, strict=True):
        assert actual.dtype == out.dtype.numpy
        assert expected.dtype == TO_TORCH[out.dtype.name]
        if actual.dtype.name in ("bfloat16", "float16"):
            actual = actual.astype(np.float64)
        exact = sample.exact or not out.dtype.is_float
        check(actual, as_numpy(expected), 0 if exact else TOLERANCE[out.dtype.name])


def wanted(sample: Sample, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What torch says, a tensor for each result."""
    expected = sample.expected(*tensors)
    return expected if isinstance(expected, tuple) else (expected,)


def _is_wide(sample: Sample) -> bool:
    """Has floats, all of 32 bits or more: with halves it would be the same formula once more."""
    floats = [o.dtype for o in sample.operands if o.dtype.is_float]
    return (
        bool(floats) and all(d.bits >= 32 for d in floats) and sample.op not in ("cast", "sample")
    )


WIDE = [s for s in SAMPLES if _is_wide(s)]


@pytest.mark.parametrize("sample", WIDE, ids=lambda s: s.id)
def test_reference_in_float64(sample):
    """Nothing rounded: what passes and kernels are compared with."""
    graph, arrays = sample.graph(), inputs_of(sample)
    tensors = [
        torch.from_numpy(a.astype(np.float64)) if o.dtype.is_float else as_torch(a, o.dtype.name)
        for a, o in zip(arrays, sample.operands)
    ]
    with np.errstate(all="ignore"):
        results = run(sample, graph, arrays, np.float64)
    for actual, expected in zip(results, wanted(sample, tensors), strict=True):
        check(actual, as_numpy(expected), TOLERANCE["f64"])


DECOMPOSED = [s for s in SAMPLES if get_op(s.op).decomposition and get_op(s.op).reference]


@pytest.mark.parametrize("sample", DECOMPOSED, ids=lambda s: s.id)
def test_decomposition_agrees_with_the_reference(sample):
    op, arrays = get_op(sample.op), inputs_of(sample)
    b = Builder()
    operands = [b.input(f"x{i}", o.shape, o.dtype) for i, o in enumerate(sample.operands)]
    whole = sample.graph()
    attrs = whole.nodes[-1].attrs
    out = op.decomposition(b, *operands, **attrs)
    assert out.type == whole.outputs[0].type
    assert all(n.op is not op for n in b.nodes)
    (expected,) = run(sample, whole, arrays, np.float64)
    (actual,) = run(sample, b.graph([out]), arrays, np.float64)
    check(actual, expected, TOLERANCE["f64"])


def test_a_wrong_formula_is_noticed(monkeypatch):
    """The comparison itself: a norm without its epsilon fails."""
    sample = next(s for s in SAMPLES if s.op == "rms_norm" and s.attrs["eps"] == 1e-2)
    reference = OPS["rms_norm"].reference
    monkeypatch.setattr(
        OPS["rms_norm"], "reference", lambda x, weight, eps: reference(x, weight, eps=0.0)
    )
    with pytest.raises(AssertionError):
        test_reference_in_declared_dtypes(sample)
    assert bool_.bits == 8
