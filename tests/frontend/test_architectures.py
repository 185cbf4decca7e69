"""Breadth: more architectures from tiny configs, each against eager at three lengths."""

import numpy as np
import pytest
import torch

from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.evaluate import evaluate

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
GPT = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MPT = {"vocab_size": 97, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}
# config class -> (options, how attention comes out)
MODELS = {
    "Qwen2Config": (SIZES, "op"),
    "GemmaConfig": (SIZES | {"head_dim": 8}, "op"),
    "Gemma3TextConfig": (SIZES | {"head_dim": 8, "sliding_window": 8}, "op"),
    "GPT2Config": (GPT, "op"),
    "GPTNeoXConfig": (SIZES, "op"),
    "GPTJConfig": (GPT | {"rotary_dim": 4}, "op"),
    "OPTConfig": (SIZES | {"ffn_dim": 64, "word_embed_proj_dim": 32}, "op"),
    "PhiConfig": (SIZES, "op"),
    "FalconConfig": (SIZES, "sdpa"),
    "Olmo2Config": (SIZES | {"pad_token_id": 0}, "op"),
    "StableLmConfig": (SIZES, "op"),
    "Starcoder2Config": (SIZES, "op"),
    "Cohere2Config": (SIZES | {"sliding_window": 8}, "op"),
    "GraniteConfig": (SIZES, "op"),
    "SmolLM3Config": (SIZES | {"pad_token_id": 0, "no_rope_layers": [1, 0]}, "op"),
    "DiffLlamaConfig": (SIZES, "op"),
    "MptConfig": (
        {"vocab_size": 97, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
        "eager",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_an_architecture_equals_eager(kind):
    options, attention = MODELS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    captured = capture_causal_lm(model)
    assert captured.attention == attention
    for length in (1, 7, 33):
        ids = torch.randint(3, 97, (1, length))
        with torch.no_grad():
            expected = model(input_ids=ids, use_cache=False).logits.numpy()
        inputs = {"input_ids": ids.numpy(), "position_ids": np.arange(length)[None]}
        (logits,), _ = evaluate(captured.graph, inputs, captured.weights)
        # eager float32 against float64: what is left is eager's own rounding
        assert np.abs(logits - expected).max() / np.abs(expected).max() < 1e-5
