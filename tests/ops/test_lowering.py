"""Every sample of every op through passes and code generation, run, against torch.

By the C++ it becomes (or on the GPU), and by the Triton it becomes under Triton's interpreter. Many
samples make one program, as starting a compiler costs more than a kernel.
"""

from collections.abc import Iterable
from math import prod

import numpy as np
import pytest

from tilewright.api.compile_graph import Compiled, compile_graph
from tilewright.api.machine import open_device, resolve_target
from tilewright.codegen.templates.attention_schedules import AttentionSchedule
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.codegen.templates.reduce import ReduceSchedule
from tilewright.codegen.templates.scan import ScanSchedule
from tilewright.codegen.templates.scatter import ScatterSchedule
from tilewright.ir.builder import Builder
from tilewright.ir.op import get_op
from tilewright.ir.target import Target, get_target
from tilewright.ir.types import bf16, f16
from tilewright.passes.pipelines import dense
from tilewright.runtime.executable import Executable

from .interpreted import Interpreter, make_interpretable
from .sample import Sample, declare_sizes
from .samples import SAMPLES
from .test_reference import TOLERANCE, as_numpy, as_torch, check, inputs_of

SIZE = 110  # samples of one program
# a state is no input of a dense program: models and the samples of tests/codegen append to one
RUN = [s for s in SAMPLES if get_op(s.op).kind != "state"]
BATCHES = [RUN[i : i + SIZE] for i in range(0, len(RUN), SIZE)]
MOST = 1000  # elements that are interpreted one by one; tests/codegen/triton has longer rows

# tiles that an interpreter is soon done with, smaller than some of the samples
SMALL = {
    ReduceSchedule: {"rows": 2},
    ScanSchedule: {"rows": 2},
    ScatterSchedule: {"rows": 8, "width": 4},
    GemvSchedule: {"bn": 8, "bk": 8, "prefetch": 0, "rows": 4, "fold": 1},
    DotSchedule: {"bm": 16, "bn": 16, "bk": 16},
    AttentionSchedule: {"keys": 16},
}


def compiled(samples: list[Sample], target: Target) -> tuple[Compiled, list, list[int]]:
    """One program of all samples, its inputs, and how many results each sample has."""
    b = Builder("samples")
    outputs, counts, arrays = [], [], []
    for number, sample in enumerate(samples):
        operands = [
            b.input(f"s{number}_{place}", operand.shape, operand.dtype)
            for place, operand in enumerate(sample.operands)
        ]
        arrays += inputs_of(sample)
        declare_sizes(b, sample)
        out = getattr(b, sample.op)(*operands, **sample.attrs)
        out = list(out) if isinstance(out, tuple) else [out]
        outputs += out
        counts.append(len(out))
    return compile_graph(b.graph(outputs), {}, dense(), target), arrays, counts


def wrong(samples: list[Sample], counts: list[int], results, slack: float, loose="") -> list[str]:
    """What differs from torch, and where. No result in the dtype `loose` is taken for exact."""
    found, results = [], iter(results)
    for sample, count in zip(samples, counts, strict=True):
        tensors = [
            as_torch(a, o.dtype.name)
            for a, o in zip(inputs_of(sample), sample.operands, strict=True)
        ]
        wanted = sample.expected(*tensors)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for got, want in zip([next(results) for _ in range(count)], wanted, strict=True):
            kind = got.dtype.name
            got = got.astype(np.float64) if kind in ("bfloat16", "float16") else got
            name = {"bfloat16": "bf16", "float16": "f16", "float64": "f64"}.get(kind, "f32")
            exact = not want.dtype.is_floating_point or (sample.exact and name != loose)
            try:
                check(got, as_numpy(want), 0 if exact else slack * TOLERANCE[name])
            except AssertionError as error:
                found.append(f"{sample.id}: {str(error)[:200]}")
    return [f"{len(found)} of {len(samples)}", *found] if found else []


@pytest.mark.parametrize("number", range(len(BATCHES)))
def test_results_are_those_of_torch(number, device, slack):
    target = resolve_target(device)
    made, arrays, counts = compiled(BATCHES[number], target)
    results = Executable(made.program, made.weights, open_device(target))(*arrays)
    found = wrong(BATCHES[number], counts, [r.numpy() for r in results], slack)
    assert not found, "\n".join(found)


@pytest.fixture(scope="module")
def interpreter():
    pytest.importorskip("triton", reason="Triton is in the extra `gpu`")
    running = Interpreter()
    yield running
    running.close()


def is_interpreted(sample: Sample) -> bool:
    """Neither too large nor a call of a function that this process alone has."""
    return sample.op != "call" and all(prod(o.shape) < MOST for o in sample.operands)


def each_value_once(samples: Iterable[Sample]) -> list[Sample]:
    """Those with a dtype, a shape or an attribute that no sample before them has.

    None of their op; or of its kind, where a scalar or a combine says all of an op: to those the
    kind's code gives shapes, and halves, which it computes in float32. Interpreting is slow, and
    every combination is compiled.
    """
    seen: set[tuple] = set()
    kept = []
    for sample in samples:
        op, dtypes = get_op(sample.op), tuple(o.dtype for o in sample.operands)
        shared = op.kind if op.tree or op.combine else op.name
        found = {(op.name, name, str(value)) for name, value in sample.attrs.items()}
        found |= {(shared, place, o.shape) for place, o in enumerate(sample.operands)}
        found.add((shared if {bf16, f16}.intersection(dtypes) else op.name, dtypes))
        if not found <= seen:
            kept.append(sample)
        seen |= found
    return kept


INTERPRETED = each_value_once(filter(is_interpreted, RUN))


@pytest.mark.parametrize("start", range(0, len(INTERPRETED), SIZE))
def test_interpreted_results_are_those_of_torch(start, interpreter, monkeypatch):
    """With the GPU's words for functions, so that it takes its slack; bf16 it rounds to zero."""
    samples = INTERPRETED[start : start + SIZE]
    make_interpretable(monkeypatch, SMALL)
    made, arrays, counts = compiled(samples, get_target("sm_90"))
    results = interpreter.run(made.program, made.weights, arrays)
    found = wrong(samples, counts, results, 4.0, loose="bf16")
    assert not found, "\n".join(found)
