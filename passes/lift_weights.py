"""Compute what sub-graphs make of weights alone around them, where it is made once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, count

from ..ir.builder import Rebuilder
from ..ir.graph import Graph, Node, Value
from ..ir.weight_only import with_weights
from . import findings
from .manager import Pass
from .rewrite import remove_dead, replace_nodes
from .split_prepare import decide, prepare_graph


@dataclass(frozen=True)
class LiftWeights(Pass):
    """cond(p, x, w) { f(x, g(w)) }  ->  cond(p, x, g(w)) { f(x, it) }

    A branch or a loop would make it anew each time, and what is around it may prepare it when a
    program is built. Weights that a sub-graph reads no more are not handed to it.
    """

    name = "lift-weights"

    def run_within(self, graph: Graph) -> Graph:
        return self.run(graph)  # which goes into sub-graphs itself: they hand up what they lift

    def run(self, graph: Graph) -> Graph:
        def lift(b: Rebuilder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
            return _Lift(self.run, graph, node).apply(b, operands)

        return replace_nodes(graph, lift, {n.op.name for n in graph.nodes if n.regions})


class _Lift:
    def __init__(self, within: Callable[[Graph], Graph], graph: Graph, node: Node):
        self.node = node
        self.bodies = {
            name: within(with_weights(graph, node, region)) for name, region in node.regions.items()
        }
        self.decided = {name: decide(body) for name, body in self.bodies.items()}

    def apply(self, b: Rebuilder, operands: Sequence[Value]) -> Sequence[Value] | None:
        """The node with what is lifted as further operands; None where nothing is."""
        node, bodies = self.node, self.bodies
        if not any(frontier for _, frontier in self.decided.values()):
            if all(bodies[name].nodes == region.nodes for name, region in node.regions.items()):
                return None
        count = len(next(iter(node.regions.values())).inputs)
        before, given = operands[: len(operands) - count], list(operands[len(operands) - count :])
        made = {name: self.made(b, name, given) for name in bodies}
        given += [v for values in made.values() for v in values]
        regions = {name: self.region(name, made) for name in bodies}
        takes = self.taken(regions.values(), len(given))
        attrs = {
            name: region.replace(inputs=tuple(compress(region.inputs, takes)))
            for name, region in regions.items()
        }
        findings.current().fired["lifted"] += len(given) - count
        return b.node(node.op, [*before, *compress(given, takes)], {**node.attrs, **attrs}).results

    def made(self, b: Rebuilder, name: str, given: Sequence[Value]) -> list[Value]:
        """What is lifted out of a sub-graph, around it."""
        _, frontier = self.decided[name]
        for inner, outer in zip(self.node.regions[name].inputs, given):
            b[inner] = outer
        for each in prepare_graph(self.bodies[name], tuple(frontier)).nodes:
            copy = b.node(each.op, [b[v] for v in each.operands], each.attrs, loc=each.loc)
            for inner, outer in zip(each.results, copy.results):
                b[inner] = outer
        return [b[v] for v in frontier]

    def region(self, name: str, made: dict[str, list[Value]]) -> Graph:
        """A sub-graph that is given what was lifted, out of the others too."""
        stays, frontier = self.decided[name]
        b = Rebuilder(self.bodies[name])
        inputs = list(self.node.regions[name].inputs)
        taken = {v.name for v in inputs}
        names = (n for n in map("made_{}".format, count()) if n not in taken)
        for owner, values in made.items():
            new = [b.input(next(names), v.shape, v.dtype) for v in values]
            inputs += new
            if owner == name:
                for old, value in zip(frontier, new):
                    b[old] = value
        for each in self.bodies[name].nodes:
            if each in stays:
                b.copy(each)
        return remove_dead(b.finish()).replace(inputs=tuple(inputs), weights=())

    def taken(self, regions: Iterable[Graph], count: int) -> list[bool]:
        """Which operands a sub-graph reads; what a loop carries, or takes slices of, it keeps."""
        attrs = self.node.attrs
        changing = attrs.get("carried", 0) + attrs.get("stacked", 0)
        read = [{v for n in r.nodes for v in n.operands} | r.results for r in regions]
        inputs = list(zip(*(r.inputs for r in regions)))
        return [
            at < changing or any(v in found for v, found in zip(inputs[at], read))
            for at in range(count)
        ]
