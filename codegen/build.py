"""Graph -> Program: plans groups and memory, lowers each group, shares equal kernels, compiles."""

from dataclasses import replace

from ..ir.dim import symbol, symbols_of
from ..ir.encoding import ROWS, Encoding
from ..ir.errors import UnsupportedOp
from ..ir.graph import Graph, Value
from ..ir.layout import CHOSEN, INPUT_IDS, LOGIT_ROWS, SLOTS, SOURCES, KVLayout
from ..ir.plan import Plan, aligned
from ..ir.program import DIM, Buffer, Program
from ..ir.progress import Progress, unwatched
from ..ir.ranges import Range, Ranges
from ..ir.steps import launches
from ..ir.target import Target
from ..ir.types import TensorType
from .backend import UNTUNED, Backend, Schedules
from .build_steps import StepMaker
from .encodings import choose_encodings, require_whole
from .group import make_plan
from .loops import Axis, Load, LoopKernel, Param, Pointwise, Store, widened
from .lower import Lowered


def build(
    graph: Graph,
    target: Target,
    *,
    kv: KVLayout | None = None,
    plan: Plan | None = None,
    progress: Progress = unwatched,
    schedules: Schedules = UNTUNED,
    backend: Backend | None = None,
) -> Program:
    """Compile `graph` for `target`. Raises BuildError, or one error listing all groups that failed.

    `plan` is the graph's, made here where none is given: see `group.make_plan`. `schedules` may
    replace the default ones. A `backend` stands in for that of the target.
    Groups that are the same but for the buffers they touch share one kernel, so identical layers
    cost one compilation.
    """
    require_whole(graph)
    plan = make_plan(graph, target=target) if plan is None else plan
    graph = plan.graph
    encodings = choose_encodings(graph, target)
    ranges = Ranges(graph.facts, {} if kv is None else _made_by_engine(graph))
    backend = backend_for(target, progress, schedules) if backend is None else backend
    made = StepMaker(graph, target, backend, progress)
    names = buffer_names(graph)
    buffers = made.buffers
    buffers.update(_make_buffers(graph, names, encodings))
    made.temporaries(plan, names)
    back = written_back(graph)
    # states whose old content is needed once they are written
    given = {v: f"old {v.name}" for v in graph.states if v.name in back and v in graph.outputs}
    moved = {v: f"old {v.name}" for v in back.values() if v in graph.states} | given
    buffers.update((name, Buffer(name, v.type, "output")) for v, name in given.items())
    # what ends in a state and has no buffer yet
    needed = {name: v.type for v, name in moved.items()} | {names[v]: v.type for v in back.values()}
    base = plan.arena_bytes
    for name, type in needed.items():
        if name not in buffers:
            buffers[name] = Buffer(name, type, "temp", base)
            base = aligned(base + type.nbytes)
    steps = made.steps(plan, names, encodings, ranges, base)
    if made.problems:
        raise UnsupportedOp(
            f"{len(made.problems)} of {len(plan.groups)} groups have no kernel",
            facts="\n".join(made.problems),
        )
    # states that take each other's content are read before any of them is written
    copies = [(v, names[v], name) for v, name in moved.items()]
    copies += [(v, moved.get(v, names[v]), state) for state, v in back.items()]
    for value, source, to in copies:
        low = Lowered(copy_kernel(value.type), ())
        steps += made.launches(low, f"update {to}", (source, to), base, None)
    kernels, blobs = backend.finish()
    stated = {
        choice.kernel: tuple(
            buffers[a].type.dtype.name if isinstance(a, str) else DIM for a in choice.args
        )
        for step in launches(steps)
        for choice in step.choices
    }
    return Program(
        name=graph.name,
        target=target.name,
        symbols=made.symbols,
        buffers=buffers,
        inputs=tuple(v.name or "" for v in graph.inputs),
        outputs=tuple(given.get(v, names[v]) for v in graph.outputs),
        kernels={name: replace(k, args=stated[name]) for name, k in kernels.items()},
        steps=tuple(steps),
        arena_bytes=made.end,
        blobs=blobs,
        checks=tuple(made.checks),
        kv=kv,
    )


def _made_by_engine(graph: Graph) -> dict[Value, Range]:
    """Ranges of a paged program's inputs: the engine refuses tokens that have no logits."""
    given = {v.name: v for v in graph.inputs}
    tokens = graph.outputs[0].shape[-1] - 1
    ranges: dict[str, Range] = {INPUT_IDS: (0, tokens), CHOSEN: (-1, tokens)}
    ranges[LOGIT_ROWS] = 0, given[SLOTS].shape[0] - 1
    if CHOSEN in given:
        ranges[SOURCES] = -1, given[CHOSEN].shape[0] - 1
    return {given[name]: found for name, found in ranges.items() if name in given}


def backend_for(
    target: Target, progress: Progress = unwatched, schedules: Schedules = UNTUNED
) -> Backend:
    """What collects and compiles the kernels of one program."""
    if target.is_gpu:
        from .triton.backend import TritonBackend

        return TritonBackend(target, progress, schedules)
    from .cpp.backend import CppBackend

    return CppBackend(target, progress, schedules)


# ---- buffers -------------------------------------------------------------------------------


def buffer_names(graph: Graph) -> dict[Value, str]:
    """The buffer each value lives in. What a state op returns lives where its state does."""
    names = {v: v.name or "" for v in graph.arguments()}
    for number, node in enumerate(graph.nodes):
        if node.op.kind == "state":
            names[node.results[0]] = names[node.operands[0]]
            continue
        for index, result in enumerate(node.results):
            names[result] = f"v{number}" + (f".{index}" if index else "")
    for number, value in enumerate(dict.fromkeys(graph.outputs)):
        if value.node is not None and value.node.op.kind != "state":
            names[value] = f"out{number}"
    return names


def _make_buffers(
    graph: Graph, names: dict[Value, str], encodings: dict[Value, Encoding]
) -> dict[str, Buffer]:
    """Those of the graph's arguments and outputs."""
    roles = {"input": graph.inputs, "weight": graph.weights, "state": graph.states}
    made = [
        Buffer(names[v], v.type, role, encoding=encodings.get(v, ROWS))
        for role, values in roles.items()
        for v in values
    ]
    for value in graph.outputs:
        if value.node is not None and value.node.op.kind != "state":
            made.append(Buffer(names[value], value.type, "output"))
    return {b.name: b for b in made}


# ---- ordinary values written back into states, once all that reads the old content has run ----


def written_back(graph: Graph) -> dict[str, Value]:
    """State name -> the value it takes, where no state op has put it there in place already."""
    return {
        name: value
        for name, value in graph.updates.items()
        if value.name != name and (value.node is None or value.node.op.kind != "state")
    }


def copy_kernel(type: TensorType) -> LoopKernel:
    """Parameter 0 copied to parameter 1, both dense and of `type`."""
    at = symbol("_i0")
    names = tuple(sorted(symbols_of(type.numel)))
    part = Pointwise((Axis("_i0", type.numel),), (Store(1, at, Load(0, at, widened(type.dtype))),))
    return LoopKernel((Param(type, False), Param(type, True)), (part,), names, "pointwise")
