"""Checks every invariant of a graph; run after each pass."""

from typing import Any

from .builder import infer
from .dim import symbols_of
from .errors import ShapeError, VerifyError
from .graph import Graph, Node, Value, symbols_in
from .index_map import Read, SymbolContext
from .text import print_node, value_names
from .types import TensorType


def verify(graph: Graph) -> None:
    """Raise VerifyError on the first broken invariant, with the nodes around it."""
    _Verifier(graph).run()


class _Verifier:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.defined: set[Value] = set()
        self.consumed: dict[Value, Node] = {}  # a state and the op that took it
        # values a state's content has passed through: the state itself and what ops made of it
        self.is_state: set[Value] = set(graph.states)
        self.inside: set[Any] = set()  # views that are proved to read inside their operands
        self.sized: set[TensorType] = set()  # types whose dims are found sound: they stay so
        # symbols that nodes bind and have not bound yet
        self.unbound: set[str] = {name for node in graph.nodes for name in node.binds}

    def run(self) -> None:
        graph = self.graph
        names = [v.name for v in (*graph.inputs, *graph.states)]
        if len(set(names)) != len(names) or None in names:
            raise VerifyError(f"names of inputs and states are not unique: {names}")
        weight_names = [v.name for v in graph.weights]
        if len(set(weight_names)) != len(weight_names):
            raise VerifyError("two weights have one name")
        for value in graph.arguments():
            self.check_dims(value.type, value.name or "?")
            self.defined.add(value)
        for index, node in enumerate(graph.nodes):
            self.check_node(index, node)
        for value in graph.results:
            if value not in self.defined:
                raise VerifyError(f"an output or update is not defined in the graph: {value}")
        self.check_updates()

    def check_node(self, index: int, node: Node) -> None:
        for operand in node.operands:
            if operand not in self.defined:
                raise self.error(index, f"operand {operand} is used before it is defined")
            if operand in self.consumed:
                by = self.consumed[operand].op.name
                raise self.error(index, f"a state is used after {by} consumed it")
        try:
            inferred = infer(node.op, node.operands, node.attrs)
        except ShapeError as error:
            raise self.error(index, str(error)) from None
        written = tuple(r.type for r in node.results)
        if inferred != written:
            raise self.error(
                index, f"types are {_shown(written)}, the rule gives {_shown(inferred)}"
            )
        self.check_bound(index, node)
        for name, region in node.regions.items():
            self.check_region(index, name, region)
        for result in node.results:
            self.check_dims(result.type, node.op.name)
        if node.op.kind == "view":
            self.check_reads(index, node)
        self.check_limits(index, node)
        if node.op.kind == "state":
            state = node.operands[0]
            if state not in self.is_state:
                raise self.error(index, f"{node.op.name} consumes {state}, which is not a state")
            self.consumed[state] = node
            self.is_state.add(node.results[0])
        self.defined.update(node.results)

    def check_bound(self, index: int, node: Node) -> None:
        """Dims of an attribute or a result have values by now, or get them from this node."""
        for name in node.binds:
            if name not in self.graph.symbols:
                raise self.error(index, f"{node.op.name} binds {name}, which is not declared")
            if name not in self.unbound:
                raise self.error(index, f"dim {name} is bound twice")
            self.unbound.remove(name)
        early = symbols_in(node) & self.unbound if self.unbound else ()
        if early:
            raise self.error(index, f"dim {', '.join(sorted(early))} is bound only later")

    def check_region(self, index: int, name: str, region: Graph) -> None:
        late, outer = region.late_symbols, self.graph.symbols
        for symbol in region.symbols.values():
            declared = outer.get(symbol.name)
            if symbol.name in late and declared is not None:
                raise self.error(index, f"{name} binds dim {symbol.name} of the graph around it")
            if symbol.name not in late and declared != symbol:
                raise self.error(
                    index, f"{name} has {symbol}, which is declared around it as {declared}"
                )
            if symbol.name in self.unbound:
                raise self.error(index, f"dim {symbol.name} of {name} is bound only later")
        try:
            verify(region)
        except VerifyError as error:
            where = f"{name}, {error.where}" if error.where else name
            raise VerifyError(error.what, where=where, facts=error.facts) from None

    def check_limits(self, index: int, node: Node) -> None:
        """Sizes that would lead outside an operand if they were larger."""
        if node.op.limits is None:
            return
        for size, most in node.op.limits(*(v.type for v in node.operands), **node.attrs):
            if not self.graph.facts.proved_le(size, most):
                raise self.error(
                    index, f"{node.op.name}: {size} is not proved to be {most} or less"
                )

    def check_reads(self, index: int, node: Node) -> None:
        """What a view reads whatever the index, it reads inside its operand."""
        if node.op.inverse is not None or node.key in self.inside:
            return
        at = SymbolContext(node, self.graph.facts)
        read = at.mapped
        if isinstance(read, Read):
            for place, size in zip(read.index, node.operands[read.operand].shape, strict=True):
                low, high = at.facts.ends(place)
                if not (at.facts.proved_le(0, low) and at.facts.proved_lt(high, size)):
                    what = f"{node.op.name} reads {low} to {high} of an axis of {size}"
                    raise self.error(index, f"{what}: not proved inside")
        self.inside.add(node.key)

    def check_dims(self, type: TensorType, where: str) -> None:
        if type in self.sized:
            return
        for dim in type.shape:
            if self.unbound & symbols_of(dim):
                raise VerifyError(f"{where}: {type} has a dim that is bound only later")
            unknown = symbols_of(dim) - self.graph.symbols.keys()
            if unknown:
                raise VerifyError(f"{where}: {type} uses undeclared symbols {sorted(unknown)}")
            if not self.graph.facts.proved_le(0, dim):
                raise VerifyError(
                    f"{where}: {type}: {dim} is not proved to be 0 or more",
                    facts=f"its bounds are {self.graph.facts.bounds(dim)}",
                )
        self.sized.add(type)

    def check_updates(self) -> None:
        states = {v.name: v for v in self.graph.states}
        for name, value in self.graph.updates.items():
            if name not in states:
                raise VerifyError(f"update of {name!r}, which is not a state")
            if value.type != states[name].type:
                raise VerifyError(f"update of {name!r}: {value.type} for {states[name].type}")
            if value in self.consumed:
                by = self.consumed[value].op.name
                raise VerifyError(f"update of {name!r} is a value that {by} consumed")

    def error(self, index: int, what: str) -> VerifyError:
        names = value_names(self.graph)
        shown = [
            ("> " if i == index else "  ") + print_node(node, names)
            for i, node in enumerate(self.graph.nodes)
            if abs(i - index) <= 3
        ]
        loc = self.graph.nodes[index].loc
        return VerifyError(
            what,
            where=f"node {index} of @{self.graph.name}" + (f" ({loc})" if loc else ""),
            facts="\n".join(shown),
        )


def _shown(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types))
