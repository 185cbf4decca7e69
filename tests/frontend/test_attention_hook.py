"""What the attention hook describes, and what it leaves to be written out."""

import pytest
import torch

from tilewright.frontend import attention_hook
from tilewright.frontend.attention_hook import HookDeclined, MaskMark

masking = pytest.importorskip("transformers.masking_utils")


def test_causal_and_window_rules_are_described():
    causal, window = masking.causal_mask_function, masking.sliding_window_causal_mask_function
    assert attention_hook.describe_mask(mask_function=causal) == MaskMark(None)
    assert attention_hook.describe_mask(mask_function=window(64)) == MaskMark(64)
    chunked = masking.chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.int64))
    assert attention_hook.describe_mask(mask_function=chunked) == MaskMark(None, 8)
    both = masking.and_masks(window(64), window(16))
    assert attention_hook.describe_mask(mask_function=both) == MaskMark(16)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (masking.bidirectional_mask_function, "is not known"),
        (masking.or_masks(masking.causal_mask_function, lambda *_: True), "or_mask"),
        (masking.sliding_window_overlay(8), "not causal"),
        (
            masking.and_masks(masking.causal_mask_function, lambda b, h, q, k: k > 0),
            "is not known",
        ),
        (
            masking.and_masks(
                masking.chunked_overlay(8, torch.zeros(1)),
                masking.chunked_causal_mask_function(6, torch.zeros(1)),
            ),
            "several sizes",
        ),
    ],
)
def test_other_rules_are_declined(rule, message):
    with pytest.raises(HookDeclined, match=message):
        attention_hook.describe_mask(mask_function=rule)


CAUSAL = MaskMark(None)


def call(mask=CAUSAL, **options):
    q, k = torch.zeros(1, 4, 3, 8, device="meta"), torch.zeros(1, 2, 3, 8, device="meta")
    return attention_hook.attention(torch.nn.Identity(), q, k, k, mask, **options)


def test_the_hook_gives_transformers_layout():
    sinks = torch.zeros(4, device="meta")
    output, weights = call(scaling=0.5, softcap=30.0, s_aux=sinks, position_ids=torch.zeros(1, 3))
    assert output.shape == (1, 3, 4, 8)
    assert weights is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": torch.zeros(1, 1, 3, 3)}, "a mask that it made by itself"),
        ({"mask": None}, "a mask that it made by itself"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "both directions"),
        ({"position_bias": torch.zeros(4)}, "passes position_bias"),
    ],
)
def test_what_the_operation_cannot_express_is_declined(options, message):
    with pytest.raises(HookDeclined, match=message):
        call(**options)


def test_dense_attention_overlooks_no_option():
    q = torch.randn(1, 4, 3, 8)
    k = torch.randn(1, 2, 3, 8)
    module = torch.nn.Identity()
    output, _ = attention_hook.dense_attention(module, q, k, k, None, scaling=0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), k.repeat_interleave(2, 1), is_causal=True, scale=0.3
    )
    torch.testing.assert_close(output, expected.transpose(1, 2))
    with pytest.raises(HookDeclined, match="passes position_bias"):
        attention_hook.dense_attention(module, q, k, k, None, position_bias=q)


def test_dense_attention_over_chosen_keys():
    q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 4, 5, 8)
    seen = torch.ones(1, 1, 3, 5, dtype=torch.bool).tril(2)
    chosen = torch.tensor([[[0, 1], [2, 3], [0, 4]]], dtype=torch.int32)
    module = torch.nn.Identity()
    output, _ = attention_hook.dense_attention(module, q, k, k, seen, indices=chosen)
    both = torch.zeros_like(seen)
    for query, keys in enumerate([(0, 1), (2, 3), (0, 4)]):
        both[..., query, list(keys)] = seen[..., query, list(keys)]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, both)
    torch.testing.assert_close(output, expected.transpose(1, 2))
    for mask in (None, seen.float()):
        with pytest.raises(HookDeclined, match="beside a mask of numbers"):
            attention_hook.dense_attention(module, q, k, k, mask, indices=chosen)


def test_models_may_take_views_of_the_result():
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    module = torch.nn.Identity()
    result, _ = attention_hook.dense_attention(module, q, k, k, None)
    assert result.view(2, 5, 32).shape == (2, 5, 32)
    fake = torch.empty(2, 4, 5, 8, device="meta"), torch.empty(2, 2, 5, 8, device="meta")
    result, _ = attention_hook.attention(module, fake[0], fake[1], fake[1], CAUSAL)
    assert result.view(2, 5, 32).shape == (2, 5, 32)
