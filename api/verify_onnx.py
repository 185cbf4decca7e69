"""`verify` for ONNX models: the program beside onnxruntime, or beside the reference of onnx."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir.errors import OptionError
from ..passes.differential import difference
from ..passes.rounding import Expected, expected
from .bisect import bisect
from .compile_model import compile, require_onnx
from .compiled_variant import pipeline_of
from .verify_module import Arrays, Case, Difference, Verdict, bound_of, random_calls

if TYPE_CHECKING:
    from ..frontend.onnx.import_model import ImportedOnnx


def verify_onnx(
    path: str | Path,
    *,
    shapes: Any = None,
    arrays: Arrays | None = None,
    target: str = "auto",
    options: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    find: bool = False,
) -> Verdict:
    """Compile an ONNX model and compare its outputs with those of another runtime.

    That is onnxruntime where it is installed, else the reference of the package onnx. The runs are
    one with `arrays`, where they are given by the names of inputs, and one of random numbers for
    each of several sizes. A model whose sizes are known only from inputs needs `arrays`. A result
    that differs may differ by what rounding decides, as a code of a quantized model: without a
    `tolerance` both runtimes are then held against what rounding may make of the model's results.
    """
    require_onnx()
    from ..frontend.onnx.import_model import import_onnx
    from ..frontend.onnx.other_runtimes import run_elsewhere

    reference, theirs_of = run_elsewhere(str(path))
    with compile(path, dynamic_shapes=shapes, target=target, options=options) as compiled:
        if arrays is not None:
            compiled.specialize((), arrays)
        if not compiled.variants:
            raise OptionError(
                "the model does not say what it is called with",
                where=str(path),
                fix="--arrays FILE.npz with an array for each input, or --input 'x=f32[8, 3]'",
            )
        variant = compiled.variants[-1]
        bound = tolerance if tolerance is not None else bound_of(variant.compiled.plan.graph)
        names = [v.name or "" for v in variant.compiled.plan.graph.inputs]

        def taken(made: Arrays) -> tuple[Arrays, Sequence[Any]]:
            given = dict(zip(compiled.inputs, map(made.__getitem__, names), strict=True))
            return given, theirs_of(given)

        calls: Iterable[tuple[str, Any]] = random_calls(variant, seed, taken)
        if arrays is not None:
            calls = [("the arrays given", (arrays, theirs_of(arrays)))]
        cases, wrong = [], None
        imported: ImportedOnnx | None = None  # made where a result differs
        for what, (given, theirs) in calls:
            named = list(zip(compiled.outputs, compiled(**given), theirs, strict=True))
            results = tuple(_result(name, a, b, bound) for name, a, b in named)
            if tolerance is None and not all(r.is_right for r in results):
                imported = imported or import_onnx(compiled._file, shapes=shapes)
                may = expected(imported.graph, _arguments(imported, given), imported.weights)
                results = tuple(
                    _within_rounding(result, one, {"the program": ours, reference: other})
                    for result, one, (_, ours, other) in zip(results, may, named)
                )
            cases.append(Case(what, results))
            if wrong is None and not all(r.is_right for r in results):
                wrong = given
        suspect = None
        if find and wrong is not None:
            imported = imported or import_onnx(compiled._file, shapes=shapes)
            suspect = bisect(
                imported.graph,
                imported.weights,
                pipeline_of(compiled._options, compiled.target),
                compiled.target,
                _arguments(imported, wrong),
            )
        return Verdict(reference, compiled.target.name, tuple(cases), suspect)


def _result(name: str, ours: Any, theirs: Any, bound: float) -> Difference:
    a, b = np.asarray(ours), np.asarray(theirs)
    is_float = b.dtype.kind not in "biuSUO"
    if is_float:
        a, b = a.astype(np.float64), b.astype(np.float64)
    return Difference(name, difference(a, b), bound if is_float else 0.0)


def _within_rounding(result: Difference, may: Expected, made: Mapping[str, Any]) -> Difference:
    """A result that differs, as a multiple of what rounding may do: that of the farther runtime."""
    if result.is_right:
        return result
    errors = {name: may.excess(np.asarray(array)) for name, array in made.items()}
    farther = max(errors, key=lambda name: errors[name])
    what = f"{result.name} of {farther}, in multiples of what rounding may do"
    return Difference(what, errors[farther], 1.0)


def _arguments(imported: "ImportedOnnx", arrays: Arrays) -> Arrays:
    """A call's arrays as arguments of the graph that was imported."""
    values = [np.asarray(arrays[name]) for name in imported.inputs]
    return {v.name or "": x for v, x in zip(imported.graph.inputs, values)}
