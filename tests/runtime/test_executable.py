"""Executable on the CPU, with a program and library written by hand: no code generator involved."""

import shutil
import subprocess
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch

from tilewright.ir import abi
from tilewright.ir.dim import Symbol, symbol
from tilewright.ir.encoding import ROWS
from tilewright.ir.errors import ArtifactError, DeviceError, DimError, OutOfMemory, ShapeError
from tilewright.ir.program import Buffer, Kernel, Program
from tilewright.ir.steps import Choice, LaunchStep
from tilewright.ir.types import TensorType, bf16, f32, i64
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.executable import MAX_BINDINGS, Executable

# z = x * w + state; state += z's first row; count of threads in the last element of `threads`
SOURCE = r"""
#include <stdint.h>
#include <string.h>
struct Step { int32_t kernel, alone; void* const* p; const int64_t* d; };
static int threads_seen;
static void scale(void* const* p, const int64_t* d) {
    const float *x = (const float*)p[0], *w = (const float*)p[1];
    float* t = (float*)p[2];
    for (int64_t i = 0; i < d[0] * d[1]; ++i) t[i] = x[i] * w[i % d[1]];
}
static void accumulate(void* const* p, const int64_t* d) {
    const float* t = (const float*)p[0];
    float *s = (float*)p[1], *z = (float*)p[2];
    for (int64_t i = 0; i < d[0] * d[1]; ++i) z[i] = t[i] + s[i % d[1]];
    for (int64_t j = 0; j < d[1] && d[0]; ++j) s[j] = z[j];
}
static void widen(void* const* p, const int64_t* d) {
    const uint16_t* h = (const uint16_t*)p[0];
    uint16_t* o = (uint16_t*)p[1];
    for (int64_t i = 0; i < d[0]; ++i) o[d[0] - 1 - i] = h[i];
}
static const char* names[] = {"scale", "accumulate", "widen"};
extern "C" {
int32_t tw_abi_version(void) { return VERSION; }
int32_t tw_kernel_index(const char* n) {
    for (int i = 0; i < 3; ++i) if (!strcmp(n, names[i])) return i;
    return -1;
}
int64_t tw_scratch_bytes(const Step*, int64_t, int32_t) { return 1234; }
void tw_close(void) {}
int32_t tw_threads(void) { return threads_seen; }
int32_t tw_run(const Step* s, int64_t n, int32_t threads, int64_t* ns) {
    threads_seen = threads;
    if (threads == 77) return 1;
    for (int64_t i = 0; i < n; ++i) {
        if (s[i].kernel < 0 || s[i].kernel > 2) return 2;
        (s[i].kernel == 0 ? scale : s[i].kernel == 1 ? accumulate : widen)(s[i].p, s[i].d);
        if (ns) ns[i] = 1000 * (i + 1);
    }
    return 0;
}
}
"""


def compile_library(folder, version=abi.VERSION):
    source, library = folder / "tiny.cpp", folder / f"tiny{version}.so"
    source.write_text(SOURCE)
    flags = ["-O1", "-shared", "-fPIC", f"-DVERSION={version}"]
    subprocess.run(["g++", *flags, "-o", library, source], check=True)
    return library.read_bytes()


pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_library(tmp_path_factory.mktemp("library"))


B, N = symbol("b"), symbol("n")


def buffer(name, shape, role, dtype=f32, offset=None, encoding=ROWS):
    return Buffer(name, TensorType(shape, dtype), role, offset, encoding)


