"""Running a library's kernels from tests, and the loop IR's meaning in NumPy to hold them against."""

import ctypes
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tilewright.codegen import pack
from tilewright.codegen.cpp import abi
from tilewright.codegen.cpp.compile import compile_library
from tilewright.codegen.cpp.emit import emit_kernel
from tilewright.codegen.loops import (
    Apply, Axis, Cast, Const, Contract, Index, Load, LoopKernel, Pointwise, Reduce, Ref, Select,
)  # fmt: skip
from tilewright.ir.dim import Expr, evaluate
from tilewright.ir.scalar import FUNCTIONS
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

    def __init__(self, kernels: Mapping[str, LoopKernel], target=None):
        target = target or cpu()
        self.kernels = dict(kernels)
        self.sources = {n: emit_kernel(k, n, target) for n, k in kernels.items()}
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
        given = [pack.pack(p.layout, a) for p, a in zip(kernel.params, arrays, strict=True)]
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
        wanted = [a.copy() for a in arrays]
        interpret(kernel, wanted, dims)
        outputs = []
        for threads in (1, 2):
            got = [a.copy() for a in arrays]
            self.run(name, got, dims, threads)
            outputs.append([a for a, p in zip(got, kernel.params, strict=True) if p.is_written])
        for one, two in zip(*outputs, strict=True):
            assert one.tobytes() == two.tobytes(), "the number of threads changed the result"
        expected = [a for a, p in zip(wanted, kernel.params, strict=True) if p.is_written]
        for got, want in zip(outputs[0], expected, strict=True):
            if exact:
                np.testing.assert_array_equal(as_wide(got), as_wide(want))
            else:
                np.testing.assert_allclose(as_wide(got), as_wide(want), rtol=rtol, atol=atol)
        return outputs[0]


def poison(param, dims) -> np.ndarray:
    """An array no kernel would leave as it is."""
    shape = tuple(evaluate(d, dims) for d in param.type.shape)
    dtype = param.type.dtype
    return np.full(shape, 77 if dtype.name != "bool" else True, dtype.numpy)


def as_wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) if a.dtype.kind not in "iub" else a


# ---- the meaning of the loop IR ----------------------------------------------------------------


def interpret(kernel: LoopKernel, arrays, dims) -> None:
    """Run the kernel with NumPy, floats in f64, writing into `arrays`."""
    flat = [a.reshape(-1) for a in arrays]
    values = {s: dims[s] for s in kernel.symbols}
    for part in kernel.parts:
        {Pointwise: _pointwise, Reduce: _reduce, Contract: _contract}[type(part)](
            part, flat, values
        )


def grid(axes: Sequence[Axis], values) -> dict[str, np.ndarray]:
    """Every point of the axes, flat: an array of indices for each."""
    sizes = [evaluate(a.extent, values) for a in axes]
    points = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), int)
    env = {a.name: p for a, p in zip(axes, points, strict=True)}
    env["*"] = np.zeros(points.shape[1], int)
    return env


def dim_value(dim, env):
    """A dim over index arrays."""
    if not isinstance(dim, Expr):
        return dim + env["*"]
    total = env["*"].astype(np.int64)
    for monomial, coefficient in dim.terms:
        term = np.int64(coefficient)
        for atom, power in monomial:
            if isinstance(atom, str):
                value = env[atom]
            else:
                a, b = (dim_value(x, env) for x in atom.args)
                ops = {"floordiv": np.floor_divide, "mod": np.mod, "min": np.minimum,
                       "max": np.maximum}  # fmt: skip
                value = ops[atom.op](a, b)
            term = term * value**power
        total = total + term
    return total


def wide(dtype) -> np.dtype:
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


def element(e, flat, env):
    """An element at every point of env."""
    with np.errstate(all="ignore"):
        return _element(e, flat, env)


