"""Complex numbers, carried as pairs of real values: imported, evaluated, compared with torch."""

import numpy as np
import pytest
import torch

import tilewright
from tilewright.frontend.torch_export import import_module
from tilewright.ir.evaluate import evaluate

from ..models.zoo import Function

CASES = {
    "arithmetic": lambda x, y: (x + y, x - 2j, 1 - x, x * y, 3 * x, x / y, 2 / y, -x, x + y.real),
    "powers": lambda x, y: (x**2, x**y, x**0.5, x.reciprocal(), x.square(), 1j**x),
    "exponentials": lambda x, y: (x.exp(), x.log(), x.sqrt(), x.rsqrt(), y.sqrt()),
    "circular": lambda x, y: (x.sin(), x.cos(), x.sinh(), x.cosh()),
    "parts": lambda x, y: (x.real, x.imag, x.abs(), x.angle(), x.conj(), x.sgn(), x.mH),
    "comparisons": lambda x, y: (x == y, x != x.clone(), x.isnan(), (x / 0).isinf(), x.isfinite()),
    "made": lambda x, y: (
        torch.complex(x.real, y.imag), torch.polar(x.abs(), y.real), torch.full_like(x, 1 + 2j),
        torch.zeros_like(x), torch.ones_like(x), torch.view_as_complex(torch.view_as_real(x)),
        x.real.to(x.dtype), x.real * 1j,
    ),
    "views": lambda x, y: (
        x.T.reshape(-1), x[1:, None], x.flip(0), torch.cat([x, y.real, y]), torch.stack([x, y]),
        x[torch.tensor([0, 1, 0])], x.roll(1, 1), x.unbind(1), x.tril(), x.diagonal(),
        torch.where(x.real > 0, x, y), x.masked_fill(y.real > 0, 2j), x.expand(2, -1, -1),
    ),
    "sums": lambda x, y: (
        x.sum(), x.mean(1), x.cumsum(0), x @ y.T, x.mv(y[0]), torch.vdot(x[0], y[0]),
    ),
    "transforms": lambda x, y: (
        torch.fft.fft(x), torch.fft.ifft2(x, norm="ortho"), torch.fft.rfft(x.real, n=5),
        torch.fft.irfft(x, n=7), torch.fft.hfft(x), torch.fft.fftn(x.real, norm="forward"),
    ),
    "left_to_torch": lambda x, y: (x.prod(1) + 1, torch.linalg.qr(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_complex_operations(name):
    module = Function(CASES[name])
    rng = torch.Generator().manual_seed(5)
    x, y = (torch.randn(3, 4, generator=rng, dtype=torch.complex128) for _ in range(2))
    imported = import_module(module, (x, y), fallback=True)
    calls = [n for n in imported.graph.nodes if n.op.name == "call"]
    assert bool(calls) == (name == "left_to_torch")
    given = imported.signature.flatten((x, y), {})
    arrays = {key: part.numpy() for key, part in given.items()}
    outputs, _ = evaluate(imported.graph, arrays, imported.weights.__getitem__)
    got = torch.utils._pytree.tree_leaves(imported.signature.restore(outputs))
    wanted = torch.utils._pytree.tree_leaves(module(x, y))
    for ours, theirs in zip(got, wanted, strict=True):
        theirs = theirs.resolve_conj().numpy()
        assert np.iscomplexobj(ours) == np.iscomplexobj(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


class Rotated(torch.nn.Module):
    """Rotary embedding as models write it with complex numbers, and what is added in turn."""

    def __init__(self):
        super().__init__()
        angles = torch.arange(6.0)[:, None] / torch.arange(1, 5)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x, shift):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return {
            "real": torch.view_as_real(pairs * self.turns).flatten(-2),
            "shifted": pairs + shift,
        }


def test_complex_arguments_weights_and_results(tmp_path):
    module = Rotated()
    x, shift = torch.randn(2, 6, 8), torch.randn(6, 1, dtype=torch.complex64)
    compiled = tilewright.compile(module, (x, shift), target="cpu", strict=True)
    compiled.save(tmp_path / "rotated")
    loaded = tilewright.load(tmp_path / "rotated")
    wanted = module(x, shift)
    for program in (compiled, loaded):
        torch.testing.assert_close(program(x, shift), wanted)
        arrays = program(x.numpy(), shift.numpy())
        np.testing.assert_allclose(arrays["shifted"], wanted["shifted"].numpy(), rtol=1e-6)
    conjugate = shift.conj()  # a view that says so, of the same memory
    torch.testing.assert_close(compiled(x, conjugate), module(x, conjugate))
    with pytest.raises(tilewright.ShapeError, match=r"shift is an array, it was complex\("):
        loaded(x, shift.real)
