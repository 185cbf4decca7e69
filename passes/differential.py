"""Runs the reference before and after a pass, on random or given inputs, and compares."""

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np

from ..ir.dim import evaluate as evaluate_dim
from ..ir.errors import (
    DivisionByZero,
    IndexOutOfRange,
    PassError,
    TilewrightError,
    VerifyError,
)
from ..ir.evaluate import evaluate
from ..ir.graph import Graph, Value
from ..ir.text import print_node, value_names
from .moved import first_moved
from .random_inputs import WHOLE, bindings, random_arguments, random_weights

Arrays = Mapping[str, np.ndarray]

TOLERANCE = 1e-9  # float64 throughout; rewrites reassociate sums, nothing more
MAX_RANK = 64  # of a NumPy array
SCALES = (1.0, 1e-3)  # small inputs show a lost epsilon
# what integers are drawn from, until none is unfit: a divisor of 0, an index outside its axis
WHOLE_NUMBERS = (WHOLE, range(1, 2), range(1))


class NumbersMoved(VerifyError):
    """A pass changed what a graph computes: `moved_by` its name, `error` by how much."""

    def __init__(self, moved_by: str, error: float, value: str, where: str):
        self.moved_by, self.error, self.value = moved_by, error, value
        super().__init__(
            f"{moved_by} changed the numbers",
            where=where,
            facts=f"largest difference {error:.3g} of its scale, allowed {TOLERANCE:.3g}"
            + (f"\nfirst value that the graph before has not:\n  {value}" if value else ""),
            fix="run again with dump= and compare the graph before and after this pass",
        )


class Differential:
    """Holds the inputs and what the graph gave for them; `compare` after each pass.

    Inputs and states are `arguments`, where they are given, and `weights` the weights; else random.
    """

    def __init__(
        self,
        graph: Graph,
        seed: int = 0,
        *,
        arguments: Arrays | None = None,
        weights: Arrays | None = None,
    ):
        self.seed = seed
        self.weights: Arrays = {}
        if arguments is None or weights is None:
            self.start(graph)
        else:
            self._take(graph, [arguments], weights)

    def start(self, graph: Graph) -> None:
        """Take `graph` as what later ones are compared with; weights stay where they fit."""
        binding = bindings(graph)[1]
        _require_runnable(graph, binding)
        fault: TilewrightError | None = None
        kept = self.weights if {v.name for v in graph.weights} <= self.weights.keys() else None
        for whole in WHOLE_NUMBERS:
            runs = [random_arguments(graph, binding, scale, self.seed, whole) for scale in SCALES]
            weights = kept or random_weights(graph, self.seed, whole=whole)
            try:
                self._take(graph, runs, weights)
                return
            except (IndexOutOfRange, DivisionByZero) as error:
                fault = error
        raise _not_runnable(f"random integers are unfit data for it\n{fault}", "")

    def _take(self, graph: Graph, runs: Sequence[Arrays], weights: Arrays) -> None:
        self.graph, self.runs, self.weights = graph, runs, weights
        self.expected = [run(graph, inputs, weights) for inputs in runs]

    def compare(
        self, graph: Graph, name: str, keeps_signature: bool, prepare: Graph | None
    ) -> None:
        """NumbersMoved naming the pass `name`, and the first value, when numbers moved."""
        if not keeps_signature:
            self.start(graph)
            return
        weights = self.weights
        if prepare is not None:
            weights = prepared(graph, prepare, weights)
        for inputs, expected in zip(self.runs, self.expected):
            actual = run(graph, inputs, weights)
            for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
                worst = difference(a, e)
                if worst > TOLERANCE:
                    value = self._first(graph, weights, inputs, index)
                    raise NumbersMoved(name, worst, value, f"result {index} of @{graph.name}")
        self.graph, self.weights = graph, weights

    def _first(self, graph: Graph, weights: Arrays, inputs: Arrays, index: int) -> str:
        """The node of the first value that moved, as text; "" where none is found."""
        results = [*graph.outputs, *(graph.updates.get(v.name or "", v) for v in graph.states)]
        value = first_moved(
            (self.graph, self.weights),
            (graph, weights),
            inputs,
            results[index],
            lambda a, b: difference(a, b) <= TOLERANCE,
        )
        if value is None or value.node is None:
            return ""
        return print_node(value.node, value_names(graph))


def _require_runnable(graph: Graph, binding: Mapping[str, int]) -> None:
    """PassError when the reference cannot hold the graph's values: of too many axes, or too large.

    Counted are the arguments and the largest result, in float64, against half of the memory.
    """
    results = [value for node in graph.nodes for value in node.results]
    for value in (*graph.arguments(), *results):
        if value.type.rank > MAX_RANK:
            raise _not_runnable(f"a value has {value.type.rank} axes, at most {MAX_RANK} can be")

    def nbytes(value: Value) -> int:
        return 8 * math.prod(evaluate_dim(d, binding) for d in value.shape)

    needed = sum(map(nbytes, graph.arguments())) + max(map(nbytes, results), default=0)
    allowed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    if needed > allowed:
        raise _not_runnable(f"its values need {needed:,} bytes, and {allowed:,} may be used")


def _not_runnable(facts: str, smaller: str = ", or make its sizes smaller") -> PassError:
    return PassError(
        "the reference cannot run the graph, so numbers cannot be compared",
        facts=facts,
        fix=f"check with 1, which verifies and does not run it{smaller}",
    )


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference relative to the largest finite magnitude; infinite on a wrong shape."""
    if actual.shape != expected.shape:
        return float("inf")
    if not np.issubdtype(expected.dtype, np.floating):
        return float(np.any(actual != expected))
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    if same.all():
        return 0.0
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0, np.abs(actual - expected))
    finite = expected[np.isfinite(expected)]
    scale = np.abs(finite).max() if finite.size else 1.0
    worst = np.nan_to_num(gap, nan=np.inf).max()
    return float(worst / (scale or 1.0))


def prepared(
    graph: Graph, prepare: Graph, weights: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The weights of `graph`, computed by `prepare` from the original ones."""
    outputs, _ = evaluate(prepare, {}, weights)
    return {v.name or "": a for v, a in zip(graph.weights, outputs, strict=True)}


def run(
    graph: Graph, arguments: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Outputs, then new states in order."""
    states = {v.name or "": arguments[v.name or ""] for v in graph.states}
    outputs, new_states = evaluate(graph, arguments, weights, states)
    return [*outputs, *new_states.values()]
