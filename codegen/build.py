"""Graph -> Program: plans groups and memory, lowers each group, shares equal kernels, compiles."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from ..ir.abi import RECORD_BYTES, RECORD_WORDS
from ..ir.dim import Dim, maximum
from ..ir.encoding import ROWS, Encoding
from ..ir.errors import UnsupportedOp
from ..ir.graph import Graph, Value
from ..ir.layout import INPUT_IDS, LOGIT_ROWS, SLOTS, KVLayout
from ..ir.plan import Plan, aligned
from ..ir.program import DIM, Buffer, Check, Program
from ..ir.progress import Progress, unwatched
from ..ir.ranges import Range, Ranges
from ..ir.steps import Choice, LaunchStep
from ..ir.target import Target
from ..ir.types import TensorType, i64
from .backend import Backend, Launch, Launches
from .encodings import choose_encodings
from .group import make_plan
from .lower import Lowered, lower_group
from .templates import template_with
from .updates import copy_kernel, written_back

VERSION = 1  # of generated code: part of every kernel's key


def build(
    graph: Graph,
    target: Target,
    *,
    kv: KVLayout | None = None,
    plan: Plan | None = None,
    progress: Progress = unwatched,
) -> Program:
    """Compile `graph` for `target`. Raises BuildError, or one error listing all groups that failed.

    `plan` is the graph's, made here where none is given: see `group.make_plan`.
    Groups that are the same but for the buffers they touch share one kernel, so identical layers
    cost one compilation.
    """
    plan = make_plan(graph) if plan is None else plan
    graph = plan.graph
    encodings = choose_encodings(graph, target)
    ranges = Ranges(graph.facts, {} if kv is None else _made_by_engine(graph))
    lowered = _lower_all(plan, encodings, ranges, progress)
    backend = _backend(target, progress)
    buffers = _make_buffers(plan, encodings)
    names = _buffer_names(graph)
    base = _place_updates(graph, names, buffers, plan.arena_bytes)
    steps: list[LaunchStep] = []
    checks: list[Check] = []
    end = base
    for (group, nodes), low in zip(plan.groups.items(), lowered):
        planned = backend.launches(low.kernel, kernel_key(low, target))
        spaces, group_end = _place_workspaces(group, planned, base)
        buffers.update((b.name, b) for b in spaces.values())
        end = maximum(end, group_end)
        records = f"{group}.faults"
        if low.checks:
            type = TensorType((len(low.checks), RECORD_WORDS), i64)
            buffers[records] = Buffer(records, type, "fault", RECORD_BYTES * len(checks))
            checks += low.checks
        args = [records if v is None else names[v] for v in low.values]
        loc = next((n.loc for n in nodes if n.loc), None)
        made: set[str] = set()
        for launch in planned.launches:
            used = {p for v in launch.variants for p in v.params if isinstance(p, str)}
            steps.append(_step(group, launch, args, spaces, used - made, loc, low))
            made |= used  # a workspace is written by the launch that is first given it
    # states that take each other's content are read before any of them is written
    copies = [(v, names[v], f"old {v.name}") for v in _moved_states(graph)]
    copies += [
        (v, f"old {v.name}" if v in graph.states else names[v], state)
        for state, v in written_back(graph).items()
    ]
    for value, source, to in copies:
        low = Lowered(copy_kernel(value.type), ())
        (launch,) = backend.launches(low.kernel, kernel_key(low, target)).launches
        steps.append(_step(f"update {to}", launch, [source, to], {}, set(), None, low))
    kernels, blobs = backend.finish()
    stated = {
        choice.kernel: tuple(
            buffers[a].type.dtype.name if isinstance(a, str) else DIM for a in choice.args
        )
        for step in steps
        for choice in step.choices
    }
    return Program(
        name=graph.name,
        target=target.name,
        symbols=dict(graph.symbols),
        buffers=buffers,
        inputs=tuple(v.name or "" for v in graph.inputs),
        outputs=tuple(names[v] for v in graph.outputs),
        kernels={name: replace(k, args=stated[name]) for name, k in kernels.items()},
        steps=tuple(steps),
        arena_bytes=end,
        blobs=blobs,
        checks=tuple(checks),
        kv=kv,
    )


def kernel_key(low: Lowered, target: Target) -> str:
    """Hash of all that decides a kernel's code; equal keys share the kernel."""
    text = repr((VERSION, target, low.kernel.params, low.kernel.parts, low.kernel.hints))
    return hashlib.sha256(text.encode()).hexdigest()


def _lower_all(
    plan: Plan,
    encodings: dict[Value, Encoding],
    ranges: Ranges,
    progress: Progress,
) -> list[Lowered]:
    lowered, problems = [], []
    for number, (group, nodes) in enumerate(plan.groups.items()):
        progress("lower", number, len(plan.groups))
        try:
            lowered.append(lower_group(plan.graph, nodes, encodings, ranges))
        except UnsupportedOp as error:
            problems.append(f"{group}: {error}")
    if problems:
        raise UnsupportedOp(
            f"{len(problems)} of {len(plan.groups)} groups have no kernel",
            facts="\n".join(problems),
        )
    return lowered


