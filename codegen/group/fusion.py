"""Which groups join. Each refusal is reported with its reason.

The order matters: a product takes what follows it first (its result then never goes to memory),
then norms go into the products they feed, then reductions take what surrounds them, then what is
left merges among itself.
"""

from ...ir.errors import UnsupportedOp
from ...ir.graph import Graph, Node, Value
from ...ir.index_map import stored_strides
from ...ir.report import Findings
from ...ir.target import Target
from ...ir.types import bool_
from ...ir.weight_only import decoding, is_view_of_weight
from ..cost import Way, compared
from ..groups import Group, Groups
from ..templates import TEMPLATES, template_of
from ..templates.template import Template
from .siblings import Siblings
from .statistics import Statistics

MANY_TIMES = 4  # windows of 3 by 3, and not those that are 2 apart


class StepTemplate(Template):
    """A node that no kernel computes (a copy, a call, a branch): it reads whole buffers, alone."""

    name = "step"
    kinds = frozenset()
    parts = ()

    def stored_operand(self, groups: Groups, node: Node, number: int) -> Value | None:
        return node.operands[number]


STEP = StepTemplate()


def kind_of(*nodes: Node) -> Template | None:
    """The template of a group of nodes, or STEP."""
    return STEP if nodes[0].is_step else template_of(*nodes)


