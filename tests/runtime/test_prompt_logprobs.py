"""prompt_logprobs: the same for every way in which a prompt is cut, batched and preempted."""

import numpy as np
import pytest

from tilewright.ir.errors import RequestError
from tilewright.runtime.engine.engine import Engine, EngineConfig
from tilewright.runtime.engine.llm import EngineLLM
from tilewright.runtime.engine.runner import ProgramRunner
from tilewright.runtime.engine.sampling_params import SamplingParams
from tilewright.runtime.executable import Executable

from ..models import tiny

SCORED = SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=2)
PLAIN = SamplingParams(temperature=0, max_tokens=6)


def exact(logits: np.ndarray, token: int, count: int) -> dict[int, float]:
    """The `count` likeliest tokens and `token`, in float64."""
    wide = logits.astype(np.float64)
    wide -= np.log(np.exp(wide - wide.max()).sum()) + wide.max()
    best = np.argsort(-wide, kind="stable")[:count].tolist()
    return {t: wide[t] for t in dict.fromkeys([*best, token])}


def check(model, sequence, count=2) -> None:
    prompt = list(sequence.prompt)
    assert len(sequence.prompt_logprobs) == len(prompt) - 1
    for place, found in enumerate(sequence.prompt_logprobs):
        expected = exact(model.logits(prompt[: place + 1]), prompt[place + 1], count)
        assert list(found) == list(expected)
        assert found == pytest.approx(expected, abs=1e-5)
    assert sequence.output == model.continuation(prompt, 6)


@pytest.mark.parametrize(
    ("pages", "seqs", "budget"), [(64, 8, 16), (64, 8, 64), (64, 1, 16), (14, 4, 16)]
)
def test_scores_do_not_depend_on_what_runs_beside(make_engine, rng, pages, seqs, budget):
    engine = make_engine(pages, max_num_seqs=seqs, max_num_batched_tokens=budget)
    lengths = [1, 2, 17, 30, 5, 23]
    prompts = [rng.integers(3, 97, length).tolist() for length in lengths]
    params = [SCORED, SCORED, SCORED, PLAIN, SCORED, PLAIN]
    sequences = [engine.add(p, one) for p, one in zip(prompts, params)]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    for sequence, one in zip(sequences, params):
        if one is SCORED:
            check(engine.runner, sequence)
        else:
            assert sequence.prompt_logprobs == []
            assert sequence.output == engine.runner.continuation(list(sequence.prompt), 6)
    if pages == 14:
        assert engine.stats.preemptions > 0
    # never more rows of logits than there is memory for
    assert max(sizes.rows for sizes in engine.runner.steps) <= seqs


def test_they_come_with_the_result_as_vllm_gives_them(make_engine, make_tokenizer):
    llm = EngineLLM(make_engine(200, vocab_size=258, tokenizer=make_tokenizer()))
    (result,) = llm.generate("abcd", SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1))
    first, *scores = result.prompt_logprobs
    assert first is None
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids) == 5
    for token, one in zip(result.prompt_token_ids[1:], scores, strict=True):
        assert one[token].decoded_token == chr(token)
        assert next(iter(one.values())).rank == 1
        assert len(one) <= 2
    assert result.outputs[0].logprobs is None
    (none,) = llm.generate("abcd", SamplingParams(logprobs=1))
    assert none.prompt_logprobs is None
    for bad in (-1, 21, 1.5, True):
        with pytest.raises(RequestError, match="prompt_logprobs is "):
            SamplingParams(prompt_logprobs=bad)


def test_logits_of_a_prompt_that_are_no_numbers_fail_alone(make_engine, monkeypatch):
    engine = make_engine()
    logits = engine.runner.logits
    monkeypatch.setattr(
        engine.runner, "logits", lambda t: logits(t) * (np.nan if list(t) == [5, 6] else 1)
    )
    bad, good = engine.add([5, 6, 7, 8], SCORED), engine.add([5, 7, 9], SCORED)
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    assert bad.finish_reason == "error"
    assert "the model's logits are not numbers" in str(bad.error)
    check(engine.runner, good)


@pytest.fixture(scope="module")
def compiled():
    """(module, EngineLLM compiled of it)"""
    import tilewright

    module = tiny.make("llama", seed=1, num_hidden_layers=1)
    return module, tilewright.LLM(module, dtype="float32", target="cpu", max_model_len=200)


@pytest.mark.parametrize("captures", [False, True])
def test_a_compiled_model_scores_as_transformers_does(compiled, captures):
    import torch

    module, llm = compiled
    made = llm.executable
    executable = Executable(made.program, made.weights, made.device, sizes={"pages": 40})
    config = EngineConfig(context_len=200, max_num_seqs=6, max_num_batched_tokens=64)
    engine = Engine(ProgramRunner(executable, captures=captures), config)
    prompts = [list(range(5, 45)), [7, 9, 7, 11]]
    sequences = [engine.add(prompt, SCORED) for prompt in prompts]
    while engine.has_work:
        engine.step()
    for sequence, prompt in zip(sequences, prompts):
        with torch.no_grad():
            wide = torch.log_softmax(module(torch.tensor([prompt])).logits[0].double(), -1)
        assert len(sequence.prompt_logprobs) == len(prompt) - 1
        for place, found in enumerate(sequence.prompt_logprobs):
            for token, value in found.items():
                assert value == pytest.approx(wide[place, token].item(), abs=1e-3)
            assert prompt[place + 1] in found