def _element(e, flat, env):
    match e:
        case Const():
            return np.full(env["*"].shape, e.value, wide(e.dtype))
        case Index():
            return dim_value(e.value, env).astype(wide(e.dtype))
        case Ref():
            return env["ref " + e.name]
        case Load():
            inner = dict(env)
            for name, index in e.indirect:
                inner[name] = _element(index, flat, inner).astype(np.int64)
            return flat[e.param][dim_value(e.offset, inner)].astype(wide(e.dtype))
        case Apply():
            args = [_element(a, flat, env) for a in e.args]
            return np.asarray(FUNCTIONS[e.fn](*args)).astype(wide(e.dtype))
        case Cast():
            return _element(e.arg, flat, env).astype(e.dtype.numpy).astype(wide(e.dtype))
        case Select():
            mask = dim_value(e.lhs, env) < dim_value(e.rhs, env)
            out = np.zeros(mask.shape, wide(e.dtype))
            for side, chosen in ((e.then, mask), (e.other, ~mask)):
                sub = {n: v[chosen] if np.ndim(v) else v for n, v in env.items()}
                out[chosen] = _element(side, flat, sub)
            return out
    raise TypeError(e)


def _store(store, flat, env):
    keep = slice(None)
    if store.guard is not None:
        keep = element(store.guard, flat, env) >= 0
    env = {n: v[keep] if np.ndim(v) else v for n, v in env.items()}
    value = element(store.value, flat, env)
    for name, index in store.indirect:
        env[name] = element(index, flat, env).astype(np.int64)
    with np.errstate(all="ignore"):
        flat[store.param][dim_value(store.offset, env)] = value.astype(flat[store.param].dtype)


def _pointwise(part, flat, values):
    env = grid(part.axes, values) | values
    for store in part.stores:
        _store(store, flat, env)


_REDUCE = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all,
    "argmax": np.argmax, "argmin": np.argmin,
}  # fmt: skip


def _rows(reduction, flat, env, rows, length):
    value = element(reduction.value, flat, env).reshape(rows, length)
    if reduction.op in ("max", "min") and length == 0:
        fill = -np.inf if reduction.op == "max" else np.inf
        return np.full(rows, fill)
    if reduction.op in ("sum", "prod"):
        value = value.astype(wide(reduction.dtype))
    with np.errstate(all="ignore"):
        return _REDUCE[reduction.op](value, axis=1).astype(wide(reduction.dtype))


def _reduce(part, flat, values):
    env = grid((*part.rows, part.axis), values) | values
    row_env = grid(part.rows, values) | values
    length = evaluate(part.axis.extent, values)
    rows = len(row_env["*"])
    for phase in part.phases:
        for reduction in phase:
            result = _rows(reduction, flat, env, rows, length)
            row_env["ref " + reduction.name] = result
            env["ref " + reduction.name] = np.repeat(result, length)
    for store in part.row_stores:
        _store(store, flat, row_env)
    for store in part.stores:
        _store(store, flat, env)


def _contract(part, flat, values):
    batch, m, n, k = (
        tuple(evaluate(a.extent, values) for a in axes)
        for axes in (part.batch, (part.m,), (part.n,), (part.k,))
    )
    count = int(np.prod(batch))
    env_x = grid((*part.batch, part.m, part.k), values) | values
    env_w = grid((*part.batch, part.n, part.k), values) | values
    env = grid((*part.batch, part.m, part.n), values) | values
    x = element(part.x, flat, env_x).reshape(count, *m, *k)
    for i, w in enumerate(part.ws):
        w = element(w, flat, env_w).reshape(count, *n, *k)
        if x.dtype == np.int8:
            x, w = x.astype(np.int32), w.astype(np.int32)
        env[f"ref acc{i}"] = (x @ w.transpose(0, 2, 1)).reshape(-1)
    for stat in part.stats:
        result = _rows(stat, flat, env_x, count * m[0], k[0])
        env["ref " + stat.name] = np.repeat(result, n[0])
    for store in part.stores:
        _store(store, flat, env)


@pytest.fixture(scope="session")
def library():
    """Compiles kernels by name into a Library."""
    return Library


@pytest.fixture(scope="session")
def sizes():
    """Sizes worth trying: one, odd ones, whole vectors, more than a chunk."""
    return list(itertools.chain((1, 3, 7, 16, 33, 64)))
