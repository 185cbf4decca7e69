"""Networks of timm and torchvision: a sample of what vision_types.py tries."""

import importlib.util

import pytest

from . import sweep, vision_types

NEEDED = ("timm", "torchvision", "PIL")
pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "vit_tiny_patch16_224", "squeezenet1_1"])
def test_a_network_equals_eager(name):
    row = sweep.check(vision_types.build, name, "import")
    assert row["step"] == "done", row
    assert row["difference"] < sweep.TOLERANCE
    assert row["calls"] == 0
