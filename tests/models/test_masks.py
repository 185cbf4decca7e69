"""Language models whose masks, biases or rotary tables are made in the module: to the token."""

import numpy as np
import pytest
import torch
import transformers

import tilewright
from tilewright import passes
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.evaluate import evaluate

from ..passes.test_page_kv import PAGE, Engine
from .tiny import greedy

SIZES = {"vocab_size": 90, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA = {
    **SIZES, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
# model type -> fields of its config
MODELS = {
    # a bias that grows with the distance: of 6 heads, whose slopes are two series
    "bloom": {**SIZES, "hidden_size": 48, "n_layer": 1, "n_head": 6},
    "mpt": {**SIZES, "d_model": 48, "n_layers": 1, "n_heads": 6, "max_seq_len": 64},
    # triangles in buffers, one of them with a window, and scores of -1e4
    "gpt_neo": {
        **SIZES, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 5,
        "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64,
        "intermediate_size": 48,
    },
    "openai-gpt": {**SIZES, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64},
    # heads and batch in one axis
    "gpt_neox_japanese": {
        **SIZES, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    # a key without value, and a window
    "granite_swa": {**LLAMA, "sliding_window": 5},
    # rotary tables chosen by length: prompts on either side of 12
    "phi3": {
        **LLAMA, "original_max_position_embeddings": 12, "num_hidden_layers": 1,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.5, 2.0, 2.5],
            "long_factor": [3.0, 4.0, 5.0, 6.0], "original_max_position_embeddings": 12,
        },
    },
    # keys that an indexer chooses, of which there are enough for all, and a key without value
    "hy_v4": {
        **LLAMA, "num_hidden_layers": 1, "num_key_value_heads": 4, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
        "index_head_dim": 16, "index_n_heads": 2, "moe_intermediate_size": 16,
        "n_routed_experts": 4, "num_experts_per_tok": 2,
    },
    # a bias that each key brings along, for each KV head
    "doge": {**LLAMA, "num_hidden_layers": 1},
}  # fmt: skip


def make(kind):
    """A model whose weights are all random, and large enough to tell tokens apart."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **MODELS[kind])
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


PROMPTS = [[(i * 7 + n) % 87 + 3 for i in range(n)] for n in (1, 6, 31)]


@pytest.mark.parametrize("kind", MODELS)
def test_the_paged_program_gives_what_eager_gives(kind):
    """Prompts side by side in one batch, by the reference."""
    model = make(kind)
    captured = capture_causal_lm(model)
    pipeline = passes.PIPELINES["language-model"](page_size=PAGE, samples=False)
    result = passes.run(captured.graph, pipeline)
    names = [w.name for w in result.graph.weights]
    prepared = dict(zip(names, evaluate(result.prepare, {}, captured.weights)[0], strict=True))
    logits = Engine(result.graph, prepared).step(list(enumerate(PROMPTS)))[0]
    with torch.no_grad():
        expected = [model(torch.tensor([p]), use_cache=False).logits[0] for p in PROMPTS]
    np.testing.assert_allclose(logits, torch.cat(expected).numpy(), rtol=1e-3, atol=2e-4)


def test_tokens_are_those_of_eager():
    """Through the engine, which tells lengths; no prompt grows past where the table changes."""
    model = make("phi3")
    llm = tilewright.LLM(model, dtype="float32", target="cpu", max_model_len=48)
    params = tilewright.SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    results = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], params)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.outputs[0].token_ids) == greedy(model, prompt, 5)


def test_recurrent_models_are_refused_by_that_name():
    config = transformers.AutoConfig.for_model(
        "lfm2", **LLAMA, layer_types=["conv", "full_attention"]
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(tilewright.UnsupportedModel, match="recurrent state") as caught:
        tilewright.LLM(model, target="cpu")
    assert "layers of type conv" in str(caught.value)
