"""Whole language models, built for every GPU target on a machine without a GPU."""

import pytest

from tilewright.cli.compiler import compile_graph
from tilewright.codegen.triton import backend
from tilewright.codegen.triton.compile import Compiled
from tilewright.codegen.triton.pool import compile_all
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.target import TARGETS
from tilewright.ir.types import DType, bf16, f16, f32
from tilewright.passes.pipelines import language_model

from ...models.tiny import make

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

MODELS = ["llama", "qwen3", "gemma2", "gemma3", "phi3", "gpt2"]
DTYPES: dict[str, DType] = {"sm_80": f16, "sm_90": bf16, "sm_100": f32, "gfx942": bf16}


@pytest.mark.slow
@pytest.mark.parametrize("target", DTYPES)
def test_models_build(target, monkeypatch):
    """Each model for each target, and in each dtype for one: models share most kernels of a dtype.

    Programs take 64 tokens a step, so that tiles of contractions for many rows, which test_builds
    has, are left out. Equal kernels of several models are compiled once.
    """
    found = {}

    def collect(launches, target, done):
        found.update((e.name, e) for e in launches)
        return [Compiled(b"", e.name, e.num_warps, 0, 0, 0) for e in launches]

    monkeypatch.setattr(backend, "compile_all", collect)
    dtype = DTYPES[target]
    for name in MODELS:
        captured = capture_causal_lm(make(name), dtype=dtype)
        pipeline = language_model(None if dtype == f32 else dtype, max_tokens=64)
        made = compile_graph(captured.graph, captured.weights, pipeline, TARGETS[target])
        assert made.program.steps
    launches = list(found.values())
    for emitted, built in zip(launches, compile_all(launches, TARGETS[target]), strict=True):
        assert built.binary[:4] == b"\x7fELF", emitted.name
        assert built.shared_bytes <= TARGETS[target].shared_bytes, emitted.name


def test_every_gpu_has_a_dtype():
    assert DTYPES.keys() == {t.name for t in TARGETS.values() if t.is_gpu}
