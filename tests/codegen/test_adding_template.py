"""The worked example of docs/adding_a_template.md, run as it is written there, and its errors."""

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tilewright.api.compile_graph import compile_graph
from tilewright.api.machine import open_device, resolve_target
from tilewright.codegen import templates
from tilewright.codegen.build import build
from tilewright.codegen.cpp import emit as cpp_emit
from tilewright.codegen.triton import emit
from tilewright.ir.builder import Builder
from tilewright.ir.errors import BuildError, UnsupportedOp
from tilewright.ir.op import OPS
from tilewright.ir.target import cpu, get_target
from tilewright.ir.types import f32, f64
from tilewright.passes.pipelines import dense
from tilewright.runtime.executable import Executable

from .triton import samples
from .triton.conftest import runner

__all__ = ["runner"]
pytest.importorskip("triton", reason="Triton is in the extra `gpu`")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding_a_template.md"
# heading -> the file that its code is
FILES = {
    "The op": "ir.ops.ranks",
    "The template": "codegen.templates.ranks",
    "A printer in C++": "codegen.cpp.ranks",
    "A printer in Triton": "codegen.triton.ranks",
}


def load(heading: str) -> ModuleType:
    """The code under a heading of the page, as the module that it would be."""
    (section,) = (s for s in PAGE.read_text().split("\n## ") if s.split("\n")[0] == heading)
    module = ModuleType(f"tilewright.{FILES[heading]}")
    module.__package__ = module.__name__.rpartition(".")[0]
    sys.modules[module.__name__] = module
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1), module.__dict__)
    return module


@pytest.fixture(scope="module", autouse=True)
def added():
    """The op, its template and its printers, for this module's tests only."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            modules = {heading: load(heading) for heading in FILES}
            made = modules["The template"]
            listed = (*templates.TEMPLATES, made.RankTemplate())
            patch.setattr(templates, "TEMPLATES", listed)
            for heading, printers in (
                ("A printer in C++", cpp_emit.PRINTERS),
                ("A printer in Triton", emit.PRINTERS),
            ):
                patch.setitem(printers, made.Ranks, modules[heading].PRINTER)
            yield made
        finally:
            OPS.pop("rank", None)
            for file in FILES.values():
                sys.modules.pop(f"tilewright.{file}", None)


def test_a_program_with_kernels_around_it(device):
    b = Builder("ranked")
    x = b.input("x", (b.dim("t", 0, 64), 2, 9))
    ranks = b.rank(b.neg(b.transpose(x, perm=(1, 0, 2))))
    out = b.mul(b.cast(ranks, dtype=f32), b.constant(0.5, f32))
    target = resolve_target(device)
    made = compile_graph(b.graph([out, ranks]), {}, dense(), target)
    assert [k.template for k in made.program.kernels.values()].count("ranks") == 1
    run = Executable(made.program, made.weights, open_device(target))
    rng = np.random.default_rng(0)
    for t in (0, 1, 5):
        given = rng.integers(-9, 9, (t, 2, 9)).astype(np.float32)
        y = -given.transpose(1, 0, 2)
        want = (y[..., None, :] < y[..., :, None]).sum(-1)
        halves, whole = (a.numpy() for a in run(given))
        np.testing.assert_array_equal(whole, want)
        np.testing.assert_array_equal(halves, want * 0.5)
    step = next(s for s in made.program.steps if "rank" in str(s.choices[0].kernel))
    assert str(step.operations) == "162*t"


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 7), (2, 128), (5, 0)])
def test_one_triton_kernel(runner, rows, size):
    b = Builder()
    case = samples.make(b, [b.rank(b.input("x", (b.dim("t", 0, 9), size)))], {"t": rows})
    for _, _, schedule in templates.choices(case.kernel, get_target("sm_90"))[1]:
        got = runner.run(case, schedule)[case.written()[0]]
        x = case.arrays[case.kernel.parts[0].x]
        want = (x[:, None, :] < x[:, :, None]).sum(-1)
        np.testing.assert_array_equal(got.reshape(rows, size), want)


def graph_of(*shapes, dtype=f32):
    """A rank of each shape, each from a place of its own."""
    b = Builder("several")
    results = []
    for number, shape in enumerate(shapes):
        with b.at(f"layers.{number}"):
            results.append(b.rank(b.input(f"x{number}", shape, dtype)))
    return b.graph(results)


def test_what_the_template_refuses_is_one_error_with_op_place_and_reason():
    b = Builder("refused")
    t = b.dim("t", 1, 9)
    for number, (size, dtype) in enumerate([(200, f32), (200, f32), (4, f64), (t, f32), (4, f32)]):
        with b.at(f"layers.{number}"):
            x = b.input(f"x{number}", (3, size), dtype)
            x = b.rank(x)
    with pytest.raises(UnsupportedOp) as error:
        build(b.graph([n.results[0] for n in b.nodes]), cpu())
    lines = str(error.value).splitlines()
    assert lines[:2] == ["no kernel for rank", "  at layers.0"]
    assert lines[2:5] == [
        "  rank x 2, first layers.0: it compares all pairs of rows of at most 128, not of 200",
        "  rank x 1, first layers.2: it compares f32, not f64",
        "  rank x 1, first layers.3: it compares all pairs of rows of at most 128, not of t",
    ]


def test_an_op_of_a_kind_that_no_template_has(monkeypatch):
    monkeypatch.setattr(templates, "TEMPLATES", templates.TEMPLATES[:-1])
    with pytest.raises(UnsupportedOp, match=r"for rank\n  at layers.0\n  rank x 2, first"):
        build(graph_of((3, 4), (5, 4)), cpu())


@pytest.mark.parametrize("target", [cpu(), get_target("sm_90")], ids=str)
def test_a_part_without_a_printer(monkeypatch, added, target):
    language, printers = ("Triton", emit.PRINTERS) if target.is_gpu else ("C++", cpp_emit.PRINTERS)
    monkeypatch.delitem(printers, added.Ranks)
    with pytest.raises(UnsupportedOp) as error:
        build(graph_of((3, 4), (5, 6)), target)
    said = str(error.value)
    assert "2 of 2 groups have no kernel" in said
    for number in (0, 1):
        assert f"k{number}, rank at layers.{number}: no {language} printer writes a Ranks" in said


def test_a_schedule_outside_its_domain(added):
    with pytest.raises(BuildError, match=r"num_warps=3 is outside the domain of RankSchedule"):
        added.RankSchedule(num_warps=3)
