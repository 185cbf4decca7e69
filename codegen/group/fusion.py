"""Which groups join. Each refusal is reported with its reason.

The order matters: a product takes what follows it first (its result then never goes to memory),
then norms go into the products they feed, then reductions take what surrounds them, then what is
left merges among itself.
"""

from collections.abc import Iterator

from ...ir.graph import Graph, Node, Value
from ...ir.index_map import stored_strides, strided_sources
from ...ir.report import Findings
from ...ir.target import Target
from ...ir.weight_only import decodes, is_view_of_weight
from ..cost import Way, compared
from .grouping import Group, Groups
from .row_groups import RowGroup, squeezed

MAX_NORM_READERS = 4  # products that may each repeat a norm's statistics


class Fusion:
    """Runs the decisions over one graph."""

    def __init__(self, graph: Graph, findings: Findings, target: Target):
        self.graph = graph
        self.target = target
        self.findings = findings
        self.facts = graph.facts
        self.groups = Groups(graph, is_free)
        self.kept: set[Value] = set()  # what is read as it lies

    def run(self) -> Groups:
        """The groups."""
        self.take_views()
        self.keep_outputs()
        self.keep_operands()
        self.repeat_casts()
        self.keep_step_operands()
        self.take_epilogues()
        self.place_norms()
        self.grow_reductions()
        self.merge_pointwise()
        self.merge_siblings()
        return self.groups

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
            while producer not in groups.of and producer.op.name in ("reshape", "transpose"):
                inner = producer.operands[0].node
                if inner is None:
                    break
                producer = inner
            own = groups.make(node)
            if producer in groups.of and groups.of[producer].kind not in ("attention", "step"):
                groups.merge(groups.of[producer], own)

    # ---- operands of kernels that read buffers as they lie ----

    def keep_operands(self) -> None:
        """Attention reads strided views of buffers, sampling its operands as they lie."""
        for node in self.graph.nodes:
            if node.op.kind not in ("attention", "sample"):
                continue
            for name, operand in zip(node.op.operands, node.operands):
                self.keep(self.strided(operand) if name in node.op.strided else operand)

    def keep(self, value: Value) -> None:
        """Store a value as it is."""
        self.kept.add(value)
        if value.node is not None and value.node not in self.groups.of:
            self.groups.make(value.node)

    def strided(self, value: Value) -> Value:
        """What is stored of `value` or of what it is a view of; its last axis lies side by side."""
        found = value
        for view in strided_sources(value, self.facts):
            if value.shape[-1:] in ((), (1,)) or view.strides[-1] == 1:
                found = view.source
            if view.source.node is None or view.source.node in self.groups.of:
                break
        return found

    def take_views(self) -> None:
        """attention, then a view that alone reads it and only orders its rows  ->  one kernel"""
        groups = self.groups
        for node in self.graph.nodes:
            if node.op.kind != "attention":
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

    def keep_step_operands(self) -> None:
        """What is no kernel reads whole buffers."""
        for node in self.graph.nodes:
            if node.is_step:
                for operand in node.operands:
                    self.keep(operand)

    def repeat_casts(self) -> None:
        """A cast to a wider float is part of loading what it widens, which stays stored narrow.

        So is what makes numbers of a weight's codes.
        """
        for node in list(self.groups.of):
            if self.groups.of[node].nodes != {node} or self.groups.leaves(node):
                continue
            if node.results[0] in self.kept:
                continue
            if self.is_cast_in_loading(node) or decodes(self.graph, node):
                self.groups.free(node)

    def is_cast_in_loading(self, node: Node) -> bool:
        if node.op.name != "cast":
            return False
        source, target = node.operands[0].dtype, node.results[0].dtype
        widens = source.is_float and target.is_float and source.bits < target.bits
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
                (groups.of[p], value)
                for value in node.operands
                if (p := self.same_elements(value)) is not None and groups.of[p].kind == "contract"
            ]
            # the last product: the other operands are then there already
            for group, value in sorted(candidates, key=lambda c: -c[0].last):
                if squeezed(node.results[0].shape) != squeezed(value.shape):
                    self.refuse("epilogue", f"{node.op.name} broadcasts the product", value)
                elif not self.reads_same_elements(node, group):
                    self.refuse("epilogue", "it also reads the product at other places", value)
                elif not groups.can_merge(group, own):
                    self.refuse("epilogue", "another operand depends on the product", value)
                else:
                    groups.merge(group, own)
                    self.findings.fire("epilogue")
                    break

    def reads_same_elements(self, node: Node, group: Group) -> bool:
        """Whether every operand that is made of the group's values is so element by element."""
        for value in node.operands:
            if any(self.groups.of[p] is group for p in self.groups.sources(value)):
                if self.same_elements(value) is None:
                    return False
                if squeezed(value.shape) != squeezed(node.results[0].shape):
                    return False
        return True

    def same_elements(self, value: Value) -> Node | None:
        """The grouped node that makes `value`, through casts and added or dropped axes of 1."""
        node = value.node
        while node is not None and node not in self.groups.of:
            if node.op.name not in ("reshape", "cast"):
                return None
            inner = node.operands[0]
            if squeezed(inner.shape) != squeezed(node.results[0].shape):
                return None
            node = inner.node
        return node

    # ---- norms go into products ----

    def place_norms(self) -> None:
        """rms_norm read by products only  ->  part of each of them"""
        groups = self.groups
        for node in self.graph.nodes:
            if node.op.name != "rms_norm" or node not in groups.of:
                continue
            casts = self.casts_after(node)
            problem = self.norm_problem(node, casts)
            if problem is None and self.follows_reduction(node):
                problem = "it joins the reduction before it, which reads its rows anyway"
            if problem is not None:
                self.refuse("prologue", problem, node.results[0])
                continue
            for free in (node, *casts):
                groups.free(free)
            self.findings.fire("prologue")

    def casts_after(self, node: Node) -> list[Node]:
        """Casts that read the norm: one computed in float32 is narrowed for the products."""
        return [
            reader
            for reader in self.groups.readers(node)
            if reader.op.name == "cast" and self.groups.of[reader].nodes == {reader}
        ]

    def norm_problem(self, node: Node, casts: list[Node]) -> str | None:
        """Why the norm cannot be repeated by each product that reads it."""
        groups = self.groups
        if any(groups.leaves(n) for n in (node, *casts)):
            return "the norm is a result of the graph"
        readers = [r for r in groups.readers(node) if r not in casts]
        readers += [r for cast in casts for r in groups.readers(cast)]
        if not readers:
            return "nobody reads the norm"
        if len(readers) > MAX_NORM_READERS:
            return f"{len(readers)} products read the norm, the limit is {MAX_NORM_READERS}"
        for reader in readers:
            if reader.op.kind != "contract":
                return f"{reader.op.name} reads the norm, not only products"
            if not self.is_whole_x(reader, node):
                return f"the norm is not the x of {reader.op.name} as it stands"
        return None

    def follows_reduction(self, node: Node) -> bool:
        """Whether x is made from another norm's (or reduction's) rows, element by element."""
        shape = squeezed(node.operands[0].shape)
        stack, seen = [node.operands[0]], set()
        while stack:
            value = stack.pop()
            maker = self.same_elements(value)
            if maker is None or maker in seen:
                continue
            seen.add(maker)
            kind = self.groups.of[maker].kind
            if kind == "reduce":
                return squeezed(maker.operands[0].shape) == shape
            if kind == "pointwise" and maker.op.kind == "elementwise":
                stack += [v for v in maker.operands if squeezed(v.shape) == shape]
        return False

    def is_whole_x(self, product: Node, norm: Node) -> bool:
        """Whether the product's x is the norm, its last axis kept, and no weight is."""
        if any(norm in self.groups.sources(w) for w in product.operands[1:]):
            return False
        value = product.operands[0]
        while value.node is not norm:
            node = value.node
            if node is None or node.op.name not in ("reshape", "cast"):
                return False
            value = node.operands[0]
        return value.shape[-1] == product.operands[0].shape[-1]

    # ---- reductions take what surrounds them ----

    def grow_reductions(self) -> None:
        """A reduction, others of the same rows, what comes before and after  ->  one kernel"""
        for group in self.groups.all():
            if group.kind == "reduce" and group.anchor in self.groups.of:
                if self.groups.of[group.anchor] is group:
                    RowGroup(self.groups, group, self.refuse, self.findings).grow()

    # ---- what is left ----

    def merge_pointwise(self) -> None:
        """A computation that one group reads goes into it; a cheap one of several is repeated."""
        groups = self.groups
        for node in reversed(self.graph.nodes):
            if node not in groups.of:
                continue
            own = groups.of[node]
            if own.kind != "pointwise" or groups.leaves(node):
                continue
            readers = groups.reading_groups(node)
            if len(readers) == 1:
                self.merge_into_reader(node, own, readers[0])
            elif len(readers) > 1:
                self.repeat_or_store(node, own, readers)

    def merge_into_reader(self, node: Node, own: Group, reader: Group) -> None:
        groups = self.groups
        problem = self.reader_problem(node, own, reader)
        if problem is not None:
            self.refuse("vertical", problem, node.results[0])
        elif groups.can_merge(own, reader):
            groups.merge(reader, own)
            self.findings.fire("vertical")
        else:
            self.refuse("vertical", "the groups would depend on each other", node.results[0])

    def reader_problem(self, node: Node, own: Group, reader: Group) -> str | None:
        """Why `own` cannot become a part of `reader`."""
        if node.op.kind == "view":
            return f"{reader.anchor.op.name} reads it as it lies"
        if node.op.kind == "state":
            return "what a state op returns is read by a later kernel only"
        if any(self.groups.reading_groups(n) not in ([], [reader]) for n in own.nodes):
            return "another result of the group is read elsewhere"
        if reader.kind == "pointwise":
            return None
        if reader.kind == "reduce":
            return None if node.op.kind == "elementwise" else f"{node.op.name} before a reduction"
        if reader.kind == "contract":
            return self.prologue_problem(node, own, reader)
        return f"{reader.anchor.op.name} stands alone"

    def prologue_problem(self, node: Node, own: Group, reader: Group) -> str | None:
        anchor = reader.anchor
        if any(n.op.kind != "elementwise" for n in own.nodes):
            return f"{node.op.name} cannot be computed inside a product's loop"
        reads_x = node in self.groups.sources(anchor.operands[0])
        reads_w = any(node in self.groups.sources(w) for w in anchor.operands[1:])
        if reads_w:
            return "a weight's expression would be computed again for every row"
        if reads_x and any(n.op.cost == "expensive" for n in own.nodes):
            return "an expensive x would be computed again for every tile of columns"
        return None

    def repeat_or_store(self, node: Node, own: Group, readers: list[Group]) -> None:
        problem = self.repeat_problem(node, own, readers)
        if problem is None:
            self.groups.free(node)
            self.findings.fire("repeat")
        else:
            self.refuse("repeat", problem, node.results[0])

    def repeat_problem(self, node: Node, own: Group, readers: list[Group]) -> str | None:
        """Why a value that several groups read is stored."""
        if own.nodes != {node} or node.op.kind != "elementwise":
            return f"{node.op.name} is not a single cheap operation"
        if node.op.cost == "expensive":
            return f"{node.op.name} is expensive"
        for reader in readers:
            if reader.kind not in ("pointwise", "reduce"):
                return f"a {reader.kind} group reads it"
        count, made = len(readers), node.results[0]
        stored, points = self.hint_bytes(made), self.facts.hint(made.type.numel)
        operands = sum(self.hint_bytes(v) for v in node.operands)
        ways = {
            "repeating": Way(operands * count, points * count),
            "storing": Way(operands + stored * (count + 1), points),
        }
        best, took = compared(ways, self.target)
        return None if best == "repeating" else f"{count} groups read it: {took}"

    def merge_siblings(self) -> None:
        """Pointwise groups that read one value and do not wait for each other  ->  one kernel"""
        groups = self.groups
        by_input: dict[Value, list[Group]] = {}
        for group in groups.all():
            if group.kind == "pointwise":
                for value in self.inputs(group):
                    by_input.setdefault(value, []).append(group)
        for sharing in by_input.values():
            if len(sharing) < 2:
                continue
            current: Group | None = None
            for group in dict.fromkeys(groups.of[g.anchor] for g in sharing):
                if current is None or group is current:
                    current = group
                elif groups.path(current, group, direct=True) or groups.path(
                    group, current, direct=True
                ):
                    current = group  # a later one: it may take those after it
                else:
                    groups.merge(current, group)
                    self.findings.fire("siblings")

    def inputs(self, group: Group) -> Iterator[Value]:
        """Values from outside the group, weights aside."""
        members = set(self.groups.members(group))
        seen: set[Value] = set()
        for node in members:
            for v in node.operands:
                if (v.node is None or v.node not in members) and v not in seen:
                    seen.add(v)
                    if not self.graph.is_weight(v):
                        yield v


def is_free(node: Node) -> bool:
    """Views and sources are never stored for their own sake."""
    return node.op.kind in ("view", "source")
