"""Graph and weights -> program and packed weights: the middle that every front end shares."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import passes
from ..codegen.build import build
from ..codegen.group import make_plan
from ..ir import switches
from ..ir.errors import PassError
from ..ir.evaluate import evaluate
from ..ir.graph import Graph, Node, Value
from ..ir.lazy_arrays import LazyArray, LazyArrays
from ..ir.plan import Plan
from ..ir.program import Buffer, Program
from ..ir.progress import Progress, unwatched
from ..ir.steps import HostCall, walk
from ..ir.target import Target
from ..ir.text import print_plan
from ..passes import Pass, PassResult, Report
from .counted import counted
from .records import Records, report_records, schedules_of
from .report_calls import report_calls
from .watching import dump_program, start_logging


@dataclass(frozen=True)
class Compiled:
    """A program, its weights (computed when looked up), and how it came about."""

    program: Program
    weights: LazyArrays
    report: Report
    plan: Plan  # of the graph after all passes

    @property
    def graph_text(self) -> str:
        """The graph after all passes, with its plan."""
        return print_plan(self.plan)

    @property
    def fallback_ops(self) -> int:
        """Steps that run neither a generated kernel nor a library's routine: calls of the host."""
        return sum(isinstance(step, HostCall) for step in walk(self.program.steps))


def compile_graph(
    graph: Graph,
    weights: Mapping[str, np.ndarray],
    pipeline: str | Sequence[Pass],
    target: Target,
    *,
    records: Records = None,
    progress: Progress = unwatched,
) -> Compiled:
    """Run the pipeline and build the kernels, with schedules as `records` has them.

    Raises our own errors only.
    """
    start_logging()
    planned = passes.parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    result = passes.run(graph, planned, progress=progress)
    _check_finished(planned)
    plan = make_plan(result.graph, result.report, target=target)
    schedules = schedules_of(records, target)
    program = build(
        result.graph, target, kv=result.kv, plan=plan, progress=progress, schedules=schedules
    )
    report_records(schedules, len(result.graph.nodes), result.report)
    report_calls(program, len(result.graph.nodes), result.report)
    dump_program(plan, program)
    arrays = counted(packed_weights(result, weights.__getitem__, program), "pack", progress)
    return Compiled(program, arrays, result.report, plan)


def packed_weights(
    result: PassResult, load: Callable[[str], np.ndarray], program: Program
) -> LazyArrays:
    """Weights of `program` as they are encoded, computed from the original ones.

    `load` gives an original weight by name. Nothing is kept: look each one up once.
    """
    sources: dict[str, Value] = {}
    places: dict[Node, int] = {}
    if result.prepare is not None:
        places = {node: place for place, node in enumerate(result.prepare.nodes)}
        names = [v.name or "" for v in result.graph.weights]
        sources = dict(zip(names, result.prepare.outputs, strict=True))

    def read(buffer: Buffer) -> np.ndarray:
        if result.prepare is None:
            array = load(buffer.name)
        else:
            source = sources[buffer.name]
            nodes = tuple(sorted(_producers(source), key=places.__getitem__))
            graph = result.prepare.replace(nodes=nodes, outputs=(source,))
            (array,), _ = evaluate(graph, {}, load, precision=None)
        dtype = buffer.type.dtype
        return buffer.encoding.pack(array.astype(dtype.numpy, copy=False), dtype)

    return LazyArrays(
        {
            b.name: LazyArray(b.stored.shape, b.stored.dtype, lambda b=b: read(b))
            for b in program.weights
        }
    )


def _producers(value: Value) -> set[Node]:
    """The nodes that a value depends on. Found from it: a model has as many weights as nodes."""
    found: set[Node] = set()
    left = [value.node]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.add(node)
            left += [operand.node for operand in node.operands]
    return found


def _check_finished(pipeline: Sequence[Pass]) -> None:
    """PassError when the switch `stop_after` left a graph that no program can be built from."""
    stopped = switches.get("stop_after")
    if stopped is not None and stopped != pipeline[-1].name:
        raise PassError(
            f"the passes stopped after {stopped}, so there is no program",
            where="the switch stop_after (TILEWRIGHT_STOP_AFTER)",
            facts=f"a program is built after {pipeline[-1].name}",
            fix="unset it; the graph so far is in the folder that TILEWRIGHT_DUMP names",
        )


def require_tools(target: Target) -> None:
    """BuildError when what builds kernels for `target` is missing: now, and not after capturing."""
    if target.is_gpu:
        from ..codegen.triton.binary import require_triton

        require_triton()
    else:
        from ..codegen.cpp.binary import find_compiler

        find_compiler()
