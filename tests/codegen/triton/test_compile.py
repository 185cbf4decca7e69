"""Every template compiles for every GPU target, on a machine without a GPU."""

import shutil
from dataclasses import replace

import pytest

from tilewright.codegen.templates import choices
from tilewright.codegen.templates.attention_schedules import AttentionSchedule
from tilewright.codegen.templates.contract_schedules import DotSchedule
from tilewright.codegen.triton.binary import compile_kernel
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.errors import BuildError
from tilewright.ir.target import TARGETS
from tilewright.ir.types import bf16, f32

from . import samples
from .gpus import GPUS

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Triton's cache in a folder of this run: a compile that was cached proves nothing."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("triton")
    patch.setenv("TRITON_CACHE_DIR", str(folder))
    yield
    patch.undo()
    shutil.rmtree(folder)


def build(case, target, schedule=None):
    _, buckets = choices(case.kernel, target)
    schedules = [s for _, _, s in buckets] if schedule is None else [schedule]
    if target.name != "sm_90":  # there all; elsewhere the ends, which differ in template
        schedules = [*schedules[:2], *schedules[2:][-1:]]
    emitted = [e for s in schedules for e in emit_kernel(case.kernel, "kernel", s, target)]
    # launches that join pieces are the same in several schedules; where they lie is not compiled
    for launch in dict.fromkeys(replace(e, buffers=(), dims=(), grid=(1, 1, 1)) for e in emitted):
        compiled = compile_kernel(launch, target)
        assert compiled.binary[:4] == b"\x7fELF"
        assert compiled.entry.encode() in compiled.binary
        assert 0 <= compiled.shared_bytes <= target.shared_bytes


CASES = {
    "rope_append": lambda: samples.rope_append(dtype=bf16),
    "rms_norm": lambda: samples.norm(width=4096, dtype=bf16),
    "argmax": lambda: samples.reductions(2, 30000, f32),
    "held_columns": samples.softmax_of_columns,
    "transpose": samples.transposed,
    "linear": lambda: samples.linear(4, 256, 512, bf16),
    "linear_f32": lambda: samples.linear(4, 256, 512, f32),
    "gated": lambda: samples.gated(4, 256, 512, bf16),
    "scores": samples.scores,
    "attention": lambda: samples.attention(
        [4], [4], dtype=bf16, heads=32, groups=8, size=128, page=16
    ),
    "widest_attention": lambda: samples.attention(
        [4], [4], dtype=bf16, heads=8, groups=2, size=512, page=16
    ),
    "widest_dense_attention": lambda: samples.dense_attention(heads=8, groups=2, size=512),
    "dense_attention": lambda: samples.dense_attention(
        dtype=bf16, heads=8, groups=2, size=128, mask=(("t",), bf16)
    ),
    "sample": lambda: samples.sample(128256),
}


@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
@pytest.mark.parametrize("name", CASES)
def test_default_schedules_compile(name, target):
    build(CASES[name](), target)


def test_a_target_is_held_to_what_its_data_says():
    """A GPU described here and nowhere else: less of everything than an H200."""
    own = replace(
        TARGETS["sm_90"], name="half an H200", has_dependent_launch=False, max_threads=64,
        shared_bytes=1000,
    )  # fmt: skip
    case = samples.linear(4, 256, 512, bf16)
    (launch,) = emit_kernel(case.kernel, "kernel", DotSchedule(16, 64, 64, True), own)
    (usual,) = emit_kernel(case.kernel, "kernel", DotSchedule(16, 64, 64, True), TARGETS["sm_90"])
    assert (launch.pdl, usual.pdl) == (False, True)
    assert "gdc" in usual.source
    assert "gdc" not in launch.source
    with pytest.raises(BuildError, match=r"needs more threads(.|\n)*it needs 128, there are 64"):
        compile_kernel(launch, own)
    with pytest.raises(BuildError, match=r"more shared memory than half an H200 has"):
        compile_kernel(replace(launch, num_warps=2), own)


@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_other_schedules_compile(target):
    linear = samples.linear(4, 256, 512, bf16)
    build(linear, target, DotSchedule(16, 64, 64, True, True, split_k=2, num_stages=2))
    build(
        samples.attention(
            [4], [4], dtype=bf16, heads=8, groups=2, size=64, window=100, softcap=30.0
        ),
        target,
        AttentionSchedule(16, 32, 1, 4, 1),
    )
