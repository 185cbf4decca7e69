"""Encoders, vision and speech models of transformers: a sample of what hf_types.py tries.

Keywords go in, `ModelOutput` comes out; the batch is dynamic, and differs from the one traced.
"""

import pytest

from . import hf_types, sweep

pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stage"),
    [("distilbert", "run"), ("vit", "import"), ("resnet", "import"), ("wav2vec2", "import")],
)
def test_a_type_equals_eager(kind, stage):
    row = sweep.check(hf_types.build, kind, stage)
    assert row["step"] == "done", row
    assert row["difference"] < sweep.TOLERANCE
    assert row["calls"] == 0
    assert row.get("programs", 1) == 1


def test_differences_are_seen():
    torch = pytest.importorskip("torch")
    x = torch.arange(6.0).reshape(2, 3)
    assert sweep.difference({"a": x, "b": (x,)}, {"a": x, "b": (x,)}) == 0
    assert sweep.difference({"a": x}, {"a": x + 0.01}) > sweep.TOLERANCE
    for other in ({"b": x}, {"a": x[:1]}, {"a": x.double()}, {"a": x / 0}):
        assert sweep.difference({"a": x}, other) == float("inf")
