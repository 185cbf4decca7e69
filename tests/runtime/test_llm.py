"""LLM: prompts of every form, streams, chats, and several threads."""

import gc
import threading
import weakref
from dataclasses import replace

import pytest

from tilewright.ir.errors import RequestError
from tilewright.runtime.engine.llm import EngineLLM
from tilewright.runtime.engine.sampling_params import SamplingParams

CHAT = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def llm(make_engine, make_tokenizer):
    engine = make_engine(200, vocab_size=256 + 2, tokenizer=make_tokenizer(CHAT))
    return EngineLLM(engine, default_params=GREEDY)


def test_shapes_of_results(llm):
    (result,) = llm.generate("Hello")
    assert result.prompt == "Hello"
    assert result.prompt_token_ids == [257, *b"Hello"]
    (one,) = result.outputs
    expected = llm.engine.runner.continuation(result.prompt_token_ids, 12)
    assert list(one.token_ids) == expected
    assert one.text == llm.tokenizer.decode(expected)
    assert (one.index, one.finish_reason, one.stop_reason) == (0, "length", None)
    assert one.cumulative_logprob is None
    assert one.finished()
    assert result.finished


def test_all_forms_of_prompts(llm):
    tokens = [257, *b"Hello"]
    texts = {
        llm.generate(form)[0].outputs[0].text
        for form in ("Hello", ["Hello"], tokens, [tokens], {"prompt": "Hello"})
    }
    texts.add(llm.generate({"prompt_token_ids": tokens})[0].outputs[0].text)
    assert len(texts) == 1
    assert [r.prompt for r in llm.generate(["a", tokens, "b"])] == ["a", None, "b"]
    assert llm.generate([]) == []
    with pytest.raises(RequestError, match="it has the keys text"):
        llm.generate({"text": "x"})


def test_one_params_for_each_prompt(llm):
    results = llm.generate(["a", "b"], [GREEDY, replace(GREEDY, max_tokens=3)])
    assert [len(r.outputs[0].token_ids) for r in results] == [12, 3]
    with pytest.raises(RequestError, match="there are 2 prompts and 1 SamplingParams"):
        llm.generate(["a", "b"], [GREEDY])


def test_n_completions_differ_and_repeat(llm):
    params = SamplingParams(n=3, seed=7, max_tokens=8, ignore_eos=True)
    first, second = (llm.generate("x", params)[0].outputs for _ in range(2))
    assert [o.index for o in first] == [0, 1, 2]
    assert len({tuple(o.token_ids) for o in first}) == 3
    assert [o.token_ids for o in first] == [o.token_ids for o in second]


def test_logprobs_come_with_texts(llm):
    (result,) = llm.generate("x", replace(GREEDY, logprobs=2, max_tokens=4))
    one = result.outputs[0]
    assert len(one.logprobs) == 4
    for token, top in zip(one.token_ids, one.logprobs):
        assert top[token].rank == 1
        assert len(top) == 2
        assert top[token].decoded_token == llm.tokenizer.decode([token], skip_special_tokens=False)
    total = sum(top[t].logprob for t, top in zip(one.token_ids, one.logprobs))
    assert one.cumulative_logprob == pytest.approx(total)
    sampled = llm.generate("x", SamplingParams(seed=1, logprobs=0, max_tokens=3))[0].outputs[0]
    assert all(list(top) == [t] for t, top in zip(sampled.token_ids, sampled.logprobs))
    assert all(top[t].rank is None for t, top in zip(sampled.token_ids, sampled.logprobs))


@pytest.mark.parametrize("stop", [(), ("a",), ("b", "cd")])
def test_a_stream_is_the_text(llm, stop):
    params = SamplingParams(max_tokens=60, seed=3, stop=stop)
    (result,) = llm.generate("Hi", params)
    with llm.stream("Hi", params) as stream:
        deltas = list(stream)
    assert "".join(deltas) == result.outputs[0].text
    assert stream.output == result.outputs[0]
    assert all(deltas)
    assert len(deltas) > 3
    llm.engine.check_integrity()


