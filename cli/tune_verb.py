"""`tilewright tune`: measure which schedules are fastest, and keep them for later builds."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ir.errors import OptionError
from . import options
from .console import decoded, print_json, read_input

if TYPE_CHECKING:
    from ..api.tune_model import Tasks
    from ..ir.target import Target

RecordsFile = Annotated[
    Path | None,
    typer.Option(
        "--records", help="The file of records. Default: the user's own, that builds read."
    ),
]


def tune(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A folder (Hugging Face, ONNX), a .gguf file, an artifact, `demo`; or any module:"
            " package.module:name, file.py:name, a .pt2 or .onnx file."
        ),
    ] = None,
    records: RecordsFile = None,
    target: options.Target = "auto",
    budget: Annotated[
        float, typer.Option(min=1.0, help="Seconds that tuning may take in all.")
    ] = 600.0,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Processes that compile. Default: one a core."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Leave what the file has a record of.")
    ] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Tune on all devices that Ray reaches.")
    ] = False,
    frozen: Annotated[
        bool,
        typer.Option(
            "--frozen", help="Tune nothing: say what has a record, and what the others lack."
        ),
    ] = False,
    export: Annotated[
        bool, typer.Option("--export", help="Print the records of the file, a line of JSON each.")
    ] = False,
    import_from: Annotated[
        Path | None,
        typer.Option("--import", help="Take such lines into the file; - for standard input."),
    ] = None,
    dtype: options.DType = "auto",
    kv_cache_dtype: options.KVCacheDType = "auto",
    inputs: options.Inputs = None,
    dims: options.Dims = None,
    trust: options.Trust = False,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn while searching.")] = 0,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure which schedules of a model's kernels are fastest, those that cost most first.

    Each is kept as soon as it is known, so that a run that is ended loses nothing; --resume goes on
    from there. What is built later uses the records: docs/tuning.md.
    """
    wanted = [model is not None, export, import_from is not None]
    if sum(wanted) != 1:
        raise OptionError(
            "nothing says what to tune" if not any(wanted) else "too much is asked at once",
            fix="give a model; or --export; or --import FILE",
        )
    if export:
        _export(records)
    elif import_from is not None:
        _import(import_from, records, quiet)
    else:
        assert model is not None
        tasks, resolved = _tasks(
            model, target, dtype, kv_cache_dtype, inputs or [], dims or [], trust, quiet
        )
        if frozen:
            _say_missing(tasks, resolved, records, as_json)
            return
        workers = workers or len(os.sched_getaffinity(0))
        _tune(
            tasks, resolved, records, budget, workers, seed, resume, ray, quiet=quiet, json=as_json
        )


def _tasks(
    model: str,
    target: str,
    dtype: str,
    kv_cache_dtype: str,
    inputs: list[str],
    dims: list[str],
    trust: bool,
    quiet: bool,
) -> "tuple[Tasks, Target]":
    """What there is to tune, and for which target."""
    from ..api import tune_model
    from ..api.machine import resolve_target
    from ..api.records import NONE
    from ..api.request import Request, parse_dtype
    from ..runtime.artifact import is_artifact, open_artifact
    from .named_module import compile_named, is_named, options_of
    from .progress_line import progress

    if is_named(model):
        # what there is to tune does not depend on records
        how = {"strict": False, "options": options_of(dtype), "trust": trust, "records": NONE}
        with compile_named(model, inputs, dims, target=target, **how) as compiled:
            return tune_model.tasks_of_module(compiled), compiled.target
    if inputs or dims:
        raise OptionError(
            f"{model} is no module that is named, and --input and --dim are for those",
            fix="leave them out; a module is named as package.module:name or file.py:name",
        )
    if is_artifact(model):
        artifact = open_artifact(model)
        tasks = tune_model.tasks_of_artifact(artifact, model, target)
        return tasks, resolve_target(artifact.program.target)
    request = Request(
        model,
        dtype=parse_dtype(dtype, "--dtype"),
        target=resolve_target(target),
        kv_dtype=parse_dtype(kv_cache_dtype, "--kv-cache-dtype"),
        records=NONE,
    )
    with progress(quiet) as show:
        return tune_model.tasks_of_request(request, show), request.target


def _tune(
    tasks: "Tasks",
    target: "Target",
    records: Path | None,
    budget: float,
    workers: int,
    seed: int,
    resume: bool,
    ray: bool,
    *,
    quiet: bool,
    json: bool,
) -> None:
    from ..api.records import tuned_records
    from ..api.tune_model import tune_tasks
    from ..autotune.bench import Budget
    from .progress_line import progress

    with progress(quiet) as show:
        report = tune_tasks(
            tasks,
            target,
            records,
            Budget(budget, workers, seed),
            resume=resume,
            ray=ray,
            progress=show,
        )
    path = str(tuned_records(records))
    if json:
        print_json({"records": path, **report.to_json()})
    elif not quiet:
        print(report)
        print(f"records: {path}")


def _say_missing(tasks: "Tasks", target: "Target", records: Path | None, as_json: bool) -> None:
    from ..api.tune_model import missing

    recorded, misses = missing(tasks, target, records)
    told = [(m, tasks[m.key].kernel.template, m.key.bucket) for m in misses]
    if as_json:
        print_json(
            {
                "recorded": recorded,
                "missing": [
                    {
                        "kernel": kernel,
                        "sizes": sizes,
                        "key": miss.key.digest,
                        "changed": miss.changed,
                        "nearest": None if miss.nearest is None else miss.nearest.digest,
                    }
                    for miss, kernel, sizes in told
                ],
            }
        )
        return
    for miss, kernel, sizes in told:
        print(f"{kernel}, sizes {sizes}: {miss}")
    print(f"{recorded} of {recorded + len(misses)} tasks have a record for {target.name}")


def _export(records: Path | None) -> None:
    from ..api.tune_model import export_lines

    for line in export_lines(records):
        print(line)


def _import(source: Path, records: Path | None, quiet: bool) -> None:
    from ..api.tune_model import import_lines

    if str(source) == "-":
        text, where = read_input(), "standard input"
    else:
        where = str(source)
        with decoded(where):
            text = source.read_text(encoding="utf-8")
    found, taken = import_lines(text.splitlines(), where, records)
    if not quiet:
        print(f"{found} records, of which {taken} are new or later than what was there")