def affine(blob, **changes) -> Program:
    """z [b, n] = x [b, n] * w [6] + s [6]; s = z[0]."""
    buffers = [
        buffer("x", (B, N), "input"),
        buffer("h", (2 * B,), "input", bf16),
        buffer("w", (6,), "weight"),
        buffer("s", (6,), "state"),
        buffer("t", (B, N), "temp", offset=64 * B),
        buffer("z", (B, N), "output"),
        buffer("o", (2 * B,), "output", bf16),
    ]
    kernels = [
        Kernel(n, "cpp", n, SOURCE, "tiny", "pointwise") for n in ("scale", "accumulate", "widen")
    ]
    program = Program(
        name="affine",
        target="cpu",
        symbols={"b": Symbol("b", 0, 100), "n": Symbol("n", 1, 6)},
        buffers={b.name: b for b in buffers},
        inputs=("x", "h"),
        outputs=("z", "o", "z", "x", "s", "w"),
        kernels={k.name: k for k in kernels},
        steps=(
            LaunchStep(
                "k0",
                (Choice("scale", 0, None, ("x", "w", "t", B, N), writes=("t",)),),
                B,
                loc="first",
                traffic=12 * B * N,
                operations=B * N,
            ),
            LaunchStep(
                "k1",
                (Choice("accumulate", 0, 100, ("t", "s", "z", B, N), writes=("s", "z")),),
                B,
            ),
            LaunchStep("k2", (Choice("widen", 0, None, ("h", "o", 2 * B), writes=("o",)),)),
        ),
        arena_bytes=64 * B + 4 * B * N,
        blobs={"tiny": blob},
    )
    return replace(program, **changes)


WEIGHTS = {"w": np.arange(6, dtype=np.float32)}


@pytest.fixture
def exe(library):
    return Executable(affine(library), WEIGHTS, CpuDevice())


def inputs(rng, b):
    x = rng.standard_normal((b, 6)).astype(np.float32)
    return x, rng.standard_normal(2 * b).astype(ml_dtypes.bfloat16)


def test_runs_with_states_kept(exe, rng):
    x, h = inputs(rng, 3)
    state = np.zeros(6, np.float32)
    for _ in range(3):
        z, o, again, same_x, s, w = exe(x, h)
        expected = x * WEIGHTS["w"] + state
        state = expected[0]
        np.testing.assert_array_equal(z.numpy(), expected)
        np.testing.assert_array_equal(o.numpy(), h[::-1])
        assert again is z
        np.testing.assert_array_equal(same_x.numpy(), x)
        np.testing.assert_array_equal(s.numpy(), state)
        np.testing.assert_array_equal(w.numpy(), WEIGHTS["w"])
    np.testing.assert_array_equal(exe.states["s"].numpy(), state)
    assert same_x.address != x.ctypes.data, "an input that is also an output is a copy"
    assert s.address != exe.states["s"].address
    exe.states["s"].numpy()[:] = 1
    np.testing.assert_array_equal(exe(x, h)[0].numpy(), x * WEIGHTS["w"] + 1)
    exe.states["s"].numpy()[:] = 0
    np.testing.assert_array_equal(exe(x, h)[0].numpy(), x * WEIGHTS["w"])


def test_first_values_of_states(library, rng):
    x, h = inputs(rng, 2)
    first = np.full(6, 5, np.float32)
    exe = Executable(affine(library), WEIGHTS, CpuDevice(), states={"s": first})
    np.testing.assert_array_equal(exe(x, h)[0].numpy(), x * WEIGHTS["w"] + 5)
    assert (first == 5).all(), "the caller's array is not the state"
    with pytest.raises(ShapeError, match="first value of state s does not fit"):
        Executable(affine(library), WEIGHTS, CpuDevice(), states={"s": first[:5]})


def test_counters_begin_as_zeros_and_are_no_states(library, rng):
    x, h = inputs(rng, 2)
    program = affine(library, outputs=("z", "o"))
    counter = replace(program.buffers["s"], role="counter")
    program = replace(program, buffers={**program.buffers, "s": counter})
    exe = Executable(program, WEIGHTS, CpuDevice())
    np.testing.assert_array_equal(exe(x, h)[0].numpy(), x * WEIGHTS["w"])
    assert exe.states == {}


def test_any_size_in_any_order(exe, rng):
    """The arena grows; addresses bound before it grew are renewed."""
    for b in [1, 100, 2, 100, 0, 1, 50]:
        x, h = inputs(rng, b)
        exe.states["s"].numpy()[:] = 0
        z, o = exe(x, h)[:2]
        np.testing.assert_array_equal(z.numpy(), x * WEIGHTS["w"])
        assert z.shape == (b, 6)
        assert o.shape == (2 * b,)


