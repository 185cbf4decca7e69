"""Which composites are taken apart, and what the report says of it."""

import pytest

from tilewright import passes
from tilewright.ir.builder import Builder
from tilewright.ir.types import bf16, f16, f32, f64


def ops_after(dtype, size):
    b = Builder()
    q = b.input("q", (1, 2, b.dim("t", 0, 64), size), dtype)
    result = passes.run(b.graph([b.attention(q, q, q, scale=0.5)]), "decompose")
    return [n.op.name for n in result.graph.nodes], str(result.report)


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
def test_attention_that_a_kernel_takes_stays(dtype):
    assert ops_after(dtype, 512)[0] == ["attention"]


@pytest.mark.parametrize(
    ("dtype", "size", "reason"),
    [
        (f64, 8, "it computes in f32 what is stored in f32, bf16, f16"),
        (bf16, 513, "head sizes must be known, and at most 512"),
    ],
)
def test_other_attention_is_written_out_and_the_report_says_why(dtype, size, reason):
    ops, report = ops_after(dtype, size)
    assert "softmax" in ops
    assert "attention" not in ops
    assert reason in report
