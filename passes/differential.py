"""Runs the reference before and after a pass, on small random inputs, and compares."""

from collections.abc import Mapping

import numpy as np

from ..ir.dim import symbols_of
from ..ir.errors import VerifyError
from ..ir.evaluate import evaluate
from ..ir.graph import Graph, Value

TOLERANCE = 1e-9  # float64 throughout; rewrites reassociate sums, nothing more
SCALES = (1.0, 1e-3)  # small inputs show a lost epsilon
LARGEST = 7  # an odd size for every symbol without an upper bound


class Differential:
    """Holds the inputs and what the graph gave for them; `compare` after each pass."""

    def __init__(self, graph: Graph, seed: int = 0):
        self.seed = seed
        self.start(graph)

    def start(self, graph: Graph) -> None:
        """Take `graph` as what later ones are compared with."""
        self.runs = [
            random_arguments(graph, binding, scale, self.seed)
            for binding in bindings(graph)[1:2]
            for scale in SCALES
        ]
        self.weights = random_weights(graph, self.seed)
        self.expected = [run(graph, inputs, self.weights) for inputs in self.runs]

    def compare(
        self, graph: Graph, name: str, keeps_signature: bool, prepare: Graph | None
    ) -> None:
        """VerifyError naming the pass `name` when numbers moved."""
        if not keeps_signature:
            self.start(graph)
            return
        if prepare is not None:
            self.weights = prepared(graph, prepare, self.weights)
        for inputs, expected in zip(self.runs, self.expected):
            actual = run(graph, inputs, self.weights)
            for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
                worst = difference(a, e)
                if worst > TOLERANCE:
                    raise VerifyError(
                        f"{name} changed the numbers",
                        where=f"result {index} of @{graph.name}",
                        facts=f"largest difference {worst:.3g} of its scale, allowed {TOLERANCE:.3g}",
                        fix="run again with dump= and compare the graph before and after this pass",
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


def bindings(graph: Graph) -> list[dict[str, int]]:
    """Values for the symbols: each at its least, at a small odd size, at its bound when small."""
    least, odd, most = {}, {}, {}
    for s in graph.symbols.values():
        step = s.multiple
        low = -(-s.lo // step) * step
        high = low + LARGEST * step if s.hi is None else s.hi // step * step
        least[s.name] = low
        odd[s.name] = min(-(-max(s.lo, 5) // step) * step, high)
        most[s.name] = min(high, low + LARGEST * step)
    return [least, odd, most]


def random_weights(graph: Graph, seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Standard-normal weights (small integers for integer ones)."""
    rng = np.random.default_rng(seed)
    return {v.name or "": random_array(rng, v, {}, scale) for v in graph.weights}


def random_arguments(
    graph: Graph, binding: Mapping[str, int], scale: float, seed: int
) -> dict[str, np.ndarray]:
    """Inputs and states. Batch metadata of a paged program is made consistent, not random."""
    rng = np.random.default_rng(seed + 1)
    arrays = {
        v.name or "": random_array(rng, v, binding, scale) for v in (*graph.inputs, *graph.states)
    }
    return arrays


def random_array(
    rng: np.random.Generator, value: Value, binding: Mapping[str, int], scale: float
) -> np.ndarray:
    """An array of the value's type."""
    from ..ir.dim import evaluate as evaluate_dim

    shape = [d if isinstance(d, int) else evaluate_dim(d, binding) for d in value.shape]
    if value.dtype.is_float:
        return (rng.standard_normal(shape) * scale).astype(value.dtype.numpy)
    # indices of a table of any size: 0 and 1 are always in range in the graphs we make
    return rng.integers(0, 2, shape).astype(value.dtype.numpy)


__all__ = ["Differential", "bindings", "difference", "run", "symbols_of"]
