"""Control flow, calls, and results whose sizes depend on data.

The sub-graphs of a region are functions of what they are given: they have inputs only, and read
nothing from around them but the values of dims. Their dims are those of the graph they are in.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from ..dim import Dim, maximum, symbol
from ..graph import Graph
from ..host_functions import find_functions
from ..op import op
from ..types import TensorType, bool_, i64


@op(kind="region")
def cond(pred, *operands, then: Graph, otherwise: Graph):
    """then(*operands) where pred, one bool, is true, else otherwise(*operands).

    Both sub-graphs take all operands and give results of the same types. Only one of them runs.
    """
    _check_flag("pred", pred)
    _check_inputs("then", then, operands)
    _check_inputs("otherwise", otherwise, operands)
    results = _results(then)
    _check_same("otherwise gives", _results(otherwise), "then gives", results)
    return results


@cond.set_reference
def _(run, pred, *operands, then, otherwise):
    return run(then if pred.reshape(()) else otherwise, operands)


@op(kind="region")
def while_loop(*operands, carried: int, condition: Graph, body: Graph):
    """The first `carried` operands, replaced by body(*operands) as long as condition(*operands).

    Both sub-graphs take all operands, of which those after the first `carried` stay as they are.
    condition gives one bool, body new values of the carried operands, of the same types.
    """
    carries = _carried(carried, operands)
    _check_inputs("condition", condition, operands)
    _check_inputs("body", body, operands)
    if len(condition.outputs) != 1:
        raise TypeError(f"condition gives {len(condition.outputs)} results: must be one bool")
    _check_flag("what condition gives", condition.outputs[0].type)
    _check_same("body gives", _results(body), "carried are", carries)
    return carries


@while_loop.set_reference
def _(run, *operands, carried, condition, body):
    kept = operands[carried:]
    carries = operands[:carried]
    while run(condition, (*carries, *kept))[0].reshape(()):
        carries = run(body, (*carries, *kept))
    return tuple(carries)


@op(kind="region")
def scan(*operands, carried: int, stacked: int, count: Dim, body: Graph):
    """Body count times: the first `carried` operands go from one time to the next.

    The next `stacked` operands have `count` slices along axis 0, one for each time; the others are
    the same each time. body(*carried, *slices, *others) gives new values of the carried ones, of
    the same types, and then slices. The results are the last carried values, and the slices of all
    times stacked along a new axis 0.
    """
    carries = _carried(carried, operands)
    if not 0 <= stacked <= len(operands) - carried:
        raise TypeError(f"{stacked} of {len(operands)} operands are stacked, {carried} carried")
    slices = []
    for x in operands[carried : carried + stacked]:
        if not x.rank or x.shape[0] != count:
            raise TypeError(f"a stacked operand is {x}: its axis 0 must be {count}")
        slices.append(x.with_shape(x.shape[1:]))
    _check_inputs("body", body, (*carries, *slices, *operands[carried + stacked :]))
    results = _results(body)
    _check_same("body gives", results[:carried], "carried are", carries)
    return (*carries, *(r.with_shape((count, *r.shape)) for r in results[carried:]))


@scan.set_reference
def _(run, *operands, carried, stacked, count, body):
    carries, slices = operands[:carried], operands[carried : carried + stacked]
    rows: list[Sequence[np.ndarray]] = []
    for i in range(count):
        results = run(body, (*carries, *(x[i] for x in slices), *operands[carried + stacked :]))
        carries = results[:carried]
        rows.append(results[carried:])
    if not rows:
        return (*carries, *(run.zeros((0, *v.shape)) for v in body.outputs[carried:]))
    return (*carries, *(np.stack(column) for column in zip(*rows)))


@op(kind="call")
def call(*operands, function: str, results: tuple[TensorType, ...], binds: tuple[str, ...] = ()):
    """What the function registered under this name makes of the operands: an eager fallback.

    It is called on the host with arrays, and must give the same for the same arrays. `binds` names
    dims of the results that only the call knows.
    """
    if not results:
        raise TypeError("a call has at least one result")
    return results


@call.set_reference
def _(*operands, function, results, binds):
    return find_functions("the graph", [function])[function](*operands)


@op(kind="call")
def nonzero(x, *, binds: tuple[str, ...]):
    """Where x is not zero: indices [n, rank of x], row-major; binds = [the name of the dim n]."""
    if len(binds) != 1:
        raise TypeError(f"binds is {list(binds)}: must name one dim")
    return TensorType((symbol(binds[0]), x.rank), i64)


nonzero.routine = "numpy.nonzero"


@nonzero.set_range
def _(x, *, binds):
    return 0, reduce(maximum, (1, *x.shape)) - 1


@nonzero.set_reference
def _(x, *, binds):
    return np.argwhere(x)


@op(kind="call")
def read_dim(x, *, binds: tuple[str, ...]):
    """The one integer x as a dim, binds = [its name]: a size that is computed. -> x as i64[]."""
    if len(binds) != 1 or x.dtype is not i64 or x.numel != 1:
        raise TypeError(f"x is {x}, binds is {list(binds)}: must be one i64, and name one dim")
    return TensorType((), i64)


@read_dim.set_reference
def _(x, *, binds):
    return x.reshape(())


read_dim.binds_value = True


def _carried(carried: int, operands: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if not 0 < carried <= len(operands):
        raise TypeError(f"{carried} of {len(operands)} operands are carried")
    return tuple(operands[:carried])


def _results(graph: Graph) -> tuple[TensorType, ...]:
    return tuple(value.type for value in graph.outputs)


def _check_flag(what: str, type: TensorType) -> None:
    if type.dtype is not bool_ or type.numel != 1:
        raise TypeError(f"{what} is {type}: must be one bool")


def _check_inputs(what: str, graph: Graph, operands: Sequence[TensorType]) -> None:
    if graph.weights or graph.states:
        raise TypeError(f"{what} has weights or states: a sub-graph has inputs only")
    taken = [value.type for value in graph.inputs]
    _check_same(f"{what} takes", taken, "given are", operands)


def _check_same(
    what: str, types: Sequence[TensorType], to: str, others: Sequence[TensorType]
) -> None:
    if list(types) != list(others):
        shown = [", ".join(map(str, each)) or "nothing" for each in (types, others)]
        raise TypeError(f"{what} {shown[0]}; {to} {shown[1]}")