def test_bindings_are_bounded(exe, rng, monkeypatch):
    monkeypatch.setattr("tilewright.runtime.executable.MAX_BINDINGS", 4)
    for b in [*range(1, 20), 1, 1, 2]:
        exe(*inputs(rng, b))
        assert len(exe._bound) <= 4
    assert MAX_BINDINGS > 64


def test_an_input_that_is_missing(exe, rng):
    with pytest.raises(ShapeError, match="takes 2 arrays, got 1"):
        exe(inputs(rng, 2)[0])


def test_torch_in_and_out(exe, rng):
    x = torch.randn(4, 6)
    h = torch.randn(8).bfloat16()
    z, o = exe(x, h)[:2]
    z, o = torch.from_dlpack(z), torch.from_dlpack(o)
    assert torch.equal(z, x * torch.arange(6.0))
    assert o.dtype is torch.bfloat16
    assert torch.equal(o, h.flip(0))
    strided = torch.randn(6, 4).T
    exe.states["s"].numpy()[:] = 0
    assert torch.equal(torch.from_dlpack(exe(strided, h)[0]), strided * torch.arange(6.0))


def test_preallocated_outputs(exe, rng):
    x, h = inputs(rng, 2)
    z, o = np.empty((2, 6), np.float32), torch.empty(4, dtype=torch.bfloat16)
    copies = [np.empty((2, 6), np.float32), np.empty_like(x), *np.empty((2, 6), np.float32)]
    results = exe(x, h, out=[z, o, *copies])
    assert results[0] is z
    assert results[1] is o
    np.testing.assert_array_equal(z, x * WEIGHTS["w"])
    np.testing.assert_array_equal(copies[0], z)
    np.testing.assert_array_equal(copies[1], x)
    np.testing.assert_array_equal(o.view(torch.uint16).numpy(), h[::-1].view(np.uint16))
    with pytest.raises(ShapeError, match=r"for z: f32\[3, 6\], needed is a contiguous f32\[2, 6\]"):
        exe(x, h, out=[np.empty((3, 6), np.float32), o, *copies])
    with pytest.raises(ShapeError, match="out has 1 arrays, outputs are 6"):
        exe(x, h, out=[z])


def test_wrong_inputs_are_listed(exe, rng):
    x, h = inputs(rng, 2)
    with pytest.raises(ShapeError) as caught:
        exe(x.astype(np.float64), h.astype(np.float32))
    assert str(caught.value) == (
        "affine was given arrays of the wrong dtype\n"
        "  x is f64, must be f32\n"
        "  h is f32, must be bf16\n"
        "  convert them, or compile the model for these dtypes"
    )
    with pytest.raises(DimError, match=r"dim b \(x axis 0\) is 101, its range is \[0, 100\]"):
        exe(*inputs(rng, 101))
    with pytest.raises(DimError, match="h axis 0 is 3, must be 4"):
        exe(x, h[:3])
    with pytest.raises(DimError, match="x has rank 1"):
        exe(x[0], h)
    with pytest.raises(ShapeError, match="a list is not an array"):
        exe([1.0], h)
    with pytest.raises(ShapeError, match=r"detached first: x.detach\(\)"):
        exe(torch.randn(2, 6, requires_grad=True), h)


def test_wrong_weights_are_listed(library):
    program = affine(library)
    with pytest.raises(ShapeError, match="1 of 1 weights are missing") as caught:
        Executable(program, {}, CpuDevice())
    assert "no array for w" in str(caught.value)
    with pytest.raises(ShapeError, match=r"w is f32\[5\], must be f32\[6\]"):
        Executable(program, {"w": np.zeros(5, np.float32)}, CpuDevice())
    with pytest.raises(ShapeError, match=r"w is f64\[6\], must be f32\[6\]"):
        Executable(program, {"w": np.zeros(6)}, CpuDevice())


