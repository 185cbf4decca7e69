"""Padding: with a number, or with what the axis holds."""

from typing import Any

from ...ir.dim import Dim
from ...ir.graph import Value
from ..declined import Declined
from ..importer import Call, handles
from ..nn.pad import extended, padded


@handles("constant_pad_nd.default", "pad.default")
def _pad(
    call: Call,
    x: Value,
    pad: tuple[Dim, ...],
    *rest: Any,
    value: Any = None,
    mode: str = "constant",
) -> Value:
    # constant_pad_nd(x, pad, value=0); pad(x, pad, mode="constant", value=None)
    for extra in rest:
        mode, value = (extra, value) if isinstance(extra, str) else (mode, extra)
    if isinstance(value, Value):
        raise Declined("padding with a number that is computed: use where")
    fill = 0 if value is None else value
    fill = float(fill) if x.dtype.is_float else fill
    for position in range(len(pad) // 2):
        axis = x.type.rank - 1 - position
        before, after = pad[2 * position], pad[2 * position + 1]
        if mode == "constant":
            x = padded(call.b, x, axis, before, after, fill)
        else:
            x = extended(call.b, x, axis, before, after, mode)
    return x


for _axes in (1, 2, 3):
    for _name, _mode in (("reflection", "reflect"), ("replication", "replicate")):
        handles(f"{_name}_pad{_axes}d.default")(
            lambda call, x, pad, mode=_mode: _pad(call, x, pad, mode=mode)
        )
