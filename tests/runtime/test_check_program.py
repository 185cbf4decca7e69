"""A program that is not whole is refused before anything of it runs; one that we built passes."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tilewright.api.machine import resolve_target
from tilewright.codegen.build import build
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.dim import Symbol, floordiv, mod, symbol
from tilewright.ir.errors import ArtifactError
from tilewright.ir.program import DIM, Buffer, Kernel, Program
from tilewright.ir.steps import Choice, LaunchStep
from tilewright.ir.types import TensorType, bf16, f32
from tilewright.passes import run
from tilewright.passes.pipelines import language_model
from tilewright.runtime.binding import Sizes
from tilewright.runtime.check_program import check_program
from tilewright.runtime.program_json import program_from_json, program_to_json

from ..models import tiny

N = symbol("n")


def chain() -> Program:
    """y = c(b(a(x, w))): three values in an arena with room for two."""
    kinds = {"x": "input", "w": "weight", "y": "output"}
    offsets = {"t0": 0, "t1": 64 * N, "t2": 0}
    buffers = {
        name: Buffer(name, TensorType((N, 16), f32), kinds.get(name, "temp"), offsets.get(name))
        for name in ("x", "w", "t0", "t1", "t2", "y")
    }
    kernel = Kernel("k", "cpp", "", "", "lib", "pointwise", args=("f32", "f32", DIM))
    wide = Kernel("wide", "cpp", "", "", "lib", "pointwise", args=("f32", "f32", "f32", DIM))
    steps = [LaunchStep("s0", (Choice("wide", 0, None, ("x", "w", "t0", N), writes=("t0",)),))]
    for i, (a, b) in enumerate([("t0", "t1"), ("t1", "t2"), ("t2", "y")], 1):
        steps.append(LaunchStep(f"s{i}", (Choice("k", 0, None, (a, b, N), writes=(b,)),)))
    return Program(
        "chain",
        "cpu",
        {"n": Symbol("n", 0, 1000)},
        buffers,
        ("x",),
        ("y",),
        {"k": kernel, "wide": wide},
        tuple(steps),
        128 * N,
        {"lib": b""},
    )


def with_step(program: Program, at: int, **changes) -> Program:
    steps = list(program.steps)
    steps[at] = replace(steps[at], choices=(replace(steps[at].choices[0], **changes),))
    return replace(program, steps=tuple(steps))


def with_buffer(program: Program, name: str, **changes) -> Program:
    changed = replace(program.buffers[name], **changes)
    return replace(program, buffers={**program.buffers, name: changed})


def test_a_whole_program_passes_at_every_size():
    check_program(chain())
    for n in (0, 1, 7, 1000):
        assert Sizes(chain()).bind({"n": n}).arena_bytes == 128 * n


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: replace(p, steps=()), "output y is written by no step"),
        (lambda p: replace(p, steps=p.steps[::-1]), "step s3 reads t2, which no step before it"),
        (lambda p: replace(p, steps=p.steps[1:]), "step s1 reads t0, which no step before it"),
        (lambda p: replace(p, steps=p.steps[:-1]), "output y is written by no step"),
        (
            lambda p: with_step(p, 1, args=("t0", N)),
            r"runs k with f32, dim; it takes f32, f32, dim",
        ),
        (lambda p: with_step(p, 1, args=("t0", "t1", N, N)), "it takes f32, f32, dim"),
        (lambda p: with_step(p, 1, kernel="wide"), "runs wide with f32, f32, dim"),
        (lambda p: with_step(p, 1, writes=("w",)), "step s1 writes w, which it is not given"),
        (lambda p: with_step(p, 0, writes=("t0", "w")), "s0 writes w, whose role is weight"),
        (lambda p: with_step(p, 0, writes=("t0", "x")), "s0 writes x, whose role is input"),
        (lambda p: with_step(p, 2, kernel="gone"), "s2 runs gone, and there is no such kernel"),
        (
            lambda p: with_buffer(p, "t1", type=TensorType((N, 16), bf16)),
            "runs k with f32, bf16, dim; it takes f32, f32, dim",
        ),
        (
            lambda p: with_buffer(p, "y", offset=64),
            "y has an offset in the arena, and the role out",
        ),
        (
            lambda p: with_buffer(p, "t1", role="counter", offset=None),
            "and the size of counters must be known",
        ),
        (lambda p: with_buffer(p, "t1", offset=symbol("m")), "t1 has the undeclared dims m"),
        (lambda p: with_buffer(p, "t1", type=TensorType((1,) * 65, f32)), "has 65 axes"),
        (lambda p: replace(p, symbols={"n": Symbol("n", 5, 4)}), "dim n has no range"),
        (lambda p: replace(p, inputs=("x", "x")), "an input is there twice"),
        (lambda p: replace(p, blobs={"lib": b"", "x\0": b""}), "is not a name for a kernel or a b"),
    ],
)
def test_what_is_not_whole_is_refused(change, says):
    with pytest.raises(ArtifactError, match=says):
        check_program(change(chain()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: with_buffer(p, "t1", offset=2**40), r"t1 lies at 1099511627776 to"),
        (lambda p: with_buffer(p, "t1", offset=2**70), "a size or an offset is 1180591620717"),
        (lambda p: with_buffer(p, "t1", offset=64 * N - 1024), "a size or an offset is -"),
        (lambda p: with_buffer(p, "t1", offset=64 * N - 4), "which is no multiple of 64"),
        (lambda p: with_buffer(p, "t1", offset=0), "t0 at 0 to 640 and t1 at 0 to 640 are in use"),
        (lambda p: with_buffer(p, "t1", type=TensorType((N, 32), f32)), "t1 lies at 640 to 1920"),
        (lambda p: replace(p, arena_bytes=64 * N), "t1 lies at 640 to 1280 in an arena of 640"),
        (lambda p: replace(p, arena_bytes=floordiv(128, mod(N, 2))), "dims .* cannot be computed"),
    ],
)
def test_memory_is_checked_when_sizes_are_known(change, says):
    program = change(chain())
    check_program(program)
    with pytest.raises(ArtifactError, match=says):
        Sizes(program).bind({"n": 10})


def test_all_problems_are_told_at_once():
    program = replace(with_step(chain(), 2, kernel="gone"), inputs=("x", "z"))
    with pytest.raises(ArtifactError) as caught:
        check_program(program)
    assert "gone" in str(caught.value)
    assert "z is an input or output, but no buffer" in str(caught.value)


@pytest.mark.parametrize("variant", ["llama", "gemma2"])
@pytest.mark.parametrize("target", ["cpu", "sm_90", "gfx942"])
def test_what_we_build_passes(variant, target, monkeypatch):
    """Also with workspaces, of several launches a group; nothing is compiled here."""
    if target != "cpu":
        pytest.importorskip("triton", reason="Triton is in the extra `gpu`")
    fake = SimpleNamespace(binary=b"", num_warps=4, shared_bytes=0, scratch_bytes=0, hidden=2)
    monkeypatch.setattr("tilewright.codegen.cpp.backend.compile_library", lambda *_: b"")
    monkeypatch.setattr(
        "tilewright.codegen.triton.backend.compile_all",
        lambda items, *_: [SimpleNamespace(**vars(fake), entry=e.name) for e in items],
    )
    captured = capture_causal_lm(tiny.make(variant))
    result = run(captured.graph, language_model(bf16, max_tokens=8192))
    program = build(result.graph, resolve_target(target), kv=result.kv)
    sources = {k.name: k.source for k in program.kernels.values()}
    data = json.loads(json.dumps(program_to_json(program)))
    program_from_json(data, program.blobs, sources.__getitem__)  # checks it
    sizes = Sizes(program)
    for t, seqs in ((1, 1), (3, 1), (17, 5), (64, 64), (300, 2), (8192, 9)):
        values = {"t": t, "seqs": seqs, "rows": seqs, "pages": 700, "width": 37, "kept": 9}
        sizes.bind({name: values[name] for name in program.symbols})


def test_a_program_that_has_passed_is_not_looked_at_again(monkeypatch):
    program = chain()
    check_program(program)
    damage = lambda _: iter(["damaged"])  # noqa: E731
    monkeypatch.setattr("tilewright.runtime.check_program._steps", damage)
    check_program(program)
    with pytest.raises(ArtifactError, match="damaged"):
        check_program(replace(program))  # another one, though it is equal
