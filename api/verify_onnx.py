"""`verify` for ONNX models: the program beside onnxruntime, or beside the reference of onnx."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.errors import OptionError, told
from ..passes.differential import difference
from ..passes.pipelines import dense
from ..passes.random_inputs import bindings, random_arguments
from .bisect import Suspect, bisect
from .compile_model import compile, require_onnx
from .compiled_variant import CompiledVariant
from .verify_module import WHOLE, Case, Difference, Verdict, bound_of

Arrays = Mapping[str, np.ndarray]


def verify_onnx(
    path: str | Path,
    *,
    shapes: Any = None,
    arrays: Arrays | None = None,
    target: str = "auto",
    tolerance: float | None = None,
    seed: int = 0,
    find: bool = False,
) -> Verdict:
    """Compile an ONNX model and compare its outputs with those of another runtime.

    That is onnxruntime where it is installed, else the reference of the package onnx. The runs are
    one with `arrays`, where they are given by the names of inputs, and one of random numbers for
    each of several sizes. A model whose sizes are known only from inputs needs `arrays`.
    """
    require_onnx()
    from ..frontend.onnx.other_runtimes import run_elsewhere

    reference, theirs_of = run_elsewhere(str(path))
    with compile(path, dynamic_shapes=shapes, target=target) as compiled:
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
        calls = [("the arrays given", arrays)] if arrays is not None else []
        calls = calls or list(_drawn(variant, compiled.inputs, theirs_of, seed))
        cases, wrong = [], None
        for what, given in calls:
            ours, theirs = compiled(**given), theirs_of(given)
            named = zip(compiled.outputs, ours, theirs, strict=True)
            results = tuple(_result(name, a, b, bound) for name, a, b in named)
            cases.append(Case(what, results))
            if wrong is None and not all(r.is_right for r in results):
                wrong = given
        suspect = None
        if find and wrong is not None:
            suspect = _suspect(compiled, wrong, shapes)
        return Verdict(reference, compiled.target.name, tuple(cases), suspect)


def _result(name: str, ours: Any, theirs: Any, bound: float) -> Difference:
    a, b = np.asarray(ours), np.asarray(theirs)
    is_float = b.dtype.kind not in "biuSUO"
    if is_float:
        a, b = a.astype(np.float64), b.astype(np.float64)
    return Difference(name, difference(a, b), bound if is_float else 0.0)


def _drawn(
    variant: CompiledVariant, names: tuple[str, ...], theirs_of: Callable, seed: int
) -> Iterator[tuple[str, Arrays]]:
    """Random arrays by the model's names of inputs, with integers that the other runtime takes."""
    graph = variant.compiled.plan.graph
    seen: list[dict[str, int]] = []
    for sizes in bindings(graph):
        sizes = {name: size for name, size in sizes.items() if name not in graph.late_symbols}
        if sizes in seen:
            continue
        seen.append(sizes)
        failure: Exception | None = None
        for whole in WHOLE:
            made = random_arguments(graph, sizes, 1.0, seed, whole)
            given = dict(zip(names, (made[v.name or ""] for v in graph.inputs), strict=True))
            try:
                theirs_of(given)
            except Exception as error:  # noqa: BLE001  another runtime's own: unfit numbers
                failure = error
                continue
            shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
            yield f"random, {shown or 'fixed sizes'}", given
            break
        else:
            raise OptionError(
                "the model takes none of the inputs that were made for it",
                where=", ".join(f"{name}={size}" for name, size in sizes.items()),
                facts=told(failure) if failure is not None else "",
                fix="give inputs that it takes: --arrays FILE.npz",
            )


def _suspect(compiled: Any, arrays: Arrays, shapes: Any) -> Suspect | None:
    """The first pass or kernel that is wrong for a call."""
    from ..frontend.onnx.import_model import import_onnx

    imported = import_onnx(compiled._file, shapes=shapes)
    values = [arrays[name] for name in compiled.inputs]
    arguments = {v.name or "": np.asarray(x) for v, x in zip(imported.graph.inputs, values)}
    return bisect(imported.graph, imported.weights, dense(None), compiled.target, arguments)
