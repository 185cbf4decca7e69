"""Steps that begin before the tokens of the one before are read: the same tokens, pages and ends.

The stand-in computes a step when it is launched: what it is given can only be what is known then.
"""

import numpy as np
import pytest

from tilewright.ir.errors import OutOfPages
from tilewright.runtime.engine.llm import EngineLLM
from tilewright.runtime.engine.sampling_params import SamplingParams

from .test_engine import bucketed, greedy, prompts


class Watched:
    """A runner between engine and model that notes in which order steps are launched and read."""

    def __init__(self, engine):
        self.model, self.log, self.unread = engine.runner, [], set()
        engine.runner = self

    def __getattr__(self, name):
        return getattr(self.model, name)

    def run(self, work):
        result = self.model.run(work)
        number, read = len(self.model.steps), result.tokens
        self.log.append(f"launch {number}")
        self.unread.add(number)
        assert len(self.unread) <= 2, "one step computes, one is read"

        def tokens():
            self.log.append(f"read {number}")
            self.unread.discard(number)
            return read()

        object.__setattr__(result, "tokens", tokens)
        return result


@pytest.fixture
def pair(make_engine):
    """Two engines alike, but that one of them overlaps its steps."""

    def make(**options):
        return [make_engine(samples=True, overlaps=o, **options) for o in (False, True)]

    return make


def run_all(engine):
    while engine.has_work:
        engine.step()
        engine.check_integrity()


def results(engine, given, params):
    sequences = [engine.add(p, one) for p, one in zip(given, params)]
    run_all(engine)
    return [(s.output, s.finish_reason, s.stop_reason) for s in sequences]


def test_a_step_is_launched_before_the_one_before_is_read(make_engine):
    engine = make_engine(samples=True, overlaps=True)
    watched = Watched(engine)
    first = engine.add([1, 2, 3], greedy(4))
    assert engine.step() == []
    assert (first.length, first.num_ahead) == (3, 4)
    assert engine.step() == [first]
    assert (first.length, first.num_ahead) == (4, 5)
    run_all(engine)
    assert first.output == watched.continuation([1, 2, 3], 4)
    order = [f"launch {n}" for n in (1, 2)] + ["read 1", "launch 3", "read 2", "launch 4"]
    assert watched.log == [*order, "read 3", "read 4"], "and none for what max_tokens cuts off"


@pytest.mark.parametrize("pad", [lambda s: s, bucketed], ids=["exact", "padded"])
@pytest.mark.parametrize(("num_pages", "budget"), [(200, 300), (200, 8), (18, 16)])
def test_the_same_tokens(pair, rng, num_pages, budget, pad):
    given = prompts(rng)
    params = [
        SamplingParams(temperature=i % 3 * 0.6, top_k=20 * (i % 2), seed=i, max_tokens=20 - i)
        for i in range(len(given))
    ]
    plain, ahead = pair(num_pages=num_pages, max_num_batched_tokens=budget, pad=pad)
    assert results(ahead, given, params) == results(plain, given, params)
    assert (ahead.stats.preemptions > 0) == (num_pages == 18)
    assert ahead.pool.num_free == num_pages
    assert ahead.stats.generated_tokens == plain.stats.generated_tokens
    assert ahead.stats.finished == plain.stats.finished == len(given)


def test_ends_that_only_a_token_tells(pair, rng):
    """Found one step late: the step computed too much is dropped, and nothing of it is seen."""
    given = prompts(rng)
    plain, ahead = pair(num_pages=200, eos_token_ids=frozenset(range(5)))
    text = plain.runner.continuation(given[0], 9)
    params = [
        SamplingParams(
            temperature=0, max_tokens=60, ignore_eos=i % 4 == 3, stop_token_ids=[text[6]]
        )
        for i in range(len(given))
    ]
    params[5] = SamplingParams(temperature=0, max_tokens=60, min_tokens=9)
    found = results(ahead, given, params)
    assert found == results(plain, given, params)
    assert {reason for _, reason, _ in found} == {"stop", "length"}


def test_stop_strings_and_streams(pair, make_tokenizer):
    plain, ahead = (
        EngineLLM(engine)
        for engine in pair(num_pages=200, vocab_size=258, tokenizer=make_tokenizer())
    )
    params = [
        SamplingParams(max_tokens=50, seed=i, stop=("a", "bc", "\n"), n=2, temperature=0.9)
        for i in range(4)
    ]
    texts = ["Hi", "there", "you", "x" * 40]
    expected = [r.outputs for r in plain.generate(texts, params)]
    assert [r.outputs for r in ahead.generate(texts, params)] == expected
    assert any(o.finish_reason == "stop" for outputs in expected for o in outputs)
    one = SamplingParams(max_tokens=40, seed=9, stop="e")
    (whole,) = plain.generate("Hi", one)
    with ahead.stream("Hi", one) as stream:
        assert "".join(stream) == whole.outputs[0].text
    with ahead.stream("Hi", one) as stream:
        next(stream)
    ahead.engine.check_integrity()
    assert ahead.engine.pool.num_used == 0


