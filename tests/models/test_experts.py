"""Mixtures of experts, by kinds of routing: captured whole, and served alone and batched."""

import numpy as np
import pytest
import torch

import tilewright
from tilewright import passes
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.evaluate import evaluate
from tilewright.runtime.engine.sampling_params import SamplingParams

transformers = pytest.importorskip("transformers")

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "num_experts_per_tok": 2,
}
# config class -> options
MODELS = {
    "Qwen2MoeConfig": {  # softmax scores, three of an odd number, a shared expert behind a gate
        "num_hidden_layers": 1,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
    "Glm4MoeConfig": {  # sigmoid scores, a correction for the choice alone, groups of experts
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    # each choice weighed among those near to it
    "PhimoeConfig": {"num_hidden_layers": 1, "num_local_experts": 4},
}


def make(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**SIZES | MODELS[kind])
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point():
                value.add_(torch.randn_like(value) * 0.1)
    return model


def eager(model, tokens) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 320, n).tolist() for n in lengths]


@pytest.mark.parametrize("kind", MODELS)
def test_routing_becomes_grouped_products(kind):
    model = make(kind)
    before = model.config.to_dict()
    captured = capture_causal_lm(model)
    assert model.config.to_dict() == before
    graph = passes.run(captured.graph, "recognize").graph
    ops = [node.op.name for node in graph.nodes]
    assert ops.count("grouped_gated_linear") == ops.count("grouped_matmul") == 1
    for tokens in prompts(1, 9):
        inputs = {"input_ids": np.array([tokens]), "position_ids": np.arange(len(tokens))[None]}
        (logits,), _ = evaluate(graph, inputs, captured.weights)
        want = eager(model, tokens)
        # eager float32 against float64: what is left is eager's own rounding
        assert np.abs(logits[0] - want).max() / np.abs(want).max() < 1e-5


def test_tokens_are_those_of_eager_alone_and_batched(device):
    model = make("Glm4MoeConfig")
    llm = tilewright.LLM(model, dtype="float32", target=device, max_model_len=128)
    given = prompts(1, 7, 33)
    wanted = []
    for tokens in given:
        ids = list(tokens)
        for _ in range(GREEDY.max_tokens):
            ids.append(int(eager(model, ids)[-1].argmax()))
        wanted.append(ids[len(tokens) :])
    form = [{"prompt_token_ids": tokens} for tokens in given]
    together = [list(r.outputs[0].token_ids) for r in llm.generate(form, GREEDY)]
    alone = [list(llm.generate(f, GREEDY)[0].outputs[0].token_ids) for f in form]
    assert together == alone == wanted


def test_rows_in_the_order_of_their_experts_are_grouped_products_too():
    """What transformers' default leaves behind in a module compiled by itself."""
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = transformers.MixtralConfig(**SIZES, num_local_experts=4)
    config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    block = MixtralSparseMoeBlock(config).eval()
    with torch.no_grad():
        for value in block.parameters():
            value.copy_(torch.randn_like(value) * 0.1)
    tokens = torch.export.Dim("tokens", min=1, max=64)
    example = (torch.randn(1, 5, 64),)
    run = tilewright.compile(block, example, dynamic_shapes=({1: tokens},), strict=True)
    for count in (1, 5, 40):
        x = torch.randn(1, count, 64)
        with torch.no_grad():
            want = block(x)
        torch.testing.assert_close(run(x), want, rtol=0, atol=1e-5 * float(want.abs().max()))
