"""Running a library's kernels from tests, held against the loop IR's meaning in NumPy."""

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewright.autotune.reference import run_kernel
from tilewright.codegen.cpp.binary import compile_library
from tilewright.codegen.cpp.emit import emit_kernel
from tilewright.codegen.loops import LoopKernel
from tilewright.ir import abi
from tilewright.ir.dim import evaluate
from tilewright.ir.target import cpu


class TwStep(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("p", ctypes.POINTER(ctypes.c_void_p)),
        ("d", ctypes.POINTER(ctypes.c_int64)),
    ]


class Library:
    """Kernels compiled together. `run` gives a kernel arrays in the order of its parameters."""

    def __init__(self, kernels: Mapping[str, LoopKernel], target=None, schedules=None):
        target = target or cpu()
        self.kernels = dict(kernels)
        chosen = schedules or {}
        self.sources = {n: emit_kernel(k, n, target, chosen.get(n)) for n, k in kernels.items()}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "library.so"
            path.write_bytes(compile_library(list(self.sources.items()), target))
            self.so = ctypes.CDLL(str(path))
        self.so.tw_scratch_bytes.restype = ctypes.c_int64
        self.so.tw_kernel_name.restype = ctypes.c_char_p

    def step(self, name: str, arrays: Sequence[np.ndarray], dims: Mapping[str, int]):
        """A step and what must stay alive while it is used."""
        kernel = self.kernels[name]
        assert len(arrays) == len(kernel.params)
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        sizes = (ctypes.c_int64 * max(1, len(kernel.symbols)))(*(dims[s] for s in kernel.symbols))
        index = self.so.tw_kernel_index(name.encode())
        assert index >= 0
        return TwStep(index, 0, pointers, sizes), (pointers, sizes, arrays)

    def run(self, name: str, arrays: Sequence[np.ndarray], dims: Mapping[str, int], threads=2):
        """Run in place; weights are packed first."""
        kernel = self.kernels[name]
        given = [
            p.encoding.pack(a, p.type.dtype) for p, a in zip(kernel.params, arrays, strict=True)
        ]
        for g, param in zip(given, kernel.params, strict=True):
            assert g.dtype == param.type.dtype.numpy, (g.dtype, param)
        step, keep = self.step(name, given, dims)
        code = self.so.tw_run((TwStep * 1)(step), 1, threads, None)
        assert code == abi.OK
        del keep

    def check(self, name, inputs, dims, *, rtol=1e-5, atol=1e-6, exact=False):
        """Run with 1 and 2 threads, which must agree in every bit, and against the reference.

        `inputs` has an array for each parameter that is read, in order; written ones are poisoned.
        Gives the written arrays.
        """
        kernel = self.kernels[name]
        rest = iter(inputs)
        arrays = [
            poison(p, dims) if p.is_written else np.ascontiguousarray(next(rest))
            for p in kernel.params
        ]
        assert next(rest, None) is None
        wanted = expected_of(kernel, arrays, dims)
        outputs = []
        for threads in (1, 2):
            got = [a.copy() for a in arrays]
            self.run(name, got, dims, threads)
            outputs.append([a for a, p in zip(got, kernel.params, strict=True) if p.is_written])
        for one, two in zip(*outputs, strict=True):
            assert one.tobytes() == two.tobytes(), "the number of threads changed the result"
        for got, want in zip(outputs[0], wanted, strict=True):
            if exact or want.dtype.kind != "f":
                np.testing.assert_array_equal(as_wide(got), want)
            else:
                np.testing.assert_allclose(as_wide(got), want, rtol=rtol, atol=atol)
        return outputs[0]

    def check_case(self, name, case, tolerance=1e-5):
        """A sample of ../triton: kernel, arrays and sizes together."""
        kernel = case.kernel
        wanted = expected_of(kernel, case.arrays, case.sizes)
        outputs = []
        for threads in (1, 2):
            got = [np.ascontiguousarray(a).copy() for a in case.arrays]
            self.run(name, got, case.sizes, threads)
            outputs.append([a for a, p in zip(got, kernel.params, strict=True) if p.is_written])
        for one, two, want in zip(*outputs, wanted, strict=True):
            assert one.tobytes() == two.tobytes(), "the number of threads changed the result"
            finite = np.abs(want[np.isfinite(want)]) if want.dtype.kind == "f" else np.abs(want)
            scale = float(finite.max(initial=0))
            np.testing.assert_allclose(as_wide(one), want, rtol=0, atol=tolerance * scale)


def expected_of(kernel: LoopKernel, arrays, dims) -> list[np.ndarray]:
    """What the kernel should write, floats in f64."""
    flat = [as_wide(a).reshape(-1).copy() for a in arrays]
    with np.errstate(all="ignore"):
        run_kernel(kernel, flat, dims)
    pairs = zip(flat, kernel.params, arrays, strict=True)
    return [a.reshape(like.shape) for a, p, like in pairs if p.is_written]


def poison(param, dims) -> np.ndarray:
    """An array no kernel would leave as it is."""
    shape = tuple(evaluate(d, dims) for d in param.type.shape)
    dtype = param.type.dtype
    return np.full(shape, 77 if dtype.name != "bool" else True, dtype.numpy)


def as_wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) if a.dtype.kind not in "iub" else a
