"""Tuning of models: their graphs, where is measured, and the records that come of it."""

import subprocess
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from .. import passes
from ..autotune.bench import Bench, Budget
from ..autotune.key import Key
from ..autotune.on_ray import devices_of
from ..autotune.record import parse_lines
from ..autotune.record_file import RecordFile
from ..autotune.recorded import Miss, RecordedSchedules, load
from ..autotune.task import Task
from ..autotune.tasks import merged_tasks, tasks_of
from ..autotune.tune import tune
from ..autotune.tune_report import TuneReport
from ..autotune.tuner import KernelTuner
from ..codegen.cpp.binary import find_compiler
from ..ir.errors import ArtifactError, OptionError
from ..ir.graph import Graph
from ..ir.layout import KVLayout
from ..ir.parse import parse_graph
from ..ir.progress import Progress, unwatched
from ..ir.target import Target
from ..runtime.artifact import Artifact
from . import cache
from .build_model import capture, from_cache, pipeline_of
from .compiled_variant import CompilingModule
from .machine import device_name, open_device, resolve_target
from .records import tuned_records
from .request import Request

Tasks = dict[Key, Task]


def tasks_of_artifact(artifact: Artifact, where: str, target: str = "auto") -> Tasks:
    """What there is to tune in the programs of an artifact, for the target they are built for."""
    built_for = artifact.program.target
    if target not in ("auto", built_for):
        raise OptionError(
            f"{where} is compiled for {built_for}",
            facts=f"the target asked for is {target}",
            fix="give the model it was made of",
        )
    graphs = []
    for stored in artifact.programs:
        if stored.graph_text is None:
            raise ArtifactError(
                "the artifact does not say what it was made of",
                where=where,
                facts="it has no graph.ir",
                fix="give the model it was made of",
            )
        graphs.append((parse_graph(stored.graph_text, path=where), stored.program.kv))
    return _tasks(graphs, resolve_target(built_for))


def tasks_of_request(request: Request, progress: Progress = unwatched) -> Tasks:
    """Of a language model: of its artifact in the cache, or captured now; nothing is built."""
    key = request.key
    kept = None if key is None else from_cache(cache.path_of(key), progress)
    if kept is not None:
        return tasks_of_artifact(kept, str(request.model))
    captured = capture(request, progress)
    result = passes.run(captured.graph, pipeline_of(request), progress=progress)
    return _tasks([(result.graph, result.kv)], request.target)


def tasks_of_module(compiled: CompilingModule) -> Tasks:
    """Of all programs that a compiled module has made. Where there is none, the error says why."""
    _ = compiled.report
    graphs = [(v.compiled.plan.graph, v.program.kv) for v in compiled.variants]
    return _tasks(graphs, compiled.target)


def _tasks(graphs: Iterable[tuple[Graph, KVLayout | None]], target: Target) -> Tasks:
    return merged_tasks(tasks_of(graph, target, kv) for graph, kv in graphs)


def tune_tasks(
    tasks: Tasks,
    target: Target,
    records: Path | None,
    budget: Budget,
    *,
    resume: bool = False,
    ray: bool = False,
    progress: Progress = unwatched,
) -> TuneReport:
    """Tune within the budget, and keep what is found in a file, the user's own where none is named.

    DeviceError where the target is not here; see `autotune.tune`.
    """
    file = RecordFile(tuned_records(records))
    file.add([])  # one that cannot be written is told before hours of work
    devices = devices_of(target.is_gpu) if ray else None
    if devices is None:
        open_device(target)
    return tune(
        tasks,
        bench_of(target),
        file,
        budget,
        resume=resume,
        on_devices=devices,
        progress=progress,
    )


def missing(tasks: Tasks, target: Target, records: Path | None) -> tuple[int, list[Miss]]:
    """(tasks that have a record, what is missing of the others); nothing is tuned."""
    found = load(tuned_records(records), target, near=True)
    for task in tasks.values():
        _ask(found, task)
    return len(tasks) - len(found.misses), found.misses


def _ask(found: RecordedSchedules, task: Task) -> None:
    found.buckets(task.kernel, task.target, task.size, [(task.lo, task.hi, task.default)])


def export_lines(records: Path | None) -> list[str]:
    """The records of a file as lines of JSON. OptionError where there is no file."""
    path = tuned_records(records)
    if not path.is_file():
        raise OptionError("there is no such file of records", where=str(path))
    return RecordFile(path).lines()


def import_lines(lines: Sequence[str], where: str, records: Path | None) -> tuple[int, int]:
    """Take records into a file, all or none. -> (how many there are, how many were new)."""
    found = parse_lines([line for line in lines if line.strip()], where)
    taken = RecordFile(tuned_records(records)).add(record.stored for record in found)
    return len(found), taken


def bench_of(target: Target) -> Bench:
    """Where tasks for a target run: this machine's device, or another of its kind."""
    versions = {n: v for n in ("tilewright", "triton") if (v := cache.version_of(n)) is not None}
    if not target.is_gpu:
        said = subprocess.run([*find_compiler(), "--version"], capture_output=True, text=True)
        versions["cxx"] = (said.stdout.splitlines() or ["does not tell its version"])[0]
    return Bench(partial(open_device, target), KernelTuner, device_name(target), versions)
