"""Every sample of every op through passes and code generation, run, against torch.

Many samples make one program, as starting a compiler costs more than a kernel.
"""

import numpy as np
import pytest

from tilewright.api.compile_graph import compile_graph
from tilewright.api.machine import open_device, resolve_target
from tilewright.ir.builder import Builder
from tilewright.ir.op import get_op
from tilewright.passes.pipelines import dense
from tilewright.runtime.executable import Executable

from .sample import Sample, declare_sizes
from .samples import SAMPLES
from .test_reference import TOLERANCE, as_numpy, as_torch, check, inputs_of

SIZE = 110  # samples of one program
# a state is no input of a dense program: models and the samples of tests/codegen append to one
RUN = [s for s in SAMPLES if get_op(s.op).kind != "state"]
BATCHES = [RUN[i : i + SIZE] for i in range(0, len(RUN), SIZE)]


def run(samples: list[Sample], target_name: str) -> list[list[np.ndarray]]:
    """The results of each sample, from one program of all."""
    target = resolve_target(target_name)
    b = Builder("samples")
    outputs, counts, arrays = [], [], []
    for number, sample in enumerate(samples):
        given = inputs_of(sample)
        operands = [
            b.input(f"s{number}_{place}", operand.shape, operand.dtype)
            for place, operand in enumerate(sample.operands)
        ]
        arrays += given
        declare_sizes(b, sample)
        out = getattr(b, sample.op)(*operands, **sample.attrs)
        out = list(out) if isinstance(out, tuple) else [out]
        outputs += out
        counts.append(len(out))
    made = compile_graph(b.graph(outputs), {}, dense(), target)
    results = iter(Executable(made.program, made.weights, open_device(target))(*arrays))
    return [[next(results).numpy() for _ in range(count)] for count in counts]


@pytest.mark.parametrize("number", range(len(BATCHES)))
def test_results_are_those_of_torch(number, device, slack):
    wrong = []
    for sample, results in zip(BATCHES[number], run(BATCHES[number], device), strict=True):
        tensors = [
            as_torch(a, o.dtype.name)
            for a, o in zip(inputs_of(sample), sample.operands, strict=True)
        ]
        wanted = sample.expected(*tensors)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for got, want in zip(results, wanted, strict=True):
            kind = got.dtype.name
            got = got.astype(np.float64) if kind in ("bfloat16", "float16") else got
            exact = sample.exact or want.dtype.is_floating_point is False
            name = {"bfloat16": "bf16", "float16": "f16", "float64": "f64"}.get(kind, "f32")
            try:
                check(got, as_numpy(want), 0 if exact else slack * TOLERANCE[name])
            except AssertionError as error:
                wrong.append(f"{sample.id}: {str(error)[:200]}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(BATCHES[number])}", *wrong])
