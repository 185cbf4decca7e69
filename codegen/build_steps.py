"""The steps of a program: kernels launched, functions called, and sub-graphs run in regions.

A sub-graph is planned and lowered as the graph around it is, into the same program: its inputs are
buffers of the graph around it, and its arena lies behind that one's. So regions that do not run at
the same time share memory.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..ir.abi import RECORD_BYTES, RECORD_WORDS
from ..ir.dim import Dim, Symbol, maximum, symbol
from ..ir.encoding import Encoding
from ..ir.errors import UnsupportedOp
from ..ir.graph import Graph, Node, Value
from ..ir.plan import Plan, aligned
from ..ir.program import Buffer, DataCheck
from ..ir.progress import Progress
from ..ir.ranges import Ranges
from ..ir.steps import (
    BindSize,
    Choice,
    Cond,
    Copy,
    HostCall,
    LaunchStep,
    LibraryCall,
    ScanLoop,
    Step,
    While,
)
from ..ir.target import Target
from ..ir.types import TensorType, i64
from .backend import COUNTERS, Backend
from .group import make_plan
from .lower import Lowered, lower_group
from .merge_axes import with_merged_axes
from .templates import template_with

# Of generated code: part of every kernel's key, and of records of tuning. It grows where a schedule
# loses a field or means something else; a new field needs none if its default is what was done.
VERSION = 1

Names = dict[Value, str]  # the buffer that each value lies in


class StepMaker:
    """Makes the steps of one program, and collects what they need."""

    def __init__(self, graph: Graph, target: Target, backend: Backend, progress: Progress):
        self.target, self.backend, self.progress = target, backend, progress
        self.buffers: dict[str, Buffer] = {}
        self.symbols: dict[str, Symbol] = dict(graph.symbols)
        self.checks: list[DataCheck] = []
        self.end: Dim = 0  # of the arena
        self.problems: list[str] = []  # groups that have no kernel
        self._late = graph.late_symbols
        self._counters = 0

    def steps(
        self,
        plan: Plan,
        names: Names,
        encodings: dict[Value, Encoding],
        ranges: Ranges,
        base: Dim,
        prefix: str = "",
    ) -> list[Step]:
        """The steps of a planned graph, its values in `names`; the arena is free from `base` on."""
        self.end = maximum(self.end, base)
        made: list[Step] = []
        for number, (group, nodes) in enumerate(plan.groups.items()):
            self.progress("lower", number, len(plan.groups))
            name = prefix + group
            try:
                if nodes[0].is_step:
                    (node,) = nodes
                    maker = _MAKERS.get(node.op.kind) or _MAKERS.get(node.op.name)
                    if maker is None:
                        raise UnsupportedOp(f"no step runs {node.op.name}", where=node.loc or "")
                    made += maker(self, node, names, base, name)
                else:
                    low = lower_group(plan.graph, nodes, encodings, ranges)
                    if self.target.is_gpu:  # on a CPU the outer axes are shared among threads
                        low = replace(low, kernel=with_merged_axes(low.kernel))
                    args = [None if v is None else names[v] for v in low.values]
                    made += self.launches(low, name, args, base, _loc(nodes))
            except UnsupportedOp as error:
                ops = ", ".join(dict.fromkeys(n.op.name for n in nodes if n.op.cost != "free"))
                at = f" at {_loc(nodes)}" if _loc(nodes) else ""
                self.problems.append(f"{name}, {ops}{at}: {error}")
        return made

    # ---- launches ----------------------------------------------------------------------------

    def launches(
        self, low: Lowered, group: str, args: Sequence[str | None], base: Dim, loc: str | None
    ) -> list[LaunchStep]:
        """The launches of one kernel, given these buffers; None stands for its records."""
        planned = self.backend.launches(low.kernel, kernel_key(low, self.target))
        records = f"{group}.faults"
        if low.checks:
            type = TensorType((len(low.checks), RECORD_WORDS), i64)
            offset = RECORD_BYTES * len(self.checks)
            self.buffers[records] = Buffer(records, type, "fault", offset)
            self.checks += low.checks
        # the buffer of each parameter and of each workspace
        lies: dict[int | str, str] = {p: records if a is None else a for p, a in enumerate(args)}
        # workspaces lie after the arena, at one place for every group: one runs at a time
        for label, type in planned.workspaces.items():
            if label == COUNTERS:
                lies[label] = f".{COUNTERS}"
                self.buffers[lies[label]] = Buffer(lies[label], type, "counter")
                continue
            space, base = self.place(f"{group}.{label}", type, base)
            lies[label] = space.name
        written = {p for p, param in enumerate(low.kernel.params) if param.is_written}
        empty = set(planned.workspaces)
        template = template_with(low.kernel.parts[0])
        made: list[LaunchStep] = []
        for launch in planned.launches:
            # a workspace is written by the launch that is first given it
            filled = {p for v in launch.variants for p in v.params if p in empty}
            empty -= filled
            choices = tuple(
                Choice(
                    v.kernel,
                    v.lo,
                    v.hi,
                    (*(lies[p] for p in v.params), *v.dims),
                    v.grid,
                    tuple(lies[p] for p in v.params if p in written or p in filled),
                    v.schedule,
                )
                for v in launch.variants
            )
            is_main = not launch.label  # the others prepare for it, or join what it made
            made.append(
                LaunchStep(
                    group + launch.label,
                    choices,
                    launch.select,
                    loc=loc,
                    traffic=template.traffic(low.kernel) if is_main else 0,
                    operations=sum(map(template.operations, low.kernel.parts)) if is_main else 0,
                    products=tuple(d.name for d in template.products(low.kernel.parts[0])),
                )
            )
        return made

    # ---- calls -------------------------------------------------------------------------------

    def call(self, node: Node, names: Names, base: Dim, name: str) -> list[Step]:
        """A function of the host, or a routine of a library."""
        if node.op.binds_value:
            value, source, result = node.operands[0], names[node.operands[0]], node.results[0]
            bind = BindSize(name, source, node.binds[0], loc=node.loc)
            return [bind, _copy(value.type, source, names[result], name)]
        inputs = tuple(names[v] for v in node.operands)
        outputs = tuple(names[v] for v in node.results)
        kind = LibraryCall if node.op.routine else HostCall
        function = node.op.routine or node.attrs["function"]
        traffic = sum((v.type.nbytes for v in (*node.operands, *node.results)), 0)
        return [kind(name, function, inputs, outputs, node.binds, loc=node.loc, traffic=traffic)]

    # ---- regions -----------------------------------------------------------------------------

    def cond(self, node: Node, names: Names, base: Dim, name: str) -> list[Step]:
        """Both sub-graphs write the results themselves where they can."""
        predicate, *operands = (names[v] for v in node.operands)
        results = [names[v] for v in node.results]
        bodies = []
        for label, region in node.regions.items():
            inner, steps, made, _ = self.region(region, operands, f"{name}.{label}.", base, results)
            copies = zip(inner.outputs, made, results)
            steps += [_copy(v.type, a, b, name) for v, a, b in copies if a != b]
            bodies.append(tuple(steps))
        return [Cond(name, predicate, *bodies, loc=node.loc)]

    def while_loop(self, node: Node, names: Names, base: Dim, name: str) -> list[Step]:
        """The results' buffers hold what is carried."""
        arguments, begin, carries = self._carried(node, names, name)
        condition, body = node.attrs["condition"], node.attrs["body"]
        _, test, (flag,), _ = self.region(condition, arguments, f"{name}.condition.", base)
        inner, steps, made, end = self.region(body, arguments, f"{name}.body.", base)
        steps += self._assign(inner.outputs, made, carries, name, end)
        return [*begin, While(name, flag, tuple(test), tuple(steps), loc=node.loc)]

    def scan(self, node: Node, names: Names, base: Dim, name: str) -> list[Step]:
        """Slices are copied in and out by an offset that follows a counter."""
        carried, stacked = node.attrs["carried"], node.attrs["stacked"]
        arguments, begin, carries = self._carried(node, names, name)
        index = f"_step{self._counters}"  # no graph has a dim that begins so
        self._counters += 1
        self.symbols[index] = Symbol(index, 0)
        body = node.attrs["body"]
        before: list[Step] = []
        for number in range(carried, carried + stacked):
            type = body.inputs[number].type
            slice, base = self.place(f"{name}.slice{number}", type, base)
            offset = symbol(index) * type.nbytes
            before.append(_copy(type, arguments[number], slice.name, name, source_offset=offset))
            arguments[number] = slice.name
        inner, steps, made, end = self.region(body, arguments, f"{name}.body.", base)
        rows = zip(inner.outputs[carried:], made[carried:], node.results[carried:])
        for value, source, result in rows:
            offset = symbol(index) * value.type.nbytes
            steps.append(_copy(value.type, source, names[result], name, target_offset=offset))
        steps += self._assign(inner.outputs[:carried], made[:carried], carries, name, end)
        count = node.attrs["count"]
        return [*begin, ScanLoop(name, index, count, (*before, *steps), loc=node.loc)]

    def region(
        self,
        graph: Graph,
        arguments: Sequence[str],
        prefix: str,
        base: Dim,
        targets: Sequence[str] | None = None,
    ) -> tuple[Graph, list[Step], list[str], Dim]:
        """A sub-graph: itself as planned, its steps, its outputs' buffers, where its arena ends.

        An output lies in its buffer of `targets`, unless it is an argument, or an output twice.
        """
        self.symbols |= graph.symbols
        # what is a weight around it is one here, and lies as it does there
        lies = dict(zip(graph.inputs, arguments, strict=True))
        weights = tuple(v for v, a in lies.items() if self.buffers[a].role == "weight")
        inputs = tuple(v for v in graph.inputs if v not in weights)
        plan = make_plan(
            graph.replace(inputs=inputs, weights=weights), target=self.target, late=self._late
        )
        graph = plan.graph
        names = {v: lies[v] for v in graph.arguments()}
        for number, node in enumerate(graph.nodes):
            for index, result in enumerate(node.results):
                names[result] = f"{prefix}v{number}.{index}"
        end = base + plan.arena_bytes
        placed = set(graph.arguments())
        for number, value in enumerate(graph.outputs):
            if value in placed:
                continue
            placed.add(value)
            if targets is not None:
                names[value] = targets[number]
            else:
                _, end = self.place(names[value], value.type, end)
        self.temporaries(plan, names, base)
        encodings = {v: self.buffers[names[v]].encoding for v in graph.weights}
        steps = self.steps(plan, names, encodings, Ranges(graph.facts), end, prefix)
        return graph, steps, [names[v] for v in graph.outputs], end

    def _carried(
        self, node: Node, names: Names, name: str
    ) -> tuple[list[str], list[Step], list[str]]:
        """The arguments of a loop's body, the copies that begin it, and the carried buffers."""
        count = node.attrs["carried"]
        carries = [names[v] for v in node.results[:count]]
        begin: list[Step] = [
            _copy(v.type, names[v], to, name) for v, to in zip(node.operands, carries)
        ]
        return [*carries, *(names[v] for v in node.operands[count:])], begin, carries

    def _assign(
        self,
        values: Sequence[Value],
        made: Sequence[str],
        carries: Sequence[str],
        name: str,
        end: Dim,
    ) -> list[Step]:
        """carries = made, all at once: what is itself carried is put aside before it changes."""
        aside: list[Step] = []
        copies: list[Step] = []
        for value, source, target in zip(values, made, carries):
            if source == target:
                continue
            if source in carries:
                spare, end = self.place(f"{name}.old {target}", value.type, end)
                aside.append(_copy(value.type, source, spare.name, name))
                source = spare.name
            copies.append(_copy(value.type, source, target, name))
        return [*aside, *copies]

    # ---- buffers -----------------------------------------------------------------------------

    def place(self, name: str, type: TensorType, base: Dim) -> tuple[Buffer, Dim]:
        """A temporary buffer at `base`, and where it ends; apart where its size is known late."""
        if self._late and not self._late.isdisjoint(type.symbols):
            self.buffers[name] = Buffer(name, type, "temp")
            return self.buffers[name], base
        self.buffers[name] = Buffer(name, type, "temp", base)
        end = aligned(base + type.nbytes)
        self.end = maximum(self.end, end)
        return self.buffers[name], end

    def temporaries(self, plan: Plan, names: Names, base: Dim = 0) -> None:
        """Buffers of what one kernel leaves for another, where the plan puts them after `base`."""
        for value, offset in plan.offsets.items():
            self.buffers[names[value]] = Buffer(names[value], value.type, "temp", base + offset)
        for group, nodes in plan.groups.items():
            stored = nodes[0].results if nodes[0].is_step else plan.results_of(group)
            for value in stored:
                if plan.is_late(value) and value not in plan.graph.results:
                    self.buffers[names[value]] = Buffer(names[value], value.type, "temp")


Maker = Callable[[StepMaker, Node, Names, Dim, str], list[Step]]

_MAKERS: dict[str, Maker] = {  # by the kind of op, or its name
    "call": StepMaker.call,
    "cond": StepMaker.cond,
    "while_loop": StepMaker.while_loop,
    "scan": StepMaker.scan,
}


def _copy(type: TensorType, source: str, target: str, name: str, **offsets: Dim) -> Copy:
    label = f"{name}: {source} to {target}"
    return Copy(label, source, target, type.nbytes, traffic=2 * type.nbytes, **offsets)


def kernel_key(low: Lowered, target: Target) -> str:
    """Hash of all that decides a kernel's code; equal keys share the kernel."""
    text = repr((VERSION, target, low.kernel.params, low.kernel.parts, low.kernel.hints))
    return hashlib.sha256(text.encode()).hexdigest()


def _loc(nodes: Sequence[Node]) -> str | None:
    return next((n.loc for n in nodes if n.loc), None)