def test_a_closed_stream_frees_its_pages(llm):
    stream = llm.stream("Hi", replace(GREEDY, max_tokens=500))
    first = next(stream)
    assert llm.engine.pool.num_used > 0
    stream.close()
    assert llm.engine.pool.num_used == 0
    assert stream.output.finish_reason == "abort"
    assert first + "".join(stream) == stream.output.text, "what was certain is still given out"


def test_a_dropped_stream_frees_its_pages(llm):
    stream = llm.stream("Hi", replace(GREEDY, max_tokens=500))
    next(stream)
    del stream
    gc.collect()
    llm.generate("x")
    llm.engine.check_integrity()
    assert llm.engine.pool.num_used == 0


def test_chat(llm):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    (result,) = llm.chat(messages)
    assert result.prompt == "s:S;u:U;a:"
    assert result.prompt_token_ids == list(b"s:S;u:U;a:"), "the template writes special tokens"
    assert len(llm.chat([messages, messages[1:]])) == 2
    assert "".join(llm.stream_chat(messages)) == result.outputs[0].text


def test_bad_prompts_are_named_before_anything_runs(llm):
    with pytest.raises(RequestError) as caught:
        llm.generate(["fine", "x" * 2000, []])
    assert str(caught.value).splitlines()[:3] == [
        "2 of 3 prompts cannot be served",
        "  prompt 1 of 3: the prompt is too long: it has 2001 tokens, at most 799 leave room for an"
        " answer: the model's context is 1000, the KV pool holds 800 (200 pages)",
        "  prompt 2 of 3: the prompt is empty: it has 0 tokens, and the model needs one to begin"
        " from",
    ]
    with pytest.raises(RequestError, match=r"the prompt is empty\n  at prompt 1 of 2"):
        llm.generate(["fine", []])
    many = [None, "fine", {"text": 3}, "half \ud800", *[[]] * 20]
    with pytest.raises(RequestError) as caught:
        llm.generate(many)
    lines = str(caught.value).splitlines()
    assert lines[0] == "23 of 24 prompts cannot be served"
    for line, says in zip(lines[1:], ("neither text nor", "has the keys text", "no character")):
        assert says in line
    assert lines[11] == "  and 13 more"
    with pytest.raises(RequestError) as caught:
        llm.chat([[{"role": "user", "content": x}] for x in ("fine", "y" * 2000, 3)])
    assert str(caught.value).startswith("2 of 3 conversations cannot be served\n  conversation 1")
    assert llm.engine.runner.steps == []
    with pytest.raises(RequestError, match="a stream has one completion"):
        llm.stream("x", replace(GREEDY, n=2))
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate([[]])


def test_without_tokenizer(make_engine):
    llm = EngineLLM(make_engine(), default_params=GREEDY)
    (result,) = llm.generate([1, 2, 3])
    assert result.outputs[0].text == ""
    assert len(result.outputs[0].token_ids) == 12
    with pytest.raises(RequestError, match="a text prompt needs a tokenizer"):
        llm.generate("text")


def test_threads_share_steps(llm):
    """Each gets its own answers, and steps hold sequences of several threads."""
    expected = {f"p{i}": llm.generate(f"p{i}")[0].outputs[0].text for i in range(8)}
    llm.engine.runner.steps.clear()
    found, start = {}, threading.Barrier(8)

    def ask(prompt):
        start.wait()
        found[prompt] = llm.generate(prompt)[0].outputs[0].text

    threads = [threading.Thread(target=ask, args=(p,)) for p in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
    llm.engine.check_integrity()
    assert llm.engine.pool.num_used == 0


def test_an_interrupted_call_leaves_nothing(llm, monkeypatch):
    def interrupt(stage, done, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], progress=interrupt)
    llm.engine.check_integrity()
    assert llm.engine.pool.num_used == 0
    assert not llm.engine.has_work


