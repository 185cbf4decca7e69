"""Requests at the edges: each works or is refused by name, and none takes another one with it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.errors import RequestError
from tilewright.runtime.engine import engine as engine_module
from tilewright.runtime.engine.llm import EngineLLM
from tilewright.runtime.engine.sampling_params import SamplingParams
from tilewright.runtime.engine.tokenizer import SLICE_CHARS, Tokenizer


@pytest.fixture
def make_llm(make_engine, make_tokenizer):
    """An LLM over the stand-in model, whose vocabulary is larger than its tokenizer's."""

    def make(template=None, **config):
        tokenizer = make_tokenizer(template)
        return EngineLLM(make_engine(vocab_size=300, tokenizer=tokenizer, **config))

    return make


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize(
    "named",
    [
        {"seed": 2**63 - 1, "n": 3},
        {"seed": -(2**63), "n": 2},
        {"top_k": 2**40},
        {"top_p": 0, "n": 2},
        {"max_tokens": 2**80},
        {"temperature": 1e-320},
        {"min_tokens": 10**9, "max_tokens": None},
        {"stop": ["\ud800", "\0"]},
        {"logit_bias": {299: 1e308}, "skip_special_tokens": False},
        {"repetition_penalty": 1e-320},
    ],
)
def test_extremes_of_parameters(make_llm, named, samples):
    llm = make_llm(samples=samples, context_len=20)
    params = SamplingParams(**{"max_tokens": 4, "temperature": 1, **named})
    (result,) = llm.generate("ab\0", params)
    assert len(result.outputs) == params.n
    assert all(o.finish_reason in ("stop", "length") and o.error is None for o in result.outputs)
    llm.engine.check_integrity()


def test_ends_that_are_no_tokens_of_the_model(make_llm):
    """-1 for none, and numbers of a larger vocabulary, are in config files."""
    llm = make_llm(eos_token_ids=frozenset([-1, 300, 2**40, 7]))
    assert llm.engine.config.eos_token_ids == {7}
    (result,) = llm.generate([[5, 6]], SamplingParams(min_tokens=3, max_tokens=5))
    assert len(result.outputs[0].token_ids) >= 3


def test_all_that_is_wrong_is_said_at_once(make_llm):
    llm = make_llm(context_len=8)
    params = SamplingParams(stop_token_ids=[999], logit_bias={10**30: 1.0})
    with pytest.raises(RequestError) as caught:
        llm.generate([[1, 2], [5000] * 9], params)
    message = str(caught.value)
    assert message.startswith("2 of 2 prompts cannot be served\n  prompt 0 of 2: a sampling")
    assert message.count("use the model's own tokenizer") == 1
    with pytest.raises(RequestError) as caught:
        llm.generate([[5000] * 9], params)
    message = str(caught.value)
    assert message.startswith("the request cannot be served\n  at prompt 0 of 1")
    for part in ("the prompt is too long: it has 9", "[5000, 5000", "[999, 1000000000"):
        assert part in message


def test_one_that_fails_leaves_the_others_their_text(make_llm, monkeypatch):
    """Whatever is raised for one sequence: its choice, its text, its end."""
    llm = make_llm()
    given = [[10 + i, 20 + i, 30] for i in range(6)]
    params = SamplingParams(temperature=0, max_tokens=6, stop="never there")
    expected = [r.outputs[0] for r in llm.generate(given, params)]
    engine = llm.engine

    def broken(*_):
        raise ZeroDivisionError("of one alone")

    sequences = [engine.add(prompt, params) for prompt in given]
    monkeypatch.setattr(sequences[1].text, "push", broken)
    engine.step()
    choose = engine_module.choose
    sequences[3].params = replace(params, logprobs=1)
    monkeypatch.setattr(
        engine_module,
        "choose",
        lambda x, s, *a: broken() if s is sequences[3] else choose(x, s, *a),
    )
    engine.step()

    def panics(*_):
        raise RequestError("the tokenizer cannot read this text")

    monkeypatch.setattr(sequences[4].text, "finish", panics)
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    for index, (sequence, right) in enumerate(zip(sequences, expected)):
        if index in (1, 3):
            assert sequence.finish_reason == "error"
            assert "broke off" in str(sequence.error)
        else:
            assert tuple(sequence.output) == right.token_ids
            assert (sequence.error is not None) == (index == 4)


# ---- tokenizers ----------------------------------------------------------------------------------


def test_a_long_prompt_is_refused_before_it_is_read_to_its_end(make_llm, monkeypatch):
    llm = make_llm("{{ messages[0].content }}", context_len=100)
    seen = []
    encode = llm.tokenizer._tokenizer.encode

    class Watched:
        def encode(self, text, **options):
            seen.append(len(text))
            return encode(text, **options)

    monkeypatch.setattr(llm.tokenizer, "_tokenizer", Watched())
    for text in ("word " * 10**6, "x" * 10**6, " " * 10**6):
        for ask in (llm.generate, lambda t: llm.chat([{"role": "user", "content": t}])):
            seen.clear()
            with pytest.raises(
                RequestError, match=r"the prompt is too long(.|\n)*at most 100 leave"
            ):
                ask(text)
            assert sum(seen) <= SLICE_CHARS


def test_slices_of_a_long_text_refuse_none_that_fits(make_tokenizer):
    text = "ab  c\n" * 60_000
    tokenizer = make_tokenizer()
    tokens = tokenizer.encode(text)
    assert tokenizer.encode(text, max_tokens=len(tokens)) == tokens
    assert tokenizer.encode(text, max_tokens=len(tokens) // 2 + 1) == tokens
    with pytest.raises(RequestError, match="too long"):
        tokenizer.encode(text, max_tokens=len(tokens) // 3)


def test_a_tokenizer_that_panics(make_tokenizer, capfd):
    """A regular expression without end is a panic of the library, which is no Exception."""
    spec = json.loads(make_tokenizer().json_text)
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
    spec["pre_tokenizer"] = {**pattern, "invert": False}
    tokenizer = Tokenizer(json.dumps(spec))
    assert tokenizer.encode("a", add_special_tokens=False)
    with pytest.raises(RequestError, match="the tokenizer cannot read this text\n  PanicException"):
        tokenizer.encode("a" * 40 + "b")
    capfd.readouterr()  # the library's own words


@pytest.mark.parametrize("skip", [False, True])
def test_tokens_that_the_tokenizer_lacks_are_no_text(tokenizer, skip):
    assert tokenizer.decode([97, 299, 2**31, 98], skip_special_tokens=skip) == "ab"


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_are_text(make_llm, seed):
    """Random bytes, special and unknown tokens: streamed in pieces or not, the text is the same."""
    llm = make_llm()
    rng = np.random.default_rng(seed)
    bias = {int(t): 50.0 for t in rng.integers(0, 300, 40)}
    params = SamplingParams(max_tokens=60, seed=seed, logit_bias=bias, ignore_eos=True)
    prompt = rng.integers(0, 300, 9).tolist()
    with llm.stream(prompt, params) as stream:
        text = "".join(stream)
    assert llm.generate([prompt], params)[0].outputs[0].text == text
