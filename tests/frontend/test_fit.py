"""Weights that are not those of the model: refused where they would be wrong, told where unused."""

import logging

import numpy as np
import pytest
import torch

from tilewright.frontend.fit import check_fit, warn_unused
from tilewright.ir.errors import CheckpointError
from tilewright.ir.lazy_arrays import in_memory


class Model(torch.nn.Module):
    base_model_prefix = "model"
    _keys_to_ignore_on_load_unexpected = (r"vision\..*",)

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 4, bias=False)
        self.head.weight = self.model.weight
        self.register_buffer("table", torch.zeros(3))


KEYS = {"model.weight": "weight", "model.bias": "bias"}


def check(tmp_path, **changes):
    arrays = {"weight": np.zeros((4, 4), np.float16), "bias": np.zeros(4, np.float32), **changes}
    check_fit(Model(), KEYS, {n: in_memory(a) for n, a in arrays.items()}, tmp_path)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.bool_])
def test_whole_numbers_are_no_weights(tmp_path, dtype):
    with pytest.raises(CheckpointError, match=r"'weight' is \w+, the model's is f32\n  'bias' is"):
        check(tmp_path, weight=np.zeros((4, 4), dtype), bias=np.zeros(4, dtype))


def test_every_misfit_is_told(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        check(tmp_path, weight=np.zeros((4, 5), np.float32), bias=np.zeros((), np.float32))
    assert "'weight' has the wrong shape: it is [4, 5], config.json asks for [4, 4]" in str(
        caught.value
    )
    assert "'bias' has the wrong shape: it is [], config.json asks for [4]" in str(caught.value)


def test_what_fits_says_nothing(tmp_path, caplog):
    check(tmp_path)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("layers.0.rotary_emb.inv_freq", False),
        ("head.weight", False),  # tied: the same as model.weight
        ("table", False),
        ("vision.0.weight", False),
        ("adapter.weight", True),
        ("weight_scale_inv", True),
    ],
)
def test_what_nobody_uses_is_told(tmp_path, caplog, name, is_told):
    with caplog.at_level(logging.WARNING):
        warn_unused(Model(), [name], tmp_path)
    assert (
        f"1 tensors belong to no part of the model, and are not used: {name!r}" in caplog.text
    ) == (is_told)
