"""Give every stored value a place in one arena, as a function of dims."""

from dataclasses import dataclass, replace
from functools import reduce

from ..ir.dim import Dim, ceildiv, maximum
from ..ir.errors import PassError
from ..ir.facts import Facts
from ..ir.graph import Graph, Node, Value
from ..ir.program import ALIGNMENT
from . import findings
from .manager import Pass
from .partition import group_nodes


@dataclass(frozen=True)
class Lifetime:
    """A stored value: it is written by group `start` and read last by group `end`."""

    value: Value
    start: int
    end: int
    size: Dim  # bytes, a multiple of ALIGNMENT


@dataclass
class Slot:
    """A piece of the arena that values use one after another.

    `sizes` are those of its values of which none is proved to hold another.
    """

    sizes: list[Dim]
    free_from: int  # the first group that may write it
    values: list[Lifetime]

    @property
    def size(self) -> Dim:
        """Bytes: the largest of the sizes."""
        return reduce(maximum, self.sizes)


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Buffers that are never alive together share memory, for every size of the dims.

    A value may take a slot only when its last reader ran before the writer starts: kernels read
    while they write. Sizes are compared by proof, never by a likely value.
    """

    name = "plan-memory"

    def run(self, graph: Graph) -> Graph:
        lifetimes = analyse(graph)
        if not lifetimes:
            findings.current().arena_bytes = 0
            return graph
        slots = decide(graph.facts, lifetimes)
        after, total = apply(graph, slots)
        found = findings.current()
        found.arena_bytes = total
        whole = sum(graph.facts.hint(each.size) for each in lifetimes)
        found.note(
            f"{len(lifetimes)} values in {len(slots)} slots, {graph.facts.hint(total):,} bytes"
            f" (apart they would take {whole:,})"
        )
        found.note(f"arena: {total} bytes")
        return after


def analyse(graph: Graph) -> list[Lifetime]:
    """Values that one group writes and another reads; results and states live elsewhere."""
    if any(node.group is None for node in graph.nodes):
        raise PassError(
            "plan-memory: a node is in no group", fix="run the pass `partition` before it"
        )
    number = {name: i for i, name in enumerate(group_nodes(graph))}
    lifetimes = []
    for node in graph.nodes:
        if node.op.kind == "state":
            continue  # updated in place, where the state lies
        for result in node.results:
            users = [number[u.group or ""] for u in graph.uses.get(result, ())]
            start = number[node.group or ""]
            if result in graph.results or all(u == start for u in users):
                continue
            lifetimes.append(Lifetime(result, start, max(users), aligned(result.type.nbytes)))
    return lifetimes


def aligned(nbytes: Dim) -> Dim:
    """`nbytes` rounded up to the alignment of buffers."""
    return ceildiv(nbytes, ALIGNMENT) * ALIGNMENT


def decide(facts: Facts, lifetimes: list[Lifetime]) -> list[Slot]:
    """Slots, each with the values that use it; larger values choose first within a group."""
    slots: list[Slot] = []
    for each in sorted(lifetimes, key=lambda v: (v.start, -facts.hint(v.size))):
        free = [s for s in slots if s.free_from <= each.start]
        fitting = [s for s in free if any(facts.proved_le(each.size, z) for z in s.sizes)]
        if fitting:
            slot = min(fitting, key=lambda s: _hint(facts, s))
        elif free:
            # the largest grows least; where sizes have no order it becomes as large as each
            slot = max(free, key=lambda s: _hint(facts, s))
            kept = [z for z in slot.sizes if not facts.proved_le(z, each.size)]
            slot.sizes = [*kept, each.size]
        else:
            slots.append(Slot([each.size], each.end + 1, [each]))
            continue
        slot.free_from = each.end + 1
        slot.values.append(each)
    return slots


def _hint(facts: Facts, slot: Slot) -> int:
    return max(facts.hint(size) for size in slot.sizes)


def apply(graph: Graph, slots: list[Slot]) -> tuple[Graph, Dim]:
    """The graph with the offset of each stored value, and the arena's size."""
    offsets: dict[Value, Dim] = {}
    at: Dim = 0
    for slot in slots:
        for each in slot.values:
            offsets[each.value] = at
        at = at + slot.size
    mapped: dict[Value, Value] = {v: v for v in graph.arguments()}
    nodes: list[Node] = []
    for node in graph.nodes:
        results = tuple(Value(r.type) for r in node.results)
        placed = tuple(offsets.get(r) for r in node.results)
        new = replace(
            node,
            operands=tuple(mapped[v] for v in node.operands),
            results=results,
            offsets=placed if any(o is not None for o in placed) else None,
        )
        mapped.update(zip(node.results, results))
        nodes.append(new)
    outputs = tuple(mapped[v] for v in graph.outputs)
    updates = {name: mapped[v] for name, v in graph.updates.items()}
    return graph.replace(nodes=tuple(nodes), outputs=outputs, updates=updates), at