@pytest.mark.parametrize("seed", range(3))
def test_arrivals_and_aborts_at_random(make_engine, seed):
    """A soak: ends, aborts, preemptions, and tokens that the engine has to choose itself."""
    rng = np.random.default_rng(seed)
    ends = frozenset([7, 11])
    engine = make_engine(
        num_pages=30, max_num_seqs=5, max_num_batched_tokens=12, samples=True, overlaps=True,
        eos_token_ids=ends,
    )  # fmt: skip
    live, ended = [], 0
    for _ in range(300):
        if rng.random() < 0.35 and len(live) < 12:
            prompt = rng.integers(0, 97, rng.integers(1, 50)).tolist()
            more = [{}, {}, {}, {"logprobs": 1}, {"prompt_logprobs": 0}, {"min_tokens": 4}]
            named = more[rng.integers(len(more))]
            one = SamplingParams(temperature=0, max_tokens=int(rng.integers(4, 25)), **named)
            live.append(engine.add(prompt, one))
        if live and rng.random() < 0.05:
            engine.abort(live[rng.integers(len(live))])
        engine.step()
        engine.check_integrity()
        for sequence in [s for s in live if s.is_finished]:
            live.remove(sequence)
            output, params = sequence.output, sequence.params
            if params.min_tokens == 0:
                assert output == engine.runner.continuation(sequence.prompt, len(output))
            early = output[params.min_tokens - 1 if params.min_tokens else 0 : -1]
            assert ends.isdisjoint(early)
            if sequence.finish_reason == "length":
                assert len(output) == params.max_tokens
            elif sequence.finish_reason == "stop":
                assert output[-1] in ends
            assert len(sequence.logprobs) == (len(output) if params.logprobs else 0)
            ended += sequence.finish_reason != "abort"
    assert ended > 20
    assert engine.stats.preemptions > 0
    run_all(engine)
    assert engine.pool.num_free == 30


def test_rows_without_a_likeliest_token_end_alone(make_engine):
    engine = make_engine(samples=True, overlaps=True)
    model, logits = engine.runner, engine.runner.logits
    model.logits = lambda t: logits(t) * (np.nan if t[0] == 66 and len(t) > 3 else 1)
    bad, good = engine.add([66, 1], greedy(9)), engine.add([5, 1], greedy(9))
    run_all(engine)
    assert (bad.num_output, bad.finish_reason) == (2, "error")
    assert "some are NaN or infinite" in str(bad.error)
    assert good.output == model.continuation([5, 1], 9)


@pytest.mark.parametrize("where", ["launch", "read"])
def test_a_step_that_fails_ends_those_in_flight(make_engine, where):
    engine = make_engine(max_num_seqs=2, samples=True, overlaps=True)
    first, second, later = (engine.add([n], greedy(n)) for n in (9, 2, 5))
    engine.step()
    model, run = engine.runner, engine.runner.run

    def broken(*_):
        raise OutOfPages("no luck")

    def run_broken(work):
        result = run(work)
        object.__setattr__(result, "tokens", broken)
        return result

    model.run = broken if where == "launch" else run_broken
    if where == "read":
        engine.step()
    with pytest.raises(OutOfPages):
        engine.step()
    engine.check_integrity()
    assert first.finish_reason == second.finish_reason == "error"
    assert later.status.value == "waiting"
    model.run = run
    run_all(engine)
    assert later.output == model.continuation([5], 5)


def test_choices_of_the_engine_are_not_run_ahead_of(make_engine):
    """Penalties are of tokens that have to be known; beside them the others are right too."""
    engine = make_engine(samples=True, overlaps=True)
    watched = Watched(engine)
    params = [greedy(6), greedy(12, repetition_penalty=1.5), greedy(20)]
    given = [[1], [2], [3]]
    found = results(engine, given, params)
    reads = [line for line in watched.log[:20] if line.startswith("read")]
    assert watched.log[:20] == [x for r in reads for x in (f"launch {r.split()[1]}", r)]
    assert watched.log[-4:] != [f"{what} {n}" for n in (19, 20) for what in ("launch", "read")]
    alone = make_engine(samples=False)
    assert found == results(alone, given, params)
