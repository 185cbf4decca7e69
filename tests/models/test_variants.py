"""Whole models, from the transformers module to tokens."""

import numpy as np
import pytest
import torch

import tilewright
from tilewright.runtime.engine.batch import BatchSizes, make_batch
from tilewright.runtime.engine.sampling_params import SamplingParams
from tilewright.runtime.engine.scheduler import Work
from tilewright.runtime.engine.sequence import Sequence

from .tiny import MORE, VARIANTS, eager_logits, greedy, make

LENGTHS = [1, 3, 17, 64, 65, 200]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module", params=list(VARIANTS))
def pair(request, device):
    model = make(request.param)
    return model, tilewright.LLM(model, dtype="float32", target=device, max_model_len=512)


def prompts(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 320, n).tolist() for n in lengths]


def all_logits(llm, tokens):
    """Logits of every position: the program asked for each row of one prefill."""
    page_size = llm.engine.runner.page_size
    pages = -(-len(tokens) // page_size)
    sequence = Sequence(0, tuple(tokens), GREEDY, 0, pages=list(range(pages)))
    runner = llm.engine.runner
    sizes = BatchSizes(len(tokens), 1, pages, len(tokens))
    batch = make_batch([Work(sequence, len(tokens))], page_size, sizes, samples=runner.samples)
    arrays = {**batch.arrays, "logit_rows": np.arange(len(tokens), dtype=np.int32)}
    executable = runner.executable
    return executable(*(arrays[name] for name in executable.program.inputs))[0].numpy()


@pytest.mark.parametrize("length", [1, 33, 130])
def test_logits_against_float64(pair, length):
    model, llm = pair
    (tokens,) = prompts([length])
    expected = eager_logits(model, tokens).numpy()
    error = np.abs(all_logits(llm, tokens) - expected).max() / np.abs(expected).max()
    assert error < 1e-5


def test_greedy_tokens_against_eager(pair):
    model, llm = pair
    for tokens in prompts([1, 40]):
        (result,) = llm.generate({"prompt_token_ids": tokens}, GREEDY)
        assert list(result.outputs[0].token_ids) == greedy(model, tokens, 8)


def test_a_batch_gives_what_each_gives_alone(pair):
    _, llm = pair
    given = [{"prompt_token_ids": p} for p in prompts(LENGTHS, seed=1)]
    together = [r.outputs[0].token_ids for r in llm.generate(given, GREEDY)]
    alone = [llm.generate(p, GREEDY)[0].outputs[0].token_ids for p in given]
    assert together == alone


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("variant", [*VARIANTS, *MORE])
def test_half_precision_is_as_near_to_float64_as_eager_is(variant, dtype, device):
    """Both round every activation of the same weights; ours round less often. By chance alone two
    errors of one size differ by some per cent: sums over 33 tokens leave them within a quarter."""
    half = make(variant).to(getattr(torch, dtype))
    (tokens,) = prompts([33])
    exact = eager_logits(half, tokens).numpy()
    theirs = eager_logits(half, tokens, half.dtype).double().numpy()
    llm = tilewright.LLM(half, dtype=dtype, target=device, max_model_len=512)
    ours = all_logits(llm, tokens)
    errors = [np.sqrt(((x - exact) ** 2).mean()) for x in (ours, theirs)]
    assert errors[0] < 1.25 * errors[1]
    # and what is generated is no worse than a rounding away from the likeliest token
    (result,) = llm.generate({"prompt_token_ids": tokens}, GREEDY)
    chosen = list(result.outputs[0].token_ids)
    logits = eager_logits(half, tokens + chosen).numpy()[len(tokens) - 1 : -1]
    bound = 2 * np.abs(theirs - exact).max()
    assert (logits.max(1) - logits[np.arange(len(chosen)), chosen] <= bound).all()


def test_the_module_is_left_as_it_was():
    model = make("llama")
    before = model.config._attn_implementation
    weights = {n: p.clone() for n, p in model.named_parameters()}
    tilewright.LLM(model, dtype="float32", target="cpu")
    assert model.config._attn_implementation == before
    assert all(torch.equal(p, weights[n]) for n, p in model.named_parameters())


def test_kernels_do_not_grow_with_layers():
    few, many = (
        tilewright.LLM(make("llama", num_hidden_layers=n), dtype="float32", target="cpu")
        for n in (3, 6)
    )
    assert len(few.program.kernels) == len(many.program.kernels)
