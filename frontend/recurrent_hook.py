"""Keeps recurrent layers whole while a module is traced.

Torch takes them apart into as many steps as the example has, which fixes the length. Here each is
one operation, `tilewright::recurrent`, whose results have the shapes that torch's have.
"""

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("tilewright", "FRAGMENT")
_library.define(
    "recurrent(str kind, Tensor x, Tensor[] states, Tensor[] params, bool has_biases,"
    " int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> Tensor[]"
)


@torch.library.register_fake("tilewright::recurrent")
def _fake(
    kind: str,
    x: torch.Tensor,
    states: list[torch.Tensor],
    params: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[torch.Tensor]:
    """x: [T, B, I], or [B, T, I] with batch_first -> outputs, and each state as it is last."""
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    return [x.new_empty((*x.shape[:2], width)), *(s.new_empty(s.shape) for s in states)]


def _kept(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, states: Any, params: Any, *settings: Any) -> Any:
        if len(settings) < 6 or not isinstance(settings[0], bool):
            return function(x, states, params, *settings)  # a packed sequence
        states = list(states) if isinstance(states, tuple | list) else [states]
        found = torch.ops.tilewright.recurrent(kind, x, states, list(params), *settings)
        return tuple(found)

    return call


# functions of torch, and what stands for them in a trace
RECURRENT = {
    function: _kept(function.__name__, function)
    for function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
}
