"""Arrays that a program is given: checked, and brought to its device."""

from collections.abc import Sequence

import numpy as np

from ..ir.errors import DeviceError, ShapeError
from ..ir.program import Buffer
from .device import Device, Memory
from .dlpack import CPU, View, view_of


def check_inputs(name: str, inputs: Sequence[Buffer], views: Sequence[View]) -> None:
    """ShapeError where a program is given too few or too many, or with each of a wrong dtype."""
    if len(views) != len(inputs):
        raise ShapeError(
            f"{name} takes {len(inputs)} arrays, got {len(views)}",
            facts=f"inputs: {', '.join(f'{b.name}: {b.type}' for b in inputs)}",
        )
    wrong = [
        f"{b.name} is {v.dtype}, must be {b.type.dtype}"
        for v, b in zip(views, inputs)
        if v.dtype is not b.type.dtype
    ]
    if wrong:
        raise ShapeError(
            f"{name} was given arrays of the wrong dtype",
            facts="\n".join(wrong),
            fix="convert them, or compile the model for these dtypes",
        )


def on_device(view: View, buffer: Buffer, device: Device) -> View | Memory:
    """An input where the device finds it: in place, or a copy to be kept while it is used."""
    if view.device == device.dlpack_device:
        if view.strides is None:
            return view
        if view.device == CPU:
            return view_of(np.ascontiguousarray(view.numpy()))
        raise ShapeError(
            f"input {buffer.name} is not contiguous",
            facts=f"shape {list(view.shape)} has strides {list(view.strides)}",
            fix="pass x.contiguous()",
        )
    if view.device != CPU:
        raise DeviceError(
            f"input {buffer.name} is on another device than the program",
            facts=f"it is on DLPack device {view.device}, the program on {device.name}",
            fix=f"move it to {device.name} or to the CPU first",
        )
    array = np.ascontiguousarray(view.numpy())
    memory = device.allocate(array.nbytes, f"input {buffer.name}", brief=True)
    device.upload(memory, array)
    return memory
