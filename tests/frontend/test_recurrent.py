"""Recurrent layers of torch, imported once for any length and batch, vs eager."""

import numpy as np
import pytest
import torch
from torch import nn

import tilewright
from tilewright.frontend.torch_export import import_module
from tilewright.ir.errors import UnsupportedOp
from tilewright.ir.evaluate import evaluate

TIME = torch.export.Dim("time", min=1, max=40)
BATCH = torch.export.Dim("batch", min=1, max=9)


def layers():
    torch.manual_seed(7)
    return {
        "lstm": nn.LSTM(5, 6, 2, bidirectional=True),
        "projected": nn.LSTM(5, 6, proj_size=3, batch_first=True, bidirectional=True),
        "gru": nn.GRU(5, 6, 2, bidirectional=True, batch_first=True),
        "without biases": nn.GRU(5, 6, bias=False),
        "tanh": nn.RNN(5, 6, bidirectional=True),
        "relu": nn.RNN(5, 6, 2, nonlinearity="relu", batch_first=True),
    }


def example(layer, time, batch):
    """An input, and states to begin with."""
    torch.manual_seed(time)
    x = torch.randn((batch, time, 5) if layer.batch_first else (time, batch, 5))
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = torch.randn(count, batch, getattr(layer, "proj_size", 0) or layer.hidden_size)
    if not isinstance(layer, nn.LSTM):
        return x, hidden
    return x, (hidden, torch.randn(count, batch, layer.hidden_size))


def axes(layer):
    """What is dynamic of them."""
    of_x = {1: TIME, 0: BATCH} if layer.batch_first else {0: TIME, 1: BATCH}
    return of_x, ({1: BATCH}, {1: BATCH}) if isinstance(layer, nn.LSTM) else {1: BATCH}


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of torch, about its own kernels
@pytest.mark.parametrize("name", layers())
def test_one_graph_holds_for_any_time_and_batch(name):
    layer = layers()[name].eval()
    imported = import_module(layer, example(layer, 7, 3), dynamic_shapes=axes(layer))
    names = [value.name for value in imported.graph.inputs]
    for time, batch in ((1, 1), (7, 3), (12, 2)):
        x, states = example(layer, time, batch)
        with torch.no_grad():
            y, last = layer(x, states)
        given = [x, *(states if isinstance(states, tuple) else [states])]
        found, _ = evaluate(
            imported.graph, dict(zip(names, (v.numpy() for v in given))), imported.weights
        )
        for got, want in zip(found, [y, *(last if isinstance(last, tuple) else [last])]):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    loops = [node for node in imported.graph.nodes if node.op.name == "scan"]
    assert len(loops) == layer.num_layers  # one for both directions


def test_a_compiled_layer():
    layer = nn.LSTM(5, 6, bidirectional=True).eval()
    args = example(layer, 7, 3)
    with tilewright.compile(layer, args, target="cpu", dynamic_shapes=axes(layer)) as compiled:
        for time, batch in ((1, 1), (12, 2)):
            args = example(layer, time, batch)
            with torch.no_grad():
                wanted = layer(*args)
            torch.testing.assert_close(compiled(*args), wanted, rtol=1e-5, atol=1e-5)


def test_states_that_are_left_out_are_zero():
    layer = layers()["gru"].eval()
    x, _ = example(layer, 4, 2)
    imported = import_module(layer, (x,))
    with torch.no_grad():
        wanted, _ = layer(x)
    (found, _), _ = evaluate(imported.graph, {"input": x.numpy()}, imported.weights)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_dropout_that_drops_is_refused():
    layer = nn.LSTM(4, 4, 2, dropout=0.5)
    with pytest.raises(UnsupportedOp, match=r"dropout is in train mode; call eval\(\)"):
        import_module(layer, (torch.randn(3, 2, 4),))
