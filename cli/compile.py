"""`tilewright compile`: build an artifact, also for a device this machine does not have."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..ir.errors import OptionError
from . import options
from .console import human_bytes, print_json

if TYPE_CHECKING:
    from ..runtime.artifact import Artifact


def compile_model(
    model: Annotated[
        str,
        typer.Argument(
            help="A folder (Hugging Face, ONNX), a .gguf file, `demo`; an .onnx file;"
            " or any module: package.module:name, file.py:name, or a .pt2 file."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The artifact: a folder, or a file named *.zip.")
    ],
    dtype: options.DType = "auto",
    target: options.Target = "auto",
    kv_cache_dtype: options.KVCacheDType = "auto",
    records: options.Records = None,
    inputs: options.Inputs = None,
    dims: options.Dims = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse operations without a kernel: else PyTorch computes them."
        ),
    ] = False,
    trust: options.Trust = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace an artifact that is there.")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Build an artifact: kernels and weights in one folder. Running it compiles nothing.

    The target may be a GPU that this machine does not have. A module is named as
    package.module:name, which is imported: an instance, a class, or a function that returns one,
    also as (module, example_inputs).
    """
    from ..runtime.artifact import is_artifact, open_artifact
    from ..runtime.storage import check_writable
    from .named_module import is_named

    if output.exists() and not (force and is_artifact(output)):
        raise OptionError(
            f"{output} is there already",
            facts="it is an artifact" if is_artifact(output) else "it is no artifact",
            fix="--force replaces an artifact" if is_artifact(output) else "choose another name",
        )
    check_writable(output)
    start = time.perf_counter()
    if is_named(model):
        if kv_cache_dtype != "auto":
            raise OptionError("--kv-cache-dtype is for language models", fix="leave it out")
        how = {"target": target, "strict": strict, "trust": trust, "records": records}
        _save_module(output, model, inputs or [], dims or [], dtype, how)
        was_cached = False
    elif inputs or dims:
        raise OptionError(
            f"{model} is no module that is named, and --input and --dim are for those",
            fix="leave them out; a module is named as package.module:name or file.py:name",
        )
    else:
        was_cached = _save_language_model(
            output, model, dtype, target, kv_cache_dtype, records, quiet
        )
    figures = {
        "artifact": str(output),
        "seconds": round(time.perf_counter() - start, 2),
        "was_cached": was_cached,
        **figures_of(open_artifact(output)),
    }
    if as_json:
        print_json(figures)
    elif not quiet:
        calls = figures["fallback_ops"]
        print(
            f"{output}: {figures['target']}, {figures['distinct_kernels']} kernels, "
            + f"{calls} calls of PyTorch, " * bool(calls)
            + f"{human_bytes(figures['weight_bytes'])} of weights, in {figures['seconds']:.1f} s"
        )


def _save_module(
    output: Path,
    model: str,
    inputs: list,
    dims: list,
    dtype: str,
    how: Mapping[str, Any],
) -> None:
    from .named_module import compile_named, options_of

    with compile_named(model, inputs, dims, options=options_of(dtype), **how) as compiled:
        compiled.save(output)


def _save_language_model(
    output: Path,
    model: str,
    dtype: str,
    target: str,
    kv_cache_dtype: str,
    records: str | None,
    quiet: bool,
) -> bool:
    """-> whether it was compiled before."""
    from ..api.build_model import get_model
    from ..api.counted import counted
    from ..api.machine import resolve_target
    from ..api.request import Request, parse_dtype
    from ..runtime.artifact import save_artifact
    from .progress_line import progress

    request = Request(
        model,
        dtype=parse_dtype(dtype, "--dtype"),
        target=resolve_target(target),
        kv_dtype=parse_dtype(kv_cache_dtype, "--kv-cache-dtype"),
        records=records,
    )
    with progress(quiet) as show:
        built = get_model(request, show)
        weights = counted(built.artifact.weights, "save", show)
        save_artifact(output, replace(built.artifact, weights=weights))
    return built.was_cached


def figures_of(artifact: "Artifact") -> dict:
    """What there is to say of an artifact in one line."""
    from ..ir.steps import launches

    programs = [stored.program for stored in artifact.programs]
    facts = artifact.facts
    return {
        "target": artifact.program.target,
        "programs": len(programs),
        "distinct_kernels": len({k.key for program in programs for k in program.kernels.values()}),
        "launches": sum(1 for program in programs for _ in launches(program.steps)),
        "fallback_ops": sum(each["fallback_ops"] for each in facts.get("programs", [facts])),
        "weight_bytes": sum(array.nbytes for array in artifact.weights.values()),
    }
