"""Recurrent layers: one scan over time, in which all directions go on together.

T steps, B sequences, D directions, I inputs, H units (P of them, where a projection makes fewer).
`w` [D, gates * H, I] meets the inputs, of all steps in one product before the scan; `r`
[D, gates * H, P] meets the state. The gates stand along an axis in the order that `order` spells.
Biases are [D, gates * H], states [D, B, H]. `reverse` says of each direction whether it runs from
the last step to the first. With `lengths` [B] a sequence's state stays as it is where the sequence
is over, and its outputs there are 0. Everything is computed in the dtype of x; sums of products in
float32.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...ir.builder import Builder
from ...ir.graph import Value
from .pad import part, pieces, reversed_axis
from .scan import scanned

Activation = Callable[[Builder, Value], Value]
Cell = Callable[..., tuple[Value, ...]]


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    return b.sigmoid(x)


def tanh(b: Builder, x: Value) -> Value:
    """The hyperbolic tangent."""
    return b.tanh(x)


def relu(b: Builder, x: Value) -> Value:
    """max(x, 0)."""
    return b.relu(x)


class Layer(NamedTuple):
    """What all recurrent layers have: x [T, B, I], its weights, and how time runs."""

    x: Value
    w: Value
    r: Value
    order: str
    w_bias: Value | None = None
    r_bias: Value | None = None
    lengths: Value | None = None
    reverse: tuple[bool, ...] = (False,)
    clip: float | None = None  # inputs of activations of gates are kept in [-clip, clip]


def lstm(
    b: Builder,
    layer: Layer,
    hidden: Value,
    cell: Value,
    *,
    peepholes: Mapping[str, Value] | None = None,
    projection: Value | None = None,
    activations: Sequence[Activation] = (sigmoid, tanh, tanh),
    couples_forget: bool = False,
) -> tuple[Value, Value, Value]:
    """Long short-term memory: -> outputs [T, D, B, P], last hidden [D, B, P], last cell [D, B, H].

    i, f, o = s(x w + h r + bias), of gates "i", "f", "o"; g = t(x w + h r + bias) of gate "c";
    c' = f * c + i * g; h' = (o * u(c')) projection^T; s, t, u are the activations. peepholes
    [D, 1, H], by gate: p * c is added to i and f, p * c' to o. couples_forget: f = 1 - i.
    projection: [D, P, H].
    Hochreiter and Schmidhuber, 1997; Gers et al., 2000 and 2002 (peepholes); Sak et al., 2014.
    """
    inner, outer, of_cell = activations
    peeks = peepholes or {}
    fixed = [layer.r, *peeks.values(), *([] if projection is None else [projection])]

    def step(b, states, row, r, *others):
        h, c = states
        peek = dict(zip(peeks, others))
        z = _gates(b, layer.order, b.add(row, b.matmul(h, r, transpose_w=True)))

        def gate(name, seen):
            x = b.add(z[name], b.mul(peek[name], seen)) if name in peek else z[name]
            return inner(b, _clipped(b, x, layer.clip))

        i = gate("i", c)
        f = b.sub(b.constant(1.0, i.dtype), i) if couples_forget else gate("f", c)
        new = b.add(b.mul(f, c), b.mul(i, outer(b, _clipped(b, z["c"], layer.clip))))
        out = b.mul(gate("o", new), of_cell(b, new))
        return (out if projection is None else b.matmul(out, others[-1], transpose_w=True)), new

    return _over_time(b, layer, [layer.w_bias, layer.r_bias], step, [hidden, cell], fixed)


def gru(
    b: Builder,
    layer: Layer,
    hidden: Value,
    *,
    resets_product: bool,
    activations: Sequence[Activation] = (sigmoid, tanh),
) -> tuple[Value, Value]:
    """Gated recurrent unit: -> outputs [T, D, B, H], last hidden [D, B, H].

    z, r = s(x w + h r + biases), of gates "z" and "r"; h' = (1 - z) * n + z * h, where n, of gate
    "h", is t(x w + (r * h) r + biases), with resets_product t(x w + w_bias + r * (h r + r_bias));
    s, t are the activations. Cho et al., 2014; resets_product as cuDNN has it.
    """
    inner, outer = activations
    order = layer.order
    before = [layer.w_bias] if resets_product else [layer.w_bias, layer.r_bias]
    bias = layer.r_bias if resets_product else None
    fixed = [layer.r] if bias is None else [layer.r, _row(b, bias)]

    def step(b, states, row, r, *others):
        (h,) = states
        x = _gates(b, order, row)
        if resets_product:
            product = b.matmul(h, r, transpose_w=True)
            y = _gates(b, order, b.add(product, others[0]) if others else product)
        else:
            weights = _gates(b, order, r, axis=1)
            y = {name: b.matmul(h, weights[name], transpose_w=True) for name in "zr"}
        z, reset = (inner(b, _clipped(b, b.add(x[n], y[n]), layer.clip)) for n in "zr")
        if resets_product:
            seen = b.mul(reset, y["h"])
        else:
            seen = b.matmul(b.mul(reset, h), weights["h"], transpose_w=True)
        new = outer(b, _clipped(b, b.add(x["h"], seen), layer.clip))
        kept = b.sub(b.constant(1.0, z.dtype), z)
        return (b.add(b.mul(kept, new), b.mul(z, h)),)

    return _over_time(b, layer, before, step, [hidden], fixed)


def rnn(
    b: Builder, layer: Layer, hidden: Value, *, activation: Activation = tanh
) -> tuple[Value, Value]:
    """h' = activation(x w + h r + biases): -> outputs [T, D, B, H], last hidden [D, B, H].

    Elman, "Finding structure in time", 1990.
    """

    def step(b, states, row, r):
        z = b.add(row, b.matmul(states[0], r, transpose_w=True))
        return (activation(b, _clipped(b, z, layer.clip)),)

    return _over_time(b, layer, [layer.w_bias, layer.r_bias], step, [hidden], [layer.r])


def _over_time(
    b: Builder,
    layer: Layer,
    biases: Sequence[Value | None],
    cell: Cell,
    states: Sequence[Value],
    fixed: Sequence[Value],
) -> tuple[Value, ...]:
    """The outputs of all steps, and the last states, of which the first is what is put out."""
    time, batch, inputs = layer.x.shape
    directions, width, _ = layer.w.shape
    rows = b.matmul(
        layer.x, b.reshape(layer.w, shape=(directions * width, inputs)), transpose_w=True
    )
    rows = b.reshape(rows, shape=(time, batch, directions, width))
    rows = b.transpose(rows, perm=(0, 2, 1, 3))
    for bias in biases:
        if bias is not None:
            rows = b.add(rows, _row(b, bias))
    slices = [_turned(b, rows, layer.reverse)]
    if layer.lengths is not None:
        steps = b.reshape(b.iota(length=time, dtype=layer.lengths.dtype), shape=(time, 1, 1, 1))
        runs = b.lt(steps, b.reshape(layer.lengths, shape=(1, 1, batch, 1)))
        runs = b.broadcast_to(runs, shape=(time, directions, batch, 1))
        slices.append(_turned(b, runs, layer.reverse))

    carried = len(states)

    def step(b, *values):
        old, row, rest = values[:carried], values[carried], values[carried + 1 :]
        new = cell(b, old, row, *rest[len(slices) - 1 :])
        if len(slices) == 1:
            return (*new, new[0])
        new = tuple(b.where(rest[0], n, o) for n, o in zip(new, old))
        return (*new, b.where(rest[0], new[0], b.constant(0.0, new[0].dtype)))

    *last, outputs = scanned(b, step, states, slices, fixed)
    return _turned(b, outputs, layer.reverse), *last


def _turned(b: Builder, x: Value, reverse: Sequence[bool]) -> Value:
    """x [T, D, ...] with the directions that run backwards from end to start."""
    if not any(reverse):
        return x
    backwards = reversed_axis(b, x, 0)
    if all(reverse):
        return backwards
    parts = [part(b, backwards if r else x, 1, i, i + 1) for i, r in enumerate(reverse)]
    return b.concat(*parts, axis=1)


def _row(b: Builder, bias: Value) -> Value:
    """[D, gates * H] -> [D, 1, gates * H]: the same for all sequences."""
    return b.reshape(bias, shape=(bias.shape[0], 1, bias.shape[1]))


def _gates(b: Builder, order: str, x: Value, axis: int = -1) -> dict[str, Value]:
    """The parts of an axis, one a gate."""
    size = x.shape[axis] // len(order)
    return dict(zip(order, pieces(b, x, axis, (size,) * len(order))))


def _clipped(b: Builder, x: Value, clip: float | None) -> Value:
    if clip is None:
        return x
    return b.maximum(b.minimum(x, b.constant(clip, x.dtype)), b.constant(-clip, x.dtype))
