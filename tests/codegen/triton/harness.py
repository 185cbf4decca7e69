"""Loop kernels with data: lowered from small graphs, run by the interpreter, against NumPy."""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np

from tilewright.autotune.reference import run_kernel
from tilewright.codegen.backend import COUNTERS
from tilewright.codegen.loops import LoopKernel
from tilewright.codegen.triton.emit import emit_kernel, workspace_types
from tilewright.ir.dim import evaluate
from tilewright.ir.target import get_target

WORKER = Path(__file__).with_name("interpret_worker.py")
# dtypes that NumPy cannot save, and as what their bits are
BITS = {"bfloat16": np.int16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}


@dataclass
class Case:
    """A kernel, one array a parameter (in its stored dtype), and values of symbols."""

    kernel: LoopKernel
    arrays: list[np.ndarray]
    sizes: dict[str, int] = field(default_factory=dict)

    def expected(self) -> list[np.ndarray]:
        """Every parameter after the kernel, floats in float64."""
        buffers = [flat(a) for a in self.arrays]
        run_kernel(self.kernel, buffers, self.sizes)
        return buffers

    def written(self) -> list[int]:
        return [i for i, p in enumerate(self.kernel.params) if p.is_written]


class Interpreter:
    """A subprocess in which Triton interprets; TRITON_INTERPRET is read when triton is imported."""

    is_card = False

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**__import__("os").environ, "TRITON_INTERPRET": "1"},
        )

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=600)
        self.process.stdout.close()
        self.folder.cleanup()

    def run(self, case: Case, schedule) -> list[np.ndarray]:
        """Every parameter after the launches of `schedule`, floats in float64."""
        kernel = case.kernel
        root = Path(self.folder.name)
        files: dict[int | str, tuple[str, str]] = {}
        for number, array in enumerate(case.arrays):
            files[number] = self._save(root / f"p{number}.npy", array)
        for name, type in workspace_types(kernel, schedule).items():
            shape = [evaluate(d, case.sizes) for d in type.shape]
            # what is not written must not be read
            poison = np.full(shape, 0 if name == COUNTERS else 3, type.dtype.numpy)
            if type.dtype.is_float:
                poison = np.full(shape, np.nan, type.dtype.numpy)
            files[name] = self._save(root / f"w_{name}.npy", poison)
        for launch in emit_kernel(kernel, "kernel", schedule, get_target("sm_90"), interpret=True):
            source = root / "source.py"
            source.write_text(launch.source)
            request = {
                "source": str(source),
                "name": launch.name,
                "grid": [evaluate(d, case.sizes) for d in launch.grid],
                "arguments": [
                    *(files[b] for b in launch.buffers),
                    *(evaluate(d, case.sizes) for d in launch.dims),
                ],
            }
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
            assert answer["ok"], f"{answer.get('error')}\n{launch.source}"
        if COUNTERS in files:
            assert not self._read(files[COUNTERS]).any(), "the last program sets a counter back"
        return [self._read(files[i]) for i in range(len(case.arrays))]

    def _save(self, path: Path, array: np.ndarray) -> tuple[str, str]:
        name = array.dtype.name
        np.save(path, array.view(BITS[name]) if name in BITS else array)
        return str(path), name

    def _read(self, file: tuple[str, str]) -> np.ndarray:
        array, name = np.load(file[0]), file[1]
        return flat(array.view(getattr(ml_dtypes, name)) if name in BITS else array)


def check(runner, case: Case, schedule, tolerance: float = 1e-5) -> None:
    """Run and compare everything written, relative to the largest value."""
    got, want = runner.run(case, schedule), case.expected()
    assert case.written()
    for number in case.written():
        a, b = got[number], want[number]
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        finite = np.isfinite(b)
        np.testing.assert_array_equal(np.isfinite(a), finite)
        scale = max(np.abs(b[finite]).max(initial=0.0), 1e-30)
        np.testing.assert_allclose(a[finite], b[finite], rtol=0, atol=tolerance * scale)


def flat(array: np.ndarray) -> np.ndarray:
    """A copy in one axis, floats in float64."""
    return array.reshape(-1).astype(np.float64) if _is_float(array) else array.reshape(-1).copy()


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name in BITS
