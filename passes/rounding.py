"""How far rounding may move the results of a graph: the reference, run with disturbed numbers.

Each operation that rounds is given operands, and gives results, that are off by half to two units
in the last place of their declared dtypes, at random (Vignes, "A stochastic arithmetic for reliable
scientific computation", 1993). Of two runs the second has all of them off the other way, so that
what is just a whole number falls below it in one. Where a last bit decides (a floor at a whole
number, the largest of nearly equal elements), runs differ by as much as it decides; where nothing
rounds, not at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ..ir.evaluate import Disturb, evaluate
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.scalar import PREDICATES, functions_of
from ..ir.types import DType, f64

RUNS = 6  # disturbed ones, in pairs
SLACK = 8.0  # times the largest difference of any: none of so few is the worst that could be

Arrays = Mapping[str, np.ndarray]

_SMALLEST = float(np.finfo(np.float32).smallest_normal)  # below it some devices have 0

_EXACT_KINDS = frozenset("view source gather sort call state region".split())
_EXACT_FUNCTIONS = PREDICATES | frozenset(
    "neg abs where minimum maximum floor ceil round trunc and or xor not shift_right".split()
)


@dataclass(frozen=True)
class Expected:
    """A result in float64 and, element by element, how far from it rounding may lead.

    A bound is 0 where a result must be equal, and infinite where it may be anything. `any_size`:
    how many elements there are depends on what rounding changes; nothing is known of them.
    """

    values: np.ndarray
    bounds: np.ndarray
    any_size: bool = False

    def excess(self, actual: np.ndarray) -> float:
        """The largest difference as a multiple of its bound: more than 1 is wrong.

        Infinite for another shape, and where one of the two alone is infinite or NaN.
        """
        if self.any_size:
            return 0.0
        if np.shape(actual) != self.values.shape:
            return np.inf
        ours, theirs = _wide(np.asarray(actual)), _wide(self.values)
        with np.errstate(all="ignore"):
            gap = np.abs(ours - theirs) / self.bounds
        is_same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
        gap = np.where(gap == gap, gap, np.inf)
        gap = np.where(is_same | np.isinf(self.bounds), 0.0, gap)
        return float(gap.max(initial=0.0))


def expected(
    graph: Graph,
    arguments: Arrays,
    weights: Arrays,
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    runs: int = RUNS,
) -> list[Expected]:
    """What a program of `graph` may give: its outputs, then its new states in order.

    Fewer disturbed `runs` give smaller bounds. IndexOutOfRange and DivisionByZero as the reference
    raises them.
    """
    states = {v.name or "": arguments[v.name or ""] for v in graph.states}

    def run(precision: type | None = np.float64, disturb: Disturb | None = None):
        outputs, updated = evaluate(
            graph, arguments, weights, states, precision=precision, sizes=sizes, disturb=disturb
        )
        return [*outputs, *updated.values()]

    exact = run()
    others = [run(None)]  # in declared dtypes, which overflow where they do
    for i in range(runs):
        others.append(run(disturb=_disturbed(np.random.default_rng(seed + i // 2), 1 - i % 2 * 2)))
    updates = [graph.updates.get(v.name or "", v) for v in graph.states]
    results = [v.dtype for v in (*graph.outputs, *updates)]
    return [
        _expected(values, [other[i] for other in others], dtype)
        for i, (values, dtype) in enumerate(zip(exact, results, strict=True))
    ]


def _expected(values: np.ndarray, others: Sequence[np.ndarray], dtype: DType) -> Expected:
    if any(other.shape != values.shape for other in others):
        return Expected(values, np.full(values.shape, np.inf), any_size=True)
    return Expected(values, _bounds(values, others, dtype))


def _bounds(values: np.ndarray, others: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
    bounds = np.zeros(values.shape)
    for other in map(_wide, others):
        with np.errstate(all="ignore"):
            gap = np.abs(other - _wide(values))
        same = (other == values) | ((other != other) & (values != values))
        bounds = np.maximum(bounds, np.where(same, 0.0, np.where(gap == gap, gap, np.inf)))
    if not dtype.is_float:
        return np.where(bounds > 0, np.inf, 0.0)  # a choice that rounding makes
    if dtype == f64 and bounds.any():  # what the reference computes in: disturbances round back
        bounds = np.maximum(bounds, np.where(np.isfinite(values), _unit(f64) * np.abs(values), 0.0))
    least = float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal) + _SMALLEST
    return np.where(bounds > 0, SLACK * bounds + least, 0.0)


def _disturbed(rng: np.random.Generator, sign: int) -> Disturb:
    def disturb(
        node: Node, values: Sequence[Value], arrays: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        if not rounds(node):
            return list(arrays)
        if values is node.operands and node.op.kind == "attention":
            arrays = _without_infinite_values(node, arrays)
        return [
            x * (1 + sign * _unit(v.dtype) * off(x.shape)) if v.dtype.is_float else x
            for v, x in zip(values, arrays, strict=True)
        ]

    def off(shape: tuple[int, ...]) -> np.ndarray:
        return rng.choice((-1, 1), shape) * rng.uniform(0.5, 2, shape)

    return disturb


def _without_infinite_values(node: Node, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Whether values of keys that a query does not see are read is left open.

    So what is infinite or NaN there reaches the result or not.
    """
    return [
        np.where(np.isfinite(x), x, 0.0) if name == "v" else x
        for name, x in zip(node.op.operands, arrays, strict=False)
    ]


def rounds(node: Node) -> bool:
    """Whether the node's results are rounded, and so depend on how it is computed."""
    op = node.op
    if not any(r.dtype.is_float for r in node.results):
        return False
    if op.is_cast:
        return not node.results[0].dtype.holds(node.operands[0].dtype)
    return op.kind not in _EXACT_KINDS and not _functions(op, node) <= _EXACT_FUNCTIONS


def _functions(op: Op, node: Node) -> frozenset[str]:
    """The functions that it applies, as far as it says; else one that rounds."""
    if op.tree is not None:
        return functions_of(op.tree)
    if op.combine is not None:
        finish = functions_of(op.finish_tree) if op.finish_tree is not None else frozenset()
        return functions_of(op.combine.tree) | finish
    if node.attrs.get("combine") in ("replace", "max", "min"):
        return frozenset()
    return frozenset(("add",))


def _unit(dtype: DType) -> float:
    """The distance of 1 to the next larger number."""
    return float(ml_dtypes.finfo(dtype.numpy).eps)


def _wide(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.kind in "iu" else x.astype(np.float64)
