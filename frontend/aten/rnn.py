"""Recurrent layers of torch: any number of layers, of which each reads what the one below gives."""

from collections.abc import Sequence
from typing import Any

from ...ir.graph import Value
from ..declined import Refused
from ..importer import Call, Declined, handles
from ..nn import rnn
from ..nn.pad import part


def _lstm(call: Call, layer: rnn.Layer, states: Sequence[Value], projection: Value | None) -> Any:
    return rnn.lstm(call.b, layer, *states, projection=projection)


def _gru(call: Call, layer: rnn.Layer, states: Sequence[Value], _: Value | None) -> Any:
    return rnn.gru(call.b, layer, *states, resets_product=True)


def _rnn(activation: rnn.Activation) -> Any:
    def run(call: Call, layer: rnn.Layer, states: Sequence[Value], _: Value | None) -> Any:
        return rnn.rnn(call.b, layer, *states, activation=activation)

    return run


# the order of the gates in the weights, and what computes a layer
_KINDS = {
    "lstm": ("ifco", _lstm),
    "gru": ("rzh", _gru),
    "rnn_tanh": ("h", _rnn(rnn.tanh)),
    "rnn_relu": ("h", _rnn(rnn.relu)),
}


def _layers(order: str, compute: Any) -> Any:
    def run(
        call: Call,
        x: Value,
        states: Value | tuple[Value, ...],
        params: tuple[Value, ...],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Value, ...]:
        if train and dropout:
            raise Refused("a recurrent layer with dropout is in train mode; call eval() on it")
        b = call.b
        states = states if isinstance(states, tuple) else (states,)
        reverse = (False, True) if bidirectional else (False,)
        width = len(reverse)
        each = len(params) // (num_layers * width)  # weights, biases, and perhaps a projection
        x = b.transpose(x, perm=(1, 0, 2)) if batch_first else x
        ends: list[Sequence[Value]] = []
        for number in range(num_layers):
            first = number * width
            own = params[first * each : (first + width) * each]
            w, r, *more = (_stacked(call, own[i::each]) for i in range(each))
            w_bias, r_bias = more[:2] if has_biases else (None, None)
            layer = rnn.Layer(x, w, r, order, w_bias, r_bias, reverse=reverse)
            initial = [part(b, v, 0, first, first + width) for v in states]
            y, *last = compute(call, layer, initial, more[-1] if each % 2 else None)
            ends.append(last)
            joined = (*x.shape[:2], width * y.shape[-1])
            x = call.reshape(b.transpose(y, perm=(0, 2, 1, 3)), joined)
        x = b.transpose(x, perm=(1, 0, 2)) if batch_first else x
        return x, *(b.concat(*column, axis=0) for column in zip(*ends))

    return run


def _stacked(call: Call, values: Sequence[Value]) -> Value:
    """One for each direction, along a new axis 0."""
    return call.b.concat(*(call.reshape(v, (1, *v.shape)) for v in values), axis=0)


def _packed(call: Call, *_: Any) -> Any:
    raise Declined("a packed sequence, whose batch sizes are data; give padded sequences")


_INPUTS = {name: _layers(*kind) for name, kind in _KINDS.items()}
for _name, _handler in _INPUTS.items():
    handles(f"{_name}.input")(_handler)
    handles(f"{_name}.data")(_packed)


@handles("tilewright.recurrent.default")
def _recurrent(call: Call, kind: str, *args: Any) -> tuple[Value, ...]:
    return _INPUTS[kind](call, *args)
