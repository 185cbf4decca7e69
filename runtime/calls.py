"""Calls of functions over arrays, and what they return held against what was declared."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..ir.binder import ArgumentSpec, Binder
from ..ir.dim import symbol as make_symbol
from ..ir.errors import DimError, ShapeError
from ..ir.host_functions import Function, find_named
from ..ir.program import Buffer, Program
from ..ir.steps import BindSize, FunctionCall


class Returned:
    """What the function of one step must return: a list of arrays of the declared types."""

    def __init__(self, step: FunctionCall, program: Program):
        self._step, self._program = step, program.name
        self._outputs = [program.buffers[name] for name in step.outputs]
        used = {*step.binds}.union(*(b.type.symbols for b in self._outputs))
        symbols = {name: program.symbols[name] for name in used}
        specs = [ArgumentSpec(b.name, b.type.shape) for b in self._outputs]
        self._binder = Binder(specs, symbols)

    def of(
        self, function: Function, arrays: Sequence[np.ndarray], values: dict[str, int]
    ) -> list[np.ndarray]:
        """What `function` makes of `arrays`; the sizes that it binds are put into `values`.

        ShapeError for results of another number, dtype or rank than declared; DimError for other
        sizes.
        """
        step = self._step
        try:
            returned = function(*arrays)
        except Exception as error:
            error.add_note(f"in {step.function}, called by step {step.name} of {self._program}")
            raise
        results = _arrays(step, returned, self._outputs)
        known = {name: value for name, value in values.items() if name not in step.binds}
        try:
            values.update(self._binder.bind([a.shape for a in results], known))
        except DimError as error:
            raise DimError(
                f"{step.function} returned sizes that do not fit",
                where=step.loc or step.name,
                facts=error.facts,
                fix="return arrays of the declared shapes",
            ) from None
        return results


def _arrays(step: FunctionCall, returned: Any, outputs: Sequence[Buffer]) -> list[np.ndarray]:
    results = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if len(results) != len(outputs):
        raise ShapeError(
            f"{step.function} returned {len(results)} arrays, declared are {len(outputs)}",
            where=step.loc or step.name,
            fix="return an array for each declared result",
        )
    results = [np.asarray(result) for result in results]
    wrong = [
        f"result {i} is {array.dtype}{list(array.shape)}, declared {buffer.type}"
        for i, (array, buffer) in enumerate(zip(results, outputs))
        if array.dtype != buffer.type.dtype.numpy or array.ndim != buffer.type.rank
    ]
    if wrong:
        raise ShapeError(
            f"{step.function} returned arrays of another dtype or rank than declared",
            where=step.loc or step.name,
            facts="\n".join(wrong),
            fix="return arrays of the declared types",
        )
    return results


def size_binder(step: BindSize, program: Program) -> Binder:
    """What takes the step's integer as the size of an axis, and holds its symbol's range."""
    spec = ArgumentSpec(step.source, (make_symbol(step.symbol),))
    return Binder([spec], {step.symbol: program.symbols[step.symbol]})


def checked_size(step: BindSize, binder: Binder, value: int) -> int:
    """`value`, which is data, as the value of the symbol. DimError when it is not in its range."""
    try:
        return binder.bind([(value,)])[step.symbol]
    except DimError as error:
        raise DimError(
            "a size that was computed is outside its declared range",
            where=step.loc or step.name,
            facts=error.facts,
            fix="give it data for which the size is in range",
        ) from None


# ---- routines of libraries that come with the runtime --------------------------------------


def find_routines(program: str, names: Iterable[str]) -> dict[str, Function]:
    """The routines of these names; DeviceError naming all that this version does not have."""
    return find_named(
        ROUTINES,
        names,
        f"{program} uses {{}} library routines that are not here",
        f"compile the program again with this version, which has {', '.join(ROUTINES)}",
    )


def _nonzero(x: np.ndarray) -> np.ndarray:
    """Indices of the elements that are not zero: [count, rank], in row-major order."""
    return np.argwhere(x).astype(np.int64, copy=False)


ROUTINES: dict[str, Function] = {"numpy.nonzero": _nonzero}
