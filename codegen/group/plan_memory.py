"""Give every stored value a place in one arena, as a function of dims."""

from dataclasses import dataclass, replace
from functools import reduce

from ...ir.dim import Dim, maximum
from ...ir.facts import Facts
from ...ir.graph import Value
from ...ir.plan import Plan, aligned
from ...ir.report import Findings


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


def plan_memory(plan: Plan, findings: Findings) -> Plan:
    """Buffers that are never alive together share memory, for every size of the dims.

    A value may take a slot only when its last reader ran before the writer starts: kernels read
    while they write. Sizes are compared by proof, never by a likely value.
    """
    lifetimes = analyse(plan)
    if not lifetimes:
        return plan
    facts = plan.graph.facts
    slots = decide(facts, lifetimes)
    offsets: dict[Value, Dim] = {}
    total: Dim = 0
    for slot in slots:
        offsets.update((each.value, total) for each in slot.values)
        total = total + slot.size
    whole = sum(facts.hint(each.size) for each in lifetimes)
    findings.note(
        f"{len(lifetimes)} values in {len(slots)} slots, {facts.hint(total):,} bytes"
        f" (apart they would take {whole:,})"
    )
    findings.note(f"arena: {total} bytes")
    return replace(plan, offsets=offsets, arena_bytes=total)


def analyse(plan: Plan) -> list[Lifetime]:
    """Values that one group writes and another reads; results and states live elsewhere."""
    graph = plan.graph
    number = {name: i for i, name in enumerate(plan.groups)}
    lifetimes = []
    for node in graph.nodes:
        if node.op.kind == "state":
            continue  # updated in place, where the state lies
        start = number[plan.group_of[node]]
        for result in node.results:
            users = [number[plan.group_of[u]] for u in graph.uses.get(result, ())]
            if node.is_step:
                users.append(start)  # it fills all of its results, also where nobody reads one
            elif all(u == start for u in users):
                continue
            if result in graph.results or plan.is_late(result):
                continue
            lifetimes.append(Lifetime(result, start, max(users), aligned(result.type.nbytes)))
    return lifetimes


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