def test_aligned_weights_are_not_copied(library):
    raw = np.zeros(6 * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    aligned = raw[start : start + 24].view(np.float32)
    exe = Executable(affine(library), {"w": aligned}, CpuDevice())
    assert exe.weights["w"].address == aligned.ctypes.data
    skewed = np.zeros(32 + 64, np.uint8)
    start = -skewed.ctypes.data % 64 + 4
    exe = Executable(
        affine(library), {"w": skewed[start : start + 24].view(np.float32)}, CpuDevice()
    )
    assert exe.weights["w"].address % 64 == 0
    shared = Executable(affine(library), exe.weights, CpuDevice())
    assert shared.weights["w"].address == exe.weights["w"].address


def test_wrong_device_and_library(library, tmp_path):
    with pytest.raises(DeviceError, match="was compiled for sm_90, this device is the CPU"):
        Executable(affine(library, target="sm_90"), WEIGHTS, CpuDevice())
    with pytest.raises(DeviceError, match="shared library does not load"):
        Executable(affine(b"not a library"), WEIGHTS, CpuDevice())
    with pytest.raises(DeviceError, match=f"version 1, this runtime speaks version {abi.VERSION}"):
        Executable(affine(compile_library(tmp_path, 1)), WEIGHTS, CpuDevice())
    kernels = {**affine(library).kernels, "gone": Kernel("gone", "cpp", "g", "", "tiny", "reduce")}
    with pytest.raises(DeviceError, match="lacks the kernel gone"):
        Executable(affine(library, kernels=kernels), WEIGHTS, CpuDevice())


def test_a_program_that_is_not_whole(library):
    program = affine(library, outputs=("z", "gone"))
    with pytest.raises(ArtifactError) as caught:
        Executable(program, WEIGHTS, CpuDevice())
    assert str(caught.value) == (
        "program affine is not whole\n"
        "  gone is an input or output, but no buffer\n"
        "  buffer o has the role output, but is none of the outputs\n"
        "  build it again"
    )


def test_a_size_no_kernel_covers(library, rng):
    program = affine(library)
    first = replace(program.steps[0], choices=(replace(program.steps[0].choices[0], hi=5),))
    steps = (first, *program.steps[1:])
    exe = Executable(replace(program, steps=steps), WEIGHTS, CpuDevice())
    exe(*inputs(rng, 5))
    with pytest.raises(
        DimError, match=r"no kernel of step k0 covers.*\n.*first\n.*b is 6"
    ) as caught:
        exe(*inputs(rng, 6))
    assert "kernels cover [0, 5]" in str(caught.value)


def test_states_of_symbolic_size(library):
    program = affine(library)
    pages = symbol("pages")
    program = replace(
        program,
        buffers={**program.buffers, "kv": buffer("kv", (pages, 4), "state")},
        symbols={**program.symbols, "pages": Symbol("pages")},
    )
    with pytest.raises(DimError, match="the size of state kv is not known") as caught:
        Executable(program, WEIGHTS, CpuDevice())
    assert "pages was not given" in str(caught.value)
    exe = Executable(program, WEIGHTS, CpuDevice(), sizes={"pages": 7})
    assert exe.states["kv"].shape == (7, 4)
    assert not exe.states["kv"].numpy().any()
    with pytest.raises(OutOfMemory, match="no memory for state kv") as caught:
        Executable(program, WEIGHTS, CpuDevice(), sizes={"pages": 10**14})
    assert "needed: 1,600,000,000,000,000 bytes; available: " in str(caught.value)


def test_an_i64_input_that_is_strided(library):
    program = affine(library)
    kept = {n: b for n, b in program.buffers.items() if b.role != "output"}
    kept["x"] = buffer("x", (B, N), "input", i64)
    exe = Executable(replace(program, outputs=("x",), buffers=kept, steps=()), WEIGHTS, CpuDevice())
    x = np.arange(24).reshape(4, 6)[:, ::-1]
    np.testing.assert_array_equal(exe(x, np.zeros(8, ml_dtypes.bfloat16))[0].numpy(), x)