def _made_by_engine(graph: Graph) -> dict[Value, Range]:
    """Ranges of a paged program's inputs: the engine refuses tokens that have no logits."""
    vocab = graph.outputs[0].shape[-1]
    named = {v.name: v for v in graph.inputs}
    found: dict[Value, Range] = {}
    if INPUT_IDS in named:
        found[named[INPUT_IDS]] = (0, vocab - 1)
    if LOGIT_ROWS in named:
        found[named[LOGIT_ROWS]] = (0, named[SLOTS].shape[0] - 1)
    return found


def _backend(target: Target, progress: Progress) -> Backend:
    if target.is_gpu:
        from .triton.backend import TritonBackend

        return TritonBackend(target, progress)
    from .cpp.backend import CppBackend

    return CppBackend(target, progress)


def _step(
    group: str,
    launch: Launch,
    args: Sequence[str],
    spaces: dict[str, Buffer],
    new: set[str],  # those of the spaces that hold nothing yet
    loc: str | None,
    low: Lowered,
) -> LaunchStep:
    choices = []
    for variant in launch.variants:
        buffers = [args[p] if isinstance(p, int) else spaces[p].name for p in variant.params]
        writes = [
            name
            for p, name in zip(variant.params, buffers)
            if (low.kernel.params[p].is_written if isinstance(p, int) else p in new)
        ]
        dims, grid = variant.dims, variant.grid
        choices.append(
            Choice(variant.kernel, variant.lo, variant.hi, (*buffers, *dims), grid, tuple(writes))
        )
    template = template_with(low.kernel.parts[0])
    first = not launch.label  # a group's later launches only combine what the first one made
    return LaunchStep(
        group + launch.label,
        tuple(choices),
        launch.select,
        loc=loc,
        traffic=template.traffic(low.kernel) if first else 0,
        operations=sum(map(template.operations, low.kernel.parts)) if first else 0,
    )


# ---- buffers -------------------------------------------------------------------------------


def _buffer_names(graph: Graph) -> dict[Value, str]:
    """The buffer each value lives in. What a state op returns lives where its state does."""
    names = {v: v.name or "" for v in graph.arguments()}
    outputs = iter(range(len(graph.outputs)))
    for number, node in enumerate(graph.nodes):
        if node.op.kind == "state":
            names[node.results[0]] = names[node.operands[node.op.state_operand or 0]]
            continue
        for index, result in enumerate(node.results):
            names[result] = f"v{number}" + (f".{index}" if index else "")
    for value in dict.fromkeys(graph.outputs):
        number = next(outputs)
        if value.node is not None and value.node.op.kind != "state":
            names[value] = f"out{number}"
    return names


def _make_buffers(plan: Plan, encodings: dict[Value, Encoding]) -> dict[str, Buffer]:
    graph = plan.graph
    names = _buffer_names(graph)
    outputs = set(graph.outputs)
    made: list[Buffer] = []
    for role, values in (
        ("input", graph.inputs),
        ("weight", graph.weights),
        ("state", graph.states),
    ):
        made += [Buffer(names[v], v.type, role, encoding=encodings.get(v, ROWS)) for v in values]
    for node in graph.nodes:
        for result in node.results:
            if node.op.kind == "state":
                continue
            if result in outputs:
                made.append(Buffer(names[result], result.type, "output"))
            elif result in plan.offsets:
                made.append(Buffer(names[result], result.type, "temp", plan.offsets[result]))
    return {b.name: b for b in made}


def _place_updates(
    graph: Graph, names: dict[Value, str], buffers: dict[str, Buffer], base: Dim
) -> Dim:
    """Places for values that end in a state and have no buffer yet. -> the arena's new end."""
    needed = {f"old {v.name}": v.type for v in _moved_states(graph)}
    needed.update((names[v], v.type) for v in written_back(graph).values())
    for name, type in needed.items():
        if name not in buffers:
            buffers[name] = Buffer(name, type, "temp", base)
            base = aligned(base + type.nbytes)
    return base


def _moved_states(graph: Graph) -> list[Value]:
    return [v for v in dict.fromkeys(written_back(graph).values()) if v in graph.states]


def _place_workspaces(group: str, planned: Launches, base: Dim) -> tuple[dict[str, Buffer], Dim]:
    """Workspaces lie after the arena, at the same place for every group: one runs at a time."""
    spaces = {}
    end = base
    for label, type in planned.workspaces.items():
        spaces[label] = Buffer(f"{group}.{label}", type, "temp", end)
        end = aligned(end + type.nbytes)
    return spaces, end