class Fusion:
    """Runs the decisions over one graph."""

    def __init__(self, graph: Graph, findings: Findings, target: Target):
        self.graph = graph
        self.target = target
        self.findings = findings
        self.facts = graph.facts
        self.groups = Groups(graph, kind_of)
        self.kept: set[Value] = set()  # what is read as it lies

    def run(self) -> Groups:
        """The groups. UnsupportedOp lists all nodes that no template takes."""
        self.require_templates()
        self.take_views()
        self.keep_outputs()
        self.keep_operands()
        self.repeat_casts()
        self.take_epilogues()
        self.place_statistics()
        self.join_reductions()
        self.grow_reductions()
        self.merge_pointwise()
        Siblings(self.graph, self.groups, self.findings, self.target).run()
        return self.groups

    def require_templates(self) -> None:
        """One UnsupportedOp for all nodes without a kernel, equal ones once, with first places."""
        found: dict[tuple[str, str], list[Node]] = {}
        for node in self.graph.nodes:
            if (reason := self.why_no_kernel(node)) is not None:
                found.setdefault((node.op.name, reason), []).append(node)
        if found:
            raise UnsupportedOp(
                f"no kernel for {', '.join(dict.fromkeys(name for name, _ in found))}",
                where=next((n.loc for nodes in found.values() for n in nodes if n.loc), ""),
                facts="\n".join(
                    f"{name} x {len(nodes)}, first "
                    f"{nodes[0].loc or 'of ' + str(nodes[0].results[0].type)}: {reason}"
                    for (name, reason), nodes in found.items()
                ),
                fix="write it in other operations, or add a template: "
                "see docs/adding_a_template.md",
            )

    def why_no_kernel(self, node: Node) -> str | None:
        """Why its op refuses it, or no template takes it, not even alone."""
        if kind_of(node) is None:
            known = ", ".join(sorted(kind for template in TEMPLATES for kind in template.kinds))
            return f"no template takes ops of its kind; they take {known}, not {node.op.kind}"
        group = self.groups.of.get(node)
        return None if group is None else node.refusal or group.template.why_not(group, node)

    def join(
        self, what: str, into: Group, own: Group, problem: str | None, value: Value, name: str = ""
    ) -> bool:
        """Make `own` part of `into`; where a problem or a circle forbids it, report that."""
        if problem is None and not self.groups.can_merge(into, own):
            problem = "the groups would depend on each other"
        if problem is None:
            self.groups.merge(into, own)
            self.findings.fire(what)
            return True
        self.refuse(what, name + problem, value)
        return False

    def refuse(self, what: str, reason: str, value: Value | None = None) -> None:
        """Report a join that was considered and not made, with the bytes it would have saved."""
        if value is not None:
            reason += f" ({2 * self.hint_bytes(value):,} bytes moved)"
        self.findings.decline(what, reason)

    def hint_bytes(self, value: Value) -> int:
        return self.facts.hint(value.type.nbytes)

    # ---- outputs that are views ----

    def keep_outputs(self) -> None:
        """A view that is a result of the graph is stored by the group that computes it."""
        groups = self.groups
        for value in self.graph.results:
            node = value.node
            if node is None or node in groups.of or value in self.graph.states:
                continue
            producer = node
            while producer not in groups.of and producer.op.inverse is not None:
                inner = producer.operands[0].node
                if inner is None:
                    break
                producer = inner
            own = groups.make(node)
            if (group := groups.of.get(producer)) is not None and group is not own:
                if group.template.why_not(group, node) is None:
                    groups.merge(group, own)

    # ---- operands of kernels that read buffers as they lie ----

    def keep_operands(self) -> None:
        """Some templates read operands as they lie, or through what leaves a buffer strided."""
        for group in self.groups.all():
            for number in range(len(group.anchor.operands)):
                value = group.template.stored_operand(self.groups, group.anchor, number)
                if value is not None:
                    self.keep(value)
        # what windows read many times is made once
        for value in dict.fromkeys(v for node in self.graph.nodes for v in node.operands):
            origin, times = self.of_windows(value)
            is_made = origin.node is not None and origin.node.op.kind in ("view", "elementwise")
            if is_made and times >= MANY_TIMES:
                self.keep(origin)

    def of_windows(self, value: Value) -> tuple[Value, float]:
        """What a value is views of, and how often the windows among these read an element of it."""
        times, hint = 1.0, self.facts.hint
        while (
            (node := value.node) is not None and node.op.kind == "view" and len(node.operands) == 1
        ):
            (before,), (axes,) = node.operands, self.groups.axes.of(node)
            if node.op.is_renaming and any(isinstance(axis, str) for axis in axes):
                times *= hint(value.type.numel) / max(hint(before.type.numel), 1)
            value = before
        return value, times

    def keep(self, value: Value) -> None:
        """Store a value as it is."""
        self.kept.add(value)
        if value.node is not None and value.node not in self.groups.of:
            self.groups.make(value.node)

    def take_views(self) -> None:
        """attention, then a view that alone reads it and only orders its rows  ->  one kernel"""
        groups = self.groups
        for node in self.graph.nodes:
            if node not in groups.of or groups.of[node].template.grows_over != "views":
                continue
            value, last = node.results[0], None
            plain = stored_strides(value, value, self.facts)
            while value not in self.graph.results and len(self.graph.uses.get(value, ())) == 1:
                (user,) = self.graph.uses[value]
                if user in groups.of or user.op.inverse is None:
                    break
                value = user.results[0]
                strides = stored_strides(node.results[0], value, self.facts)
                if None not in strides and strides[-1] == 1 and strides != plain:
                    last = user
            if last is not None:
                groups.merge(groups.of[node], groups.make(last))

    def repeat_casts(self) -> None:
        """A cast to a wider dtype is part of loading what it widens, which stays stored narrow.

        So is what makes numbers of a weight's codes.
        """
        decodes = decoding(self.graph)
        for node in list(self.groups.of):
            if not self.groups.alone(node) or self.groups.leaves(node):
                continue
            if node.results[0] in self.kept:
                continue
            if self.is_cast_in_loading(node) or node in decodes:
                self.groups.free(node)

    def is_cast_in_loading(self, node: Node) -> bool:
        if not node.op.is_cast:
            return False
        source, target = node.operands[0].dtype, node.results[0].dtype
        is_alike = source.is_float == target.is_float and bool_ not in (source, target)
        widens = is_alike and source.bits < target.bits
        return widens or is_view_of_weight(self.graph, node.operands[0])

    # ---- products take what follows ----

    def take_epilogues(self) -> None:
        """matmul, then elementwise of the same elements  ->  one kernel"""
        groups = self.groups
        for node in self.graph.nodes:
            if node.op.kind != "elementwise" or node not in groups.of:
                continue
            own = groups.of[node]
            if any(n is not node and n.op.kind != "view" for n in own.nodes):
                continue  # in a group already; a view there is an output made of it
            candidates = [
                (group, value)
                for value in node.operands
                if (p := groups.same_elements(value)) is not None
                and (group := groups.of[p]).template.grows_over == "elements"
            ]
            # the last product: the other operands are then there already
            for group, value in sorted(candidates, key=lambda c: -c[0].last):
                if self.join("epilogue", group, own, group.template.why_not(group, node), value):
                    break

    # ---- statistics of rows go into products ----

    def place_statistics(self) -> None:
        """A norm (or what amounts to one) that only products read  ->  part of each of them"""
        groups = self.groups
        for node in self.graph.nodes:
            if node.op.kind not in ("reduce", "composite") or not groups.alone(node):
                continue
            found = Statistics(groups, node, self.target)
            problem = found.problem()
            if problem is None:
                for free in found.nodes:
                    groups.free(free)
                self.findings.fire("prologue")
            elif node.op.kind == "composite" or found.feeds_products:
                self.refuse("prologue", problem, node.results[0])

    # ---- reductions take what surrounds them ----

    def join_reductions(self) -> None:
        """Reductions of the same rows of one value  ->  one kernel, which reads it once"""
        first: dict[Value, Group] = {}
        for group in self.groups.all():
            node = group.anchor
            if node.op.kind != "reduce" or not self.groups.alone(node):
                continue
            value = node.operands[0]
            into = first.setdefault(value, group)
            if into is not group:
                problem = into.template.why_not(into, node)
                self.join("reduction", into, group, problem, value, f"{node.op.name}: ")

    def grow_reductions(self) -> None:
        """A reduction, others of the same rows, what comes before and after  ->  one kernel"""
        for group in self.groups.all():
            if group.template.grows_over == "rows" and self.groups.of.get(group.anchor) is group:
                while sum(self.take(group, node) for node in self.followers(group)):
                    pass  # what joined has readers of its own
                self.give_back(group)

    def followers(self, group: Group) -> list[Node]:
        """Readers of the group, in order."""
        groups = self.groups
        found = {r for n in group.nodes for r in groups.readers(n) if groups.of[r] is not group}
        return sorted(found, key=groups.place.__getitem__)

    def take(self, group: Group, node: Node) -> bool:
        if not self.groups.alone(node):
            return False
        problem = group.template.why_not(group, node)
        if problem is not None and node.op.kind not in ("elementwise", "reduce", "composite"):
            return False
        own, name = self.groups.of[node], f"{node.op.name}: "
        return self.join("reduction", group, own, problem, node.results[0], name)

    def give_back(self, group: Group) -> None:
        """Take out nodes that others read but that the kernel cannot store."""
        groups = self.groups
        for node in sorted(group.nodes, key=groups.place.__getitem__, reverse=True):
            if node.op.kind != "elementwise":
                continue
            problem = group.template.why_not_stored(group, node)
            if problem and (groups.reading_groups(node) or groups.leaves(node)):
                group.nodes.discard(node)
                groups.make(node)
                self.refuse("reduction", f"{node.op.name}: {problem} that others read")

    # ---- what is left ----

    def merge_pointwise(self) -> None:
        """A computation that one group reads goes into it; a cheap one of several is repeated."""
        groups = self.groups
        for node in reversed(self.graph.nodes):
            if node not in groups.of:
                continue
            own = groups.of[node]
            if own.template.grows_over != "anything":
                continue
            readers = groups.reading_groups(node)
            if (reader := self.storing_reader(node, own, readers)) is not None:
                groups.merge(reader, own)
                self.findings.fire("stored by its reader")
            elif groups.leaves(node):
                continue
            elif len(readers) == 1:
                (reader,) = readers
                problem = self.reader_problem(node, own, reader)
                self.join("vertical", reader, own, problem, node.results[0])
            elif len(readers) > 1:
                problem = self.repeat_problem(node, own, readers)
                if problem is None:
                    groups.free(node)
                    self.findings.fire("repeat")
                else:
                    self.refuse("repeat", problem, node.results[0])

    def storing_reader(self, node: Node, own: Group, readers: list[Group]) -> Group | None:
        """Who of several reads a value row by row, stores rows as well, and so can store it too.

        The sum of a residual and its branch is stored by the norm that reads it first.
        """
        is_shared = self.groups.leaves(node) or len(readers) > 1
        if not (self.target.is_gpu and is_shared and node.op.kind == "elementwise"):
            return None
        for reader in readers:
            if (
                reader.template.grows_over == "rows"
                and self.groups.stores_whole(reader, node.results[0].shape)
                and all(reader.template.why_not(reader, n) is None for n in own.nodes)
                and self.groups.can_merge(reader, own)
            ):
                return reader
        return None

    def reader_problem(self, node: Node, own: Group, reader: Group) -> str | None:
        """Why `own` cannot become a part of `reader`."""
        if node.op.kind == "view" or node.results[0] in self.kept:
            return f"{reader.anchor.op.name} reads it as it lies"
        if node.op.kind == "state":
            return "what a state op returns is read by a later kernel only"
        if any(self.groups.reading_groups(n) not in ([], [reader]) for n in own.nodes):
            return "another result of the group is read elsewhere"
        problems = (reader.template.why_not(reader, n) for n in own.nodes)
        problem = next((problem for problem in problems if problem is not None), None)
        return problem or self.repeats_effort(node, reader)

    def repeats_effort(self, node: Node, reader: Group) -> str | None:
        """Why an expensive value that a kernel repeats along outer axes is stored on a CPU.

        Along the innermost axis it would be a number outside of the loop.
        """
        if self.target.is_gpu or reader.template.grows_over != "anything":
            return None
        count = {n: self.facts.hint(n.results[0].type.numel) for n in (node, *reader.nodes)}
        largest = max(reader.nodes, key=count.__getitem__)
        if node.results[0].shape[-1:] != largest.results[0].shape[-1:]:
            return None
        repeating = (n for n in self.groups.readers(node) if n.op.kind in ("elementwise", "gather"))
        if any(count[n] >= 2 * count[node] for n in repeating) and self.groups.takes_effort(node):
            return "an expensive value would be computed again for each place that repeats it"
        return None

    def repeat_problem(self, node: Node, own: Group, readers: list[Group]) -> str | None:
        """Why a value that several groups read is stored."""
        if own.nodes != {node} or node.op.kind != "elementwise":
            return f"{node.op.name} is not a single cheap operation"
        if node.op.cost == "expensive":
            return f"{node.op.name} is expensive"
        if node.results[0] in self.kept:
            return "one of them reads it as it lies"
        for reader in readers:
            if reader.template.grows_over not in ("anything", "rows"):
                return f"a {reader.template.name} group reads it"
        count, made = len(readers), node.results[0]
        stored, points = self.hint_bytes(made), self.facts.hint(made.type.numel)
        operands = sum(self.hint_bytes(v) for v in node.operands)
        ways = {
            "repeating": Way(operands * count, points * count),
            "storing": Way(operands + stored * (count + 1), points),
        }
        best, took = compared(ways, self.target)
        return None if best == "repeating" else f"{count} groups read it: {took}"
