"""How a case of the module zoo is registered, built and compared with eager."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

import tilewright

INF, NAN = float("inf"), float("nan")


class Case(NamedTuple):
    """A module or function, its inputs, the tolerance, and which inputs are poisoned."""

    subject: Callable
    shapes: tuple
    tol: float
    poison: Sequence[int]


class Zoo(dict[str, Case]):
    """Cases by name; a case is a function of many results, compiled once for many comparisons."""

    def case(self, *shapes, tol=1e-5, poison=range(9)):
        """Register a function or module; `shapes` are of float inputs, or tensors as they are.

        `poison` says which inputs get NaN and infinities: all, but where torch has no answer.
        """

        def register(subject):
            name = getattr(subject, "__name__", type(subject).__name__)
            self[name] = Case(subject, shapes, tol, poison)
            return subject

        return register


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def ints(low, high, *shape, dtype=torch.int64):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(low, high, shape, generator=generator, dtype=dtype)


def build(subject):
    return (subject if isinstance(subject, nn.Module) else Function(subject)).eval()


def inputs_of(shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    return [
        s if isinstance(s, torch.Tensor) else torch.randn(s, generator=generator, dtype=dtype)
        for s in shapes
    ]


def poisoned(x: torch.Tensor) -> torch.Tensor:
    """NaN and both infinities among the values."""
    y = x.clone().reshape(-1)
    for place, value in ((3, INF), (7, -INF), (11, NAN)):
        if place < len(y):
            y[place] = value
    return y.reshape(x.shape)


def compare(compiled, module, inputs, tol):
    """Eager is torch on the CPU, wherever the compiled module runs."""
    # of torch's own ways to attend, the written-out one is the definition
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        expected = module(*(x.clone() for x in inputs))
    got = compiled(*inputs)
    leaves, spec = pytree.tree_flatten(got)
    wanted, wanted_spec = pytree.tree_flatten(expected)
    assert spec == wanted_spec
    for place, (ours, theirs) in enumerate(zip(leaves, wanted, strict=True)):
        if isinstance(theirs, torch.Tensor):
            said = lambda text, at=place: f"result {at}: {text}"  # noqa: E731
            ours = ours.cpu()
            torch.testing.assert_close(ours, theirs, rtol=tol, atol=tol, equal_nan=True, msg=said)
        else:
            assert (type(ours), ours) == (type(theirs), theirs), place


def check(case: Case, device: str, slack: float) -> None:
    """Compile `case` once and compare with eager: ordinary, tiny, infinite and NaN inputs."""
    subject, shapes, tol, poison = case
    tol *= slack
    torch.manual_seed(0)
    module = build(subject)
    compiled = tilewright.compile(module, target=device)
    inputs = inputs_of(shapes)
    compare(compiled, module, inputs, tol)
    floats = [not isinstance(s, torch.Tensor) for s in shapes]
    small = [x * 1e-3 if scale else x for x, scale in zip(inputs, floats)]
    compare(compiled, module, small, tol)
    wanted = [place for place in poison if place < len(floats) and floats[place]]
    if wanted:
        bad = [poisoned(x) if place in wanted else x for place, x in enumerate(inputs)]
        compare(compiled, module, bad, tol)
    assert len(compiled.variants) == 1
