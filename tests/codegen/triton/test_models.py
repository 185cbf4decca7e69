"""Whole language models, built for every GPU target on a machine without a GPU."""

from functools import cache

import pytest
import torch

from tilewright.api.compile_graph import compile_graph
from tilewright.codegen.templates import choices
from tilewright.codegen.triton import backend
from tilewright.codegen.triton.binary import CompiledKernel
from tilewright.codegen.triton.pool import compile_all
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.target import TARGETS
from tilewright.passes.pipelines import language_model

from ...models.tiny import make
from .gpus import GPUS

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

BUILT = {
    "sm_80": (torch.float16, ["gemma2", "gpt2"]),
    "sm_90": (torch.bfloat16, ["llama", "qwen3", "gemma2", "gemma3", "phi3", "gpt2"]),
    "sm_100": (torch.float32, ["llama", "gemma3"]),
    "gfx942": (torch.bfloat16, ["qwen3", "phi3"]),
}


@cache
def captured(name: str, dtype: torch.dtype):
    return capture_causal_lm(make(name).to(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("target", BUILT)
def test_models_build(target, monkeypatch):
    """Each model for one target and one more, in the dtype of that.

    Of a kernel's table of schedules one is built, another for each model and target: test_builds
    has them all. Equal kernels of several models are compiled once.
    """
    found, turn = {}, list(BUILT).index(target)

    def one_schedule(kernel, target):
        select, buckets = choices(kernel, target)
        return select, [buckets[turn % len(buckets)]]

    def collect(launches, target, done):
        found.update((e.name, e) for e in launches)
        return [CompiledKernel(b"", e.name, e.num_warps, 0, 0, 0) for e in launches]

    monkeypatch.setattr(backend, "choices", one_schedule)
    monkeypatch.setattr(backend, "compile_all", collect)
    dtype, models = BUILT[target]
    for name in models:
        model = captured(name, dtype)
        made = compile_graph(model.graph, model.weights, language_model(), TARGETS[target])
        assert made.program.steps
        turn += 1
    launches = list(found.values())
    for emitted, built in zip(launches, compile_all(launches, TARGETS[target]), strict=True):
        assert built.binary[:4] == b"\x7fELF", emitted.name
        assert built.shared_bytes <= TARGETS[target].shared_bytes, emitted.name


def test_every_gpu_has_models():
    assert BUILT.keys() == {t.name for t in GPUS}
