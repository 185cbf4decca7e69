"""`tilewright compile`: build an artifact, also for a device this machine does not have."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ir.errors import OptionError
from . import options
from .console import human_bytes, print_json

if TYPE_CHECKING:
    from ..runtime.artifact import Artifact


def compile_model(
    model: options.Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The artifact: a folder, or a file named *.zip.")
    ],
    dtype: options.DType = "auto",
    target: options.Target = "auto",
    kv_cache_dtype: Annotated[
        str, typer.Option(help="How keys and values are stored. Default: as they are computed.")
    ] = "auto",
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace an artifact that is there.")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Build an artifact: kernels, weights and tokenizer in one folder. Running it compiles nothing.

    The target may be a GPU that this machine does not have.
    """
    from ..api.build_model import get_model
    from ..api.counted import counted
    from ..api.machine import resolve_target
    from ..api.request import Request, parse_dtype
    from ..runtime.artifact import is_artifact, save_artifact
    from ..runtime.storage import check_writable
    from .progress import progress

    if output.exists() and not (force and is_artifact(output)):
        raise OptionError(
            f"{output} is there already",
            facts="it is an artifact" if is_artifact(output) else "it is no artifact",
            fix="--force replaces an artifact" if is_artifact(output) else "choose another name",
        )
    check_writable(output)
    start = time.perf_counter()
    request = Request(
        model,
        dtype=parse_dtype(dtype, "--dtype"),
        target=resolve_target(target),
        kv_dtype=parse_dtype(kv_cache_dtype, "--kv-cache-dtype"),
    )
    with progress(quiet) as show:
        built = get_model(request, show)
        weights = counted(built.artifact.weights, "save", show)
        save_artifact(output, replace(built.artifact, weights=weights))
    figures = {
        "artifact": str(output),
        "seconds": round(time.perf_counter() - start, 2),
        "was_cached": built.was_cached,
        **figures_of(built.artifact),
    }
    if as_json:
        print_json(figures)
    elif not quiet:
        print(
            f"{output}: {figures['target']}, {figures['distinct_kernels']} kernels, "
            f"{human_bytes(figures['weight_bytes'])} of weights, in {figures['seconds']:.1f} s"
        )


def figures_of(artifact: "Artifact") -> dict:
    """What there is to say of an artifact in one line."""
    return {
        "target": artifact.program.target,
        "distinct_kernels": len(artifact.program.kernels),
        "launches": len(artifact.program.steps),
        "fallback_ops": artifact.facts["fallback_ops"],
        "weight_bytes": sum(
            buffer.type.numel * buffer.type.dtype.nbytes for buffer in artifact.program.weights
        ),
    }
