"""`verify` for the text of a graph: its program beside the reference."""

from .. import passes
from ..ir.parse import parse_graph
from ..ir.verify import verify
from ..passes.random_inputs import bindings, random_arguments, random_weights
from ..passes.rounding import expected
from ..runtime.executable import Executable
from .bisect import bisect
from .compile_graph import compile_graph
from .machine import open_device, resolve_target
from .verify_module import Case, Difference, Verdict


def verify_graph(
    text: str, *, path: str, target: str = "auto", seed: int = 0, find: bool = False
) -> Verdict:
    """Compile a graph and compare its results with the reference's, on random data.

    An error is a multiple of what rounding may do to that result, so its bound is 1.
    """
    graph = parse_graph(text, path=path)
    verify(graph)
    resolved = resolve_target(target)
    weights = random_weights(graph, seed)
    pipeline = passes.PIPELINES["dense"]()
    made = compile_graph(graph, weights, pipeline, resolved)
    cases, suspect = [], None
    for sizes in bindings(graph):
        arguments = random_arguments(graph, sizes, 1.0, seed)
        states = {v.name or "": arguments[v.name or ""] for v in graph.states}
        executable = Executable(
            made.program, made.weights, open_device(resolved), sizes=sizes, states=states
        )
        made_here = executable(*(arguments[v.name or ""] for v in graph.inputs))
        made_here += [executable.states[v.name or ""] for v in graph.states]
        wanted = expected(graph, arguments, weights)
        results = tuple(
            Difference(f"result {i}", one.excess(got.numpy()), 1.0)
            for i, (one, got) in enumerate(zip(wanted, made_here, strict=True))
        )
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        cases.append(Case(shown or "fixed sizes", results))
        if find and suspect is None and not all(r.is_right for r in results):
            suspect = bisect(graph, weights, pipeline, resolved, arguments)
    return Verdict("the reference", resolved.name, tuple(cases), suspect)
