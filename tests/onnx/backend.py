"""Tilewright as a backend of ONNX's own tests, and the cases that it is held to.

`python -m tilewright.tests.onnx.backend` runs all of them, or a part, and prints what fails; the
suite takes a sample. `onnx.backend.test.BackendTest(TilewrightBackend, __name__)` takes the class.
"""

import argparse
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.runner import Runner

from tilewright.api.compile_onnx import CompiledOnnx, compile_onnx
from tilewright.ir.types import dtype_of

from .exclusions import EXCLUDED

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOLDERS = ("simple", "pytorch-converted", "pytorch-operator", "light")
LEAST_ATOL = 1e-7
SLOW_SECONDS = 20


class Compiled(BackendRep):
    """A model that is compiled, called with a list of arrays."""

    def __init__(self, module: CompiledOnnx):
        self.module = module

    def run(self, inputs: Sequence[Any], **_: Any) -> tuple[Any, ...]:
        """The model's outputs."""
        return tuple(self.module(*inputs))


class TilewrightBackend(Backend):
    """What ONNX's test runner asks of a backend."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        """Every model is tried."""
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Compiled:
        """Compile a model."""
        return Compiled(compile_onnx(model, target="cpu"))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """The suite runs on the CPU."""
        return device == "CPU"


class Case(NamedTuple):
    """One test of ONNX: a model, and what it gives for some inputs."""

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


def node_cases(pattern: str = ".") -> Iterator[Case]:
    """The cases of single operators and their expansions, which onnx makes in memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making them overflows casts
        from onnx.backend.test.case.node import collect_testcases

        collected = collect_testcases(None)
    for case in collected:
        if re.search(pattern, case.name):
            yield Case(case.name, case.model, case.data_sets or [], case.rtol, case.atol)


def stored_cases(pattern: str = ".") -> Iterator[Case]:
    """The cases that lie in the package as files."""
    for folder in FOLDERS:
        for path in sorted((DATA / folder).glob("**/*.onnx")):
            name = path.stem if folder == "light" else path.parent.name
            if re.search(pattern, name):
                yield Case(name, onnx.load(path), list(_stored_data(path)), 1e-3, LEAST_ATOL)


def _stored_data(path: Path) -> Iterator[tuple[list[Any], list[Any]]]:
    model = onnx.load(path)
    stored = {tensor.name for tensor in model.graph.initializer}
    declared = [value for value in model.graph.input if value.name not in stored]
    if path.parent.name == "light":  # called with what onnx's own runner makes for them
        inputs = [Runner.generate_dummy_data(value, random=False) for value in declared]
        output = path.with_name(f"{path.stem}_output_0.pb")
        yield inputs, [_read(output, model.graph.output[0].type)]
        return
    for folder in sorted(path.parent.glob("test_data_set_*")):
        yield tuple(
            [
                _read(folder / f"{kind}_{i}.pb", value.type)
                for i, value in enumerate(values)
                if (folder / f"{kind}_{i}.pb").exists()
            ]
            for kind, values in (("input", declared), ("output", model.graph.output))
        )  # type: ignore[misc]


def _read(path: Path, type: onnx.TypeProto) -> Any:
    kinds = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
    proto = kinds.get(type.WhichOneof("value") or "", onnx.TensorProto)()
    proto.ParseFromString(path.read_bytes())
    return plain(proto)


def plain(value: Any) -> Any:
    """A stored value as arrays, lists of them, or None."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value if value is None else np.asarray(value)


def check(case: Case) -> None:
    """AssertionError where a result differs in dtype, shape or by more than the case allows."""
    compiled = TilewrightBackend.prepare(case.model)
    for inputs, outputs in case.data:
        results = compiled.run([plain(x) for x in inputs])
        for number, (result, want) in enumerate(zip(results, outputs, strict=True)):
            _same(result, plain(want), case, f"{case.name}, output {number}")
    compiled.module.close()


def _same(result: Any, want: Any, case: Case, where: str) -> None:
    if isinstance(want, list):
        assert isinstance(result, list), where
        assert len(result) == len(want), where
        for part, other in zip(result, want):
            _same(part, other, case, where)
        return
    if want is None:
        assert result is None, where
        return
    result = np.asarray(result)
    assert result.dtype == want.dtype, f"{where}: {result.dtype}, not {want.dtype}"
    assert result.shape == want.shape, f"{where}: {result.shape}, not {want.shape}"
    atol = max(case.atol, LEAST_ATOL)
    dtype = dtype_of(want.dtype)
    if dtype_of(want.dtype) is None and want.dtype.itemsize == 1:
        result, want = result.view(np.uint8), want.view(np.uint8)
    elif dtype is not None and dtype.is_packed:
        result, want = result.astype(np.int8), want.astype(np.int8)
    elif dtype is not None and dtype.is_float:  # compared as what ml_dtypes hold
        step = float(ml_dtypes.finfo(want.dtype).eps)
        result, want = result.astype(np.float64), want.astype(np.float64)
        # a sum may round the other way, by a step at the largest of the numbers
        atol = max(atol, step * np.abs(want[np.isfinite(want)]).max(initial=0.0))
    np.testing.assert_allclose(result, want, rtol=case.rtol, atol=atol, err_msg=where)


def reason(name: str) -> str | None:
    """Why a case is left out; None where it is not."""
    return next((why for pattern, why in EXCLUDED.items() if re.fullmatch(pattern, name)), None)


def main() -> None:
    """Run a part of the cases and print what fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=".", help="a pattern that names have to match")
    parser.add_argument("--part", default="0/1", help="every n-th case, from the k-th on: k/n")
    given = parser.parse_args()
    first, step = map(int, given.part.split("/"))
    counts: Counter[str] = Counter()
    cases = (*node_cases(given.only), *stored_cases(given.only))
    for case in cases[first::step]:
        if reason(case.name) is not None:
            counts["excluded"] += 1
            continue
        start = time.perf_counter()
        try:
            check(case)
            counts["passed"] += 1
        except Exception as error:  # noqa: BLE001  whatever it is, it is told
            counts["failed"] += 1
            what = " | ".join(filter(None, map(str.strip, str(error).splitlines())))
            print(f"{case.name}: {type(error).__name__}: {what[:300]}")
        if (seconds := time.perf_counter() - start) > SLOW_SECONDS:
            print(f"{case.name}: {seconds:.0f} s")
    print(", ".join(f"{count} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
