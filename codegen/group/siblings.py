"""Which groups share a kernel though neither needs the other."""

from ...ir.graph import Graph, Value
from ...ir.report import Findings
from ...ir.target import Target
from ..groups import Group, Groups
from ..templates.rows import reduced_axes

MOST = 8  # small groups of one kernel: each more is a branch that all of its programs pass


class Siblings:
    """Joins the groups of a graph that do not wait for each other."""

    def __init__(self, graph: Graph, groups: Groups, findings: Findings, target: Target):
        self.graph, self.groups, self.findings, self.target = graph, groups, findings, target

    def run(self) -> None:
        """Those that read the same, then those that are small."""
        self.share_inputs()
        if self.target.is_gpu:
            self.share_launches()

    def share_inputs(self) -> None:
        """Groups that read one value and do not wait for each other  ->  one kernel

        Pointwise ones, or ones that reduce the same rows.
        """
        groups = self.groups
        by_input: dict[tuple, list[Group]] = {}
        for group in groups.all():
            if group.template.grows_over == "anything" or self.rows_of(group) is not None:
                for value in self.inputs(group):
                    by_input.setdefault((value, self.rows_of(group)), []).append(group)
        for sharing in by_input.values():
            if len(sharing) < 2:
                continue
            current, *others = dict.fromkeys(groups.of[g.anchor] for g in sharing)
            for group in others:
                if self.depend(current, group):
                    current = group  # a later one: it may take those after it
                else:
                    groups.merge(current, group)
                    self.findings.fire("siblings")

    def share_launches(self) -> None:
        """Small pointwise groups that do not wait for each other  ->  one kernel

        A launch takes longer than what is small takes to move.
        """
        groups, current, count = self.groups, None, 1
        for group in groups.all():
            if group.template.grows_over != "anything" or not self.is_small(group):
                continue
            if current is None or count == MOST or self.depend(current, group):
                current, count = group, 1
            else:
                groups.merge(current, group)
                self.findings.fire("side by side")
                count += 1

    def depend(self, first: Group, second: Group) -> bool:
        """Whether one of two groups waits for the other."""
        path = self.groups.path
        return path(first, second, direct=True) or path(second, first, direct=True)

    def is_small(self, group: Group) -> bool:
        """Whether its bytes likely take no longer than a launch, and none are written in place."""
        if any(node.op.kind == "state" for node in group.nodes):
            return False
        values = {v for node in group.nodes for v in (*node.operands, *node.results)}
        num_bytes = sum(self.graph.facts.hint(v.type.nbytes) for v in values)
        return num_bytes <= self.target.launch_us * 1e-6 * self.target.bandwidth

    def rows_of(self, group: Group) -> tuple | None:
        """Over which rows of what shape a group reduces on a GPU; None where it does not."""
        if group.template.grows_over != "rows" or not self.target.is_gpu:
            return None
        anchor = group.anchor
        return anchor.operands[0].shape, reduced_axes(self.groups.axes, anchor)

    def inputs(self, group: Group) -> list[Value]:
        """Values from outside the group, weights aside."""
        members = dict.fromkeys(self.groups.members(group))
        read = dict.fromkeys(v for node in members for v in node.operands)
        return [v for v in read if v.node not in members and not self.graph.is_weight(v)]
