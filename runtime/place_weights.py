"""Weights, states and counters into the memory of a device."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from ..ir.dim import evaluate
from ..ir.errors import DimError, ShapeError, listed
from ..ir.program import ALIGNMENT, Buffer, Program
from .array import Array
from .device import Device, Memory, Place
from .dlpack import CPU, View, view_of


def place_weights(
    program: Program, weights: Mapping[str, Any], device: Device, *, borrow: bool = True
) -> dict[str, Array]:
    """An array on `device` for each weight of the program.

    Memory of the device that is dense and aligned is used as it is if `borrow`, anything else
    copied, one weight at a time. ShapeError lists every weight that is missing or does not fit.
    """
    missing = [b.name for b in program.weights if b.name not in weights]
    if missing:
        raise ShapeError(
            f"{len(missing)} of {len(program.weights)} weights are missing",
            where=program.name,
            facts=f"no array for {listed(missing, ', ')}; there are {len(weights)} arrays",
            fix="pass the weights that the program was compiled with",
        )
    placed, problems = {}, []
    for buffer in program.weights:
        array = weights[buffer.name]
        view = view_of(array)
        problem = _problem(view, buffer)
        if problem:
            problems.append(problem)
        elif not problems:  # nothing is copied once one is known to be wrong
            placed[buffer.name] = _place(view, buffer, device, borrow)
    if problems:
        raise ShapeError(
            f"{len(problems)} weights do not fit the program",
            where=program.name,
            facts=listed(problems),
            fix="pass the weights that the program was compiled with",
        )
    return placed


def place_states(
    program: Program, first: Mapping[str, Any], sizes: Mapping[str, int], device: Device
) -> dict[str, Array]:
    """Memory for each state, with its first value, else zeros.

    ShapeError for a value that does not fit, DimError when `sizes` lacks what a shape needs.
    """
    placed = {}
    for buffer in program.states:
        shape = _state_shape(buffer, sizes)
        dtype = buffer.type.dtype
        nbytes = prod(shape) * dtype.nbytes
        memory = device.allocate(nbytes, f"state {buffer.name}", zero=buffer.name not in first)
        if buffer.name in first:
            value = view_of(first[buffer.name]).numpy()
            if value.shape != shape or value.dtype != dtype.numpy:
                raise ShapeError(
                    f"the first value of state {buffer.name} does not fit",
                    facts=f"it is {value.dtype}{list(value.shape)}, declared {buffer.type}",
                )
            device.upload(memory, np.ascontiguousarray(value))
        placed[buffer.name] = Array.over(memory, shape, dtype, device)
    return placed


def place_counters(program: Program, device: Device) -> dict[str, Memory]:
    """Memory of zeros for each counter of the program."""
    return {
        b.name: device.allocate(evaluate(b.type.nbytes, {}), f"counters {b.name}", zero=True)
        for b in program.buffers.values()
        if b.role == "counter"
    }


def _state_shape(buffer: Buffer, sizes: Mapping[str, int]) -> tuple[int, ...]:
    missing = buffer.type.symbols - sizes.keys()
    if missing:
        raise DimError(
            f"the size of state {buffer.name} is not known",
            facts=f"it is {buffer.type}, and {', '.join(sorted(missing))} was not given",
            fix="pass sizes={...} with a number for each",
        )
    return tuple(evaluate(d, sizes) for d in buffer.type.shape)


def _problem(view: View, buffer: Buffer) -> str | None:
    stored = buffer.stored
    if view.dtype is stored.dtype and view.shape == stored.shape:
        return None
    said = f"{buffer.name} is {view.dtype}{list(view.shape)}, must be {stored}"
    return said if stored == buffer.type else f"{said}: {buffer.type} in {buffer.encoding}"


def _place(view: View, buffer: Buffer, device: Device, borrow: bool) -> Array:
    dtype = view.dtype
    if borrow and view.device == device.dlpack_device and view.strides is None:
        if view.device != CPU:
            memory = Place(view.address, prod(view.shape) * dtype.nbytes, view)
            return Array(view.shape, dtype, device=device, memory=memory)
        if view.address % ALIGNMENT == 0:
            return Array(view.shape, dtype, view.numpy())
    host = np.ascontiguousarray(view.numpy()).reshape(view.shape)
    own = device.allocate(host.nbytes, f"weight {buffer.name}")
    device.upload(own, host)
    return Array.over(own, view.shape, dtype, device)
