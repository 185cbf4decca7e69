"""Runs programs built for a GPU under Triton's interpreter, in a process of its own.

`Interpreted` is a CPU device whose kernels are the programs' Triton sources: everything but the
compiler is what a GPU would run. Programs and arrays come and go pickled.
"""

import ctypes
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tilewright.ir.program import Program
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.program_json import program_from_json, program_to_json


class Interpreter:
    """The process; TRITON_INTERPRET is read when triton is imported."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TRITON_INTERPRET": "1"},
        )

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=600)
        self.process.stdout.close()

    def run(self, program: Program, weights, arrays: list) -> list:
        """The program's outputs. RuntimeError with what was raised there."""
        sources = {name: kernel.source for name, kernel in program.kernels.items()}
        given = program_to_json(program), program.blobs, sources, dict(weights), arrays
        pickle.dump(given, self.process.stdin)
        self.process.stdin.flush()
        outputs = pickle.load(self.process.stdout)
        if isinstance(outputs, str):
            raise RuntimeError(outputs)
        return outputs


def make_interpretable(monkeypatch, tiles: dict[type, dict[str, int]]) -> None:
    """Programs for GPUs are emitted for the interpreter, and not compiled.

    `tiles` are sizes that schedules of a class have here.
    """
    from tilewright.codegen.triton import backend
    from tilewright.codegen.triton.binary import CompiledKernel

    def choices(kernel, target, real=backend.choices):
        select, buckets = real(kernel, target)
        return select, [(lo, hi, smaller(schedule)) for lo, hi, schedule in buckets]

    def smaller(schedule):
        return replace(schedule, **tiles.get(type(schedule), {}))

    def compile_all(launches, target, done):
        return [CompiledKernel(b"", e.name, e.num_warps, 0, 0, 0) for e in launches]

    monkeypatch.setattr(backend, "choices", choices)
    monkeypatch.setattr(backend, "emit_kernel", partial(backend.emit_kernel, interpret=True))
    monkeypatch.setattr(backend, "compile_all", compile_all)


class Interpreted(CpuDevice):
    """This computer's memory, and kernels in Triton's words."""

    def load(self, program: Program):
        return _Module(program)


class _Module:
    takes_blocks = False

    def __init__(self, program: Program):
        self.folder = tempfile.TemporaryDirectory()
        self.functions = {}
        for name, kernel in program.kernels.items():
            path = Path(self.folder.name) / f"{name}.py"
            path.write_text(kernel.source)
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.functions[name] = getattr(module, name)

    def plan(self, launches):
        return _Plan(self, launches)


class _Plan:
    def __init__(self, module: _Module, launches):
        self.module, self.launches = module, launches

    def run(self, addresses) -> None:
        for launch in self.launches:
            function = self.module.functions[launch.kernel.name]
            given = zip(launch.buffers, launch.kernel.args)
            pointers = [_pointer(int(addresses[at]), kind) for at, kind in given]
            function[tuple(launch.grid)](*pointers, *launch.dims)


def _pointer(address: int, kind: str):
    """A tensor at an address; its length plays no part."""
    import torch

    names = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
    names |= {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "bool": "bool"}
    names |= {"u64": "uint64", "u32": "uint32", "u16": "uint16"}
    dtype = getattr(torch, names.get(kind, "uint8"))
    return torch.frombuffer((ctypes.c_char * dtype.itemsize).from_address(address), dtype=dtype)


def _splat(builder, type, value):
    """A scalar over a shape, in the dtype of its data: the interpreter has 1.0 for `0.5 != 0`."""
    from triton.runtime.interpreter import TensorHandle

    return TensorHandle(np.full(type.shape, value.data.reshape(-1)[0]), value.dtype.scalar)


def serve() -> None:
    """Run what comes in until nothing more does."""
    import torch
    from triton.runtime.interpreter import InterpreterBuilder

    import tilewright.tests.ir.random_steps  # noqa: F401  registers what its graphs call
    from tilewright.runtime.executable import Executable

    InterpreterBuilder.create_splat = _splat
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what kernels print is no answer
    while True:
        try:
            data, blobs, sources, weights, arrays = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            program = program_from_json(data, blobs, sources.__getitem__)
            made = Executable(program, weights, Interpreted())
            outputs = [array.numpy().copy() for array in made(*arrays)]
        except Exception as error:  # noqa: BLE001  the one who asked is told
            outputs = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        pickle.dump(outputs, answers)
        answers.flush()


if __name__ == "__main__":
    serve()
