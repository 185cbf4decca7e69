"""The samples notice it when a function that prints kernels is wrong in one place."""

import inspect
import textwrap

import pytest

from tilewright.api.machine import open_device, resolve_target
from tilewright.codegen.cpp import contract, reduce, scalars
from tilewright.codegen.triton import elements, names
from tilewright.ir.target import get_target
from tilewright.runtime.executable import Executable

from .interpreted import make_interpretable
from .test_lowering import RUN, SMALL, compiled, interpreter, is_interpreted, wrong

__all__ = ["interpreter"]
pytestmark = pytest.mark.slow

# what is wrong -> (ops that show it, the function, a piece of it, what stands there instead)
CPP = {
    "a sign is lost": ("neg", scalars.apply, "(-{texts[0]})", "({texts[0]})"),
    "bools are turned round": ("cast", scalars.convert, "({text} != 0)", "({text} == 0)"),
    "the last element is left out": (
        "sum", reduce.buffers, "{stop} - {start}, {start}", "{stop} - {start} - 1, {start}",
    ),
    "every row is the first": ("matmul", contract._Tiled.place, '"m0 + r"', '"m0"'),
}  # fmt: skip
TRITON = {
    "sides are swapped": (
        "pad", elements.Env._select, "{then.text}, {other.text}", "{other.text}, {then.text}",
    ),
    "what is past the end counts": (
        "prod", elements.Env.inside, "if not masks:", "if True:",
    ),
    "constants are one too large": (
        "gelu", names.constant, "else repr(value)", "else repr(value + 1)",
    ),
}  # fmt: skip


@pytest.fixture
def mutated():
    """A function that puts another text into a function, for the length of the test."""
    kept = []

    def mutate(function, old: str, new: str) -> None:
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(old) == 1, f"{function.__name__} has {old!r} not once"
        scope = dict(function.__globals__)
        exec(source.replace(old, new), scope)
        kept.append((function, function.__code__))
        function.__code__ = scope[function.__name__].__code__

    yield mutate
    for function, code in kept:
        function.__code__ = code


def samples_of(op: str):
    return [s for s in RUN if s.op == op and is_interpreted(s)]


@pytest.mark.parametrize("name", CPP)
def test_cpp(name, mutated):
    op, *change = CPP[name]
    mutated(*change)
    target = resolve_target("cpu")
    made, arrays, counts = compiled(samples_of(op), target)
    results = Executable(made.program, made.weights, open_device(target))(*arrays)
    assert wrong(samples_of(op), counts, [r.numpy() for r in results], 1.0)


@pytest.mark.parametrize("name", TRITON)
def test_triton(name, mutated, interpreter, monkeypatch):
    op, *change = TRITON[name]
    mutated(*change)
    make_interpretable(monkeypatch, SMALL)
    made, arrays, counts = compiled(samples_of(op), get_target("sm_90"))
    results = interpreter.run(made.program, made.weights, arrays)
    assert wrong(samples_of(op), counts, results, 4.0, loose="bf16")
