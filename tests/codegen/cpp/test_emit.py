"""The text that is emitted, in full: one kernel of each template."""

from pathlib import Path

import pytest

from tilewright.codegen.cpp.emit import emit_kernel
from tilewright.ir.target import cpu
from tilewright.ir.types import bf16

from ..triton import samples
from .test_contract import linear
from .test_reduce import softmax

GOLDEN = Path(__file__).with_name("golden")
KERNELS = {
    "rope_append": lambda: samples.rope_append().kernel,
    "embedding": lambda: samples.embedding().kernel,
    "softmax": softmax,
    "gated": lambda: linear(136, 520, bf16, weights=2, norm=True),
    "scores": lambda: samples.scores().kernel,
    "attention": lambda: samples.attention([1], [3]).kernel,
    "sample": lambda: samples.sample().kernel,
}


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name, update_golden):
    text = emit_kernel(KERNELS[name](), name, cpu())
    assert text == emit_kernel(KERNELS[name](), name, cpu())
    path = GOLDEN / f"{name}.cpp"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text
