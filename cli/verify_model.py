"""`tilewright verify`: a model's program beside its framework's results, and where they part."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..ir.errors import OptionError, WrongResult
from . import options
from .console import print_json

if TYPE_CHECKING:
    from ..api.verify_module import Verdict


def verify(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder (Hugging Face, ONNX), a .gguf file, `demo`; any module:"
            " package.module:name, file.py:name, or a .pt2 file; an .onnx file; or the"
            " text of a graph (*.ir)."
        ),
    ],
    inputs: options.Inputs = None,
    dims: options.Dims = None,
    arrays: Annotated[
        Path | None,
        typer.Option("--arrays", help="Arguments of a module by name, in an .npz file."),
    ] = None,
    dtype: options.DType = "auto",
    target: options.Target = "auto",
    kv_cache_dtype: options.KVCacheDType = "auto",
    tolerance: Annotated[
        float | None,
        typer.Option(min=0.0, help="The bound, relative to a result's largest magnitude."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs that are made.")] = 0,
    find: Annotated[
        bool,
        typer.Option("--bisect", help="Where a result is wrong, name the pass or the kernel."),
    ] = False,
    trust: options.Trust = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a model's program and its framework on the same inputs; exit with 1 if they differ.

    Results must be as near to the framework's as the dtypes computed in allow; integers equal.
    --bisect names what moved numbers first: the import, a pass, or a kernel.
    """
    from .named_module import is_named

    if model.endswith(".onnx"):
        from ..api.verify_onnx import verify_onnx
        from .named_module import options_of, read_arrays, shapes_of_inputs

        verdict = verify_onnx(
            model,
            shapes=shapes_of_inputs(inputs or [], dims or [], model),
            arrays=None if arrays is None else read_arrays(arrays),
            target=target,
            options=options_of(dtype),
            tolerance=tolerance,
            seed=seed,
            find=find,
        )
    elif is_named(model):
        verdict = _module(
            model, inputs or [], dims or [], arrays, dtype, target, tolerance, seed, find, trust
        )
    elif inputs or dims or arrays is not None:
        raise OptionError(
            f"{model} is no module that is named: --input, --dim and --arrays are for those",
            fix="leave them out; a module is named as package.module:name or file.py:name",
        )
    elif model.endswith(".ir"):
        from ..api.verify_graph import verify_graph
        from .opt import read_text

        verdict = verify_graph(read_text(model), path=model, target=target, seed=seed, find=find)
    else:
        from ..api.verify_language_model import verify_language_model
        from .progress_line import progress

        with progress(quiet) as show:
            verdict = verify_language_model(
                model,
                dtype=dtype,
                target=target,
                kv_cache_dtype=kv_cache_dtype,
                tolerance=tolerance,
                seed=seed,
                find=find,
                progress=show,
            )
    if as_json:
        print_json({"model": model, "right": verdict.is_right, **asdict(verdict)})
    else:
        print(rendered(verdict))
    if not verdict.is_right:
        raise _error(model, verdict, find)


def _module(
    model: str,
    inputs: list[str],
    dims: list[str],
    arrays: Path | None,
    dtype: str,
    target: str,
    tolerance: float | None,
    seed: int,
    find: bool,
    trust: bool,
) -> "Verdict":
    from ..api.verify_module import verify_module
    from .named_module import as_tensors, load_named, options_of, read_arrays

    named = load_named(model, inputs, dims, trust=trust)
    kwargs: dict[str, Any] = dict(named.kwargs)
    if arrays is not None:
        kwargs |= as_tensors(read_arrays(arrays))
    return verify_module(
        named.module,
        named.args,
        kwargs,
        dynamic_shapes=named.dynamic_shapes,
        target=target,
        options=options_of(dtype),
        given=arrays is not None or named.has_values,
        tolerance=tolerance,
        seed=seed,
        find=find,
    )


def rendered(verdict: "Verdict") -> str:
    """A line a run, and what was found."""
    lines = [f"{verdict.target} beside {verdict.reference}"]
    for case in verdict.cases:
        for result in case.results:
            mark = "right" if result.is_right else "WRONG"
            lines.append(
                f"  {mark}  {case.what}: {result.name}: off by {result.error:.2g},"
                f" allowed {result.bound:.2g}"
            )
    if verdict.suspect is not None:
        lines.append(f"first moved by {verdict.suspect}")
    return "\n".join(lines)


def _error(model: str, verdict: "Verdict", find: bool) -> WrongResult:
    wrong = [(c, r) for c in verdict.cases for r in c.results if not r.is_right]
    case, worst = max(wrong, key=lambda pair: pair[1].error / (pair[1].bound or 1e-300))
    total = sum(len(case.results) for case in verdict.cases)
    return WrongResult(
        f"{len(wrong)} of {total} results differ from {verdict.reference}",
        where=model,
        facts=f"{case.what}: {worst.name} is off by {worst.error:.3g}, allowed {worst.bound:.3g}",
        fix=f"first moved by {verdict.suspect}"
        if verdict.suspect is not None
        else "no import, pass or kernel moves numbers by more than it may: together they do"
        if find
        else "--bisect names the import, the pass or the kernel that moved numbers first",
    )