def test_progress_goes_by_prompt_tokens_and_then_by_prompts(llm, monkeypatch):
    monkeypatch.setattr("tilewright.runtime.engine.watch.EVERY", 0)
    seen = []
    llm.generate(["a" * 150, "b"], progress=lambda *report: seen.append(report))
    prefill = [(done, of) for stage, done, of in seen if stage == "prefill"]
    assert len(prefill) > 1  # a prompt is computed in pieces
    assert prefill == sorted(prefill)
    assert {of for _, of in prefill} == {153}
    prompts = [(done, of) for stage, done, of in seen if stage == "prompts"]
    assert prompts == sorted(prompts)
    assert seen[-1] == ("prompts", 2, 2)
    assert len(seen) == len(prefill) + len(prompts)
    seen.clear()
    with llm.stream("a" * 150, progress=lambda *report: seen.append(report)) as stream:
        next(stream)
    assert {stage for stage, _, _ in seen} == {"prefill"}
    assert seen == sorted(seen)


def test_reports_are_few(llm):
    seen = []
    llm.generate("a", SamplingParams(max_tokens=60), progress=lambda *report: seen.append(report))
    assert seen[-1] == ("prompts", 1, 1)
    assert len(seen) < 30  # of 61 steps


class Bar:
    """What a caller gives in place of tqdm."""

    def __init__(self, total, **options):
        self.total, self.options, self.n, self.is_closed, self.postfix = (
            total,
            options,
            0,
            False,
            "",
        )

    def update(self, count):
        self.n += count

    def set_postfix_str(self, text, refresh=True):
        self.postfix = text

    def close(self):
        self.is_closed = True


def test_use_tqdm_is_a_bool_or_makes_the_bar(llm, capsys):
    made = []

    def make(**options):
        made.append(Bar(**options))
        return made[-1]

    llm.generate(["a", "b", "c"], use_tqdm=make)
    llm.chat([{"role": "user", "content": "a"}], use_tqdm=make)
    assert [(bar.n, bar.total, bar.is_closed) for bar in made] == [(3, 3, True), (1, 1, True)]
    assert made[0].options["desc"] == "Processed prompts"
    assert made[0].postfix.endswith("tokens/s")
    with pytest.raises(ZeroDivisionError):
        llm.generate("a", use_tqdm=make, progress=lambda *_: 1 / 0)
    assert made[-1].is_closed
    for choice in (True, False):  # without a terminal no bar is drawn
        llm.generate("a", use_tqdm=choice)
    assert capsys.readouterr() == ("", "")


def test_a_closed_model_gives_its_memory_back_and_says_so(make_engine, make_tokenizer):
    made = make_engine(200, vocab_size=256 + 2, tokenizer=make_tokenizer(CHAT))
    with EngineLLM(made, default_params=GREEDY) as llm:
        del made
        assert "pages" in repr(llm)
        engine = weakref.ref(llm.engine)
        stream = llm.stream("abc")
        next(stream)
    assert engine() is None
    assert repr(llm) == "<LLM, closed>"
    assert list(stream) is not None  # ends as aborted
    assert stream.output.finish_reason == "abort"
    stream.close()
    llm.close()
    assert llm.stats.finished == 1
    for use in (
        lambda: llm.generate("abc"),
        lambda: llm.chat([{"role": "user", "content": "abc"}]),
        lambda: llm.stream("abc"),
        lambda: llm.engine,
    ):
        with pytest.raises(RequestError, match=r"the model is closed(.|\n)*close\(\) gave"):
            use()


def test_a_model_without_tokenizer_takes_and_gives_tokens(make_engine):
    llm = EngineLLM(make_engine(200, vocab_size=256 + 2))
    (result,) = llm.generate({"prompt_token_ids": [5, 6, 7]}, SamplingParams(max_tokens=4))
    assert len(result.outputs[0].token_ids) == 4
    assert (result.prompt, result.outputs[0].text) == (None, "")
    with pytest.raises(RequestError, match="pass lists of token numbers"):
        llm.generate("abc")
