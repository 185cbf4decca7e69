"""Graphs that several tests of passes share."""

import pytest

from .models import decoder

VARIANTS = {
    "llama": {},
    "untied": {"tied": False},
    "biases": {"qkv_bias": True},
    "qk_norm": {"qk_norm": True},
    "gemma": {"gemma": True},
    "window": {"window": 3},
    "slopes": {"slopes": True, "gemma": True},
    "chunk": {"chunk": 3},
    "sinks": {"sinks": True, "window": 4},
    "all_masks": {"slopes": True, "chunk": 5, "sinks": True},
    "partial_rotary": {"rotary_dim": 4},
    "fused_linears": {"fused_linears": True},
}


@pytest.fixture(params=VARIANTS, ids=str)
def variant(request):
    """A decoder of two layers, one for each variant."""
    return decoder(**VARIANTS[request.param])
