"""The engine against greedy decoding without a cache: how steps are made changes nothing."""

import numpy as np
import pytest

from tilewright.ir.errors import OutOfPages, RequestError
from tilewright.runtime.engine.batch import BatchSizes
from tilewright.runtime.engine.sampling_params import SamplingParams
from tilewright.runtime.engine.sequence import Status

LENGTHS = [1, 3, 17, 4, 5, 40, 33, 12]


def greedy(max_tokens, **named):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **named)


def prompts(rng, lengths=LENGTHS):
    return [rng.integers(0, 97, n).tolist() for n in lengths]


def bucketed(sizes):
    """Padding as for captured graphs: every size grows."""
    return BatchSizes(sizes.tokens + 3, sizes.seqs + 2, sizes.width + 5, sizes.rows + 1)


@pytest.mark.parametrize("pad", [lambda s: s, bucketed], ids=["exact", "padded"])
@pytest.mark.parametrize(
    ("num_pages", "budget", "has_preemption"), [(200, 300, False), (200, 8, False), (18, 16, True)]
)
def test_batched_equals_alone(make_engine, run_all, rng, num_pages, budget, has_preemption, pad):
    engine = make_engine(num_pages, max_num_batched_tokens=budget, pad=pad)
    given = prompts(rng)
    sequences = [engine.add(p, greedy(20)) for p in given]
    run_all(engine)
    for prompt, sequence in zip(given, sequences):
        assert sequence.output == engine.runner.continuation(prompt, 20)
        assert sequence.finish_reason == "length"
    assert (engine.stats.preemptions > 0) == has_preemption
    assert engine.pool.num_free == num_pages


def test_prefill_and_decode_share_steps(make_engine, rng):
    engine = make_engine(max_num_batched_tokens=16)
    first = engine.add(rng.integers(0, 97, 5).tolist(), greedy(30))
    engine.step()
    assert first.num_output == 1
    late = engine.add(rng.integers(0, 97, 40).tolist(), greedy(5))
    for step in range(3):  # 15 tokens of the late prompt fit beside each decode step
        engine.step()
        assert first.num_output == 2 + step
        assert engine.runner.steps[-1].tokens == (16 if step < 2 else 11)
    assert late.num_output == 1


def test_decode_is_not_starved_by_prefill(make_engine, rng):
    engine = make_engine(num_pages=400, max_num_batched_tokens=8)
    first = engine.add([1, 2, 3], greedy(50))
    engine.step()
    for _ in range(5):
        engine.add(rng.integers(0, 97, 100).tolist(), greedy(5))
    for done in range(2, 30):
        engine.step()
        assert first.num_output == done


def test_arrivals_and_aborts_at_random(make_engine, rng):
    """A soak: sequences come and go at any time; each that ends by itself is right."""
    engine = make_engine(num_pages=30, max_num_seqs=5, max_num_batched_tokens=12)
    live, ended = [], 0
    for _ in range(400):
        if rng.random() < 0.35 and len(live) < 12:
            prompt = rng.integers(0, 97, rng.integers(1, 50)).tolist()
            live.append(engine.add(prompt, greedy(int(rng.integers(1, 25)))))
        if live and rng.random() < 0.05:
            engine.abort(live[rng.integers(len(live))])
        engine.step()
        engine.check_integrity()
        for sequence in [s for s in live if s.is_finished]:
            live.remove(sequence)
            expected = engine.runner.continuation(sequence.prompt, sequence.num_output)
            assert sequence.output == expected
            ended += sequence.finish_reason == "length"
    assert ended > 20
    assert engine.stats.preemptions > 0
    for sequence in live:
        engine.abort(sequence)
    engine.check_integrity()
    assert engine.pool.num_free == 30


def test_first_come_first_served(make_engine, run_all, rng):
    engine = make_engine(num_pages=20, max_num_seqs=3)
    order = []
    sequences = [engine.add(p, greedy(6)) for p in prompts(rng, [9] * 9)]
    while engine.has_work:
        order += [s.id for s in engine.step() if s.is_finished]
    assert order == sorted(s.id for s in sequences)


def test_abort_frees_pages_at_once(make_engine, rng):
    engine = make_engine()
    sequence = engine.add(rng.integers(0, 97, 30).tolist(), greedy(10))
    waiting = engine.add([1], greedy(10))
    engine.step()
    assert engine.pool.num_used > 0
    engine.abort(sequence)
    engine.abort(waiting)
    assert engine.pool.num_used == 0
    assert (sequence.finish_reason, waiting.finish_reason) == ("abort", "abort")
    engine.abort(sequence)  # once more does nothing
    engine.check_integrity()


def test_context_end_is_a_length_finish(make_engine, run_all):
    engine = make_engine(context_len=10)
    sequence = engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=None))
    run_all(engine)
    assert (sequence.length, sequence.finish_reason) == (10, "length")


def test_pool_limits_the_context(make_engine, run_all):
    """The pool holds fewer tokens than the model's context: nothing can run out of pages."""
    engine = make_engine(num_pages=5, page_size=4)
    sequence = engine.add(list(range(19)), SamplingParams(temperature=0, max_tokens=None))
    run_all(engine)
    assert (sequence.length, sequence.finish_reason) == (20, "length")
    with pytest.raises(RequestError, match="the KV pool holds 20") as caught:
        engine.add(list(range(20)), greedy(1))
    assert "at most 19 leave room" in str(caught.value)
    assert "more memory" in str(caught.value)


def test_a_sequence_larger_than_the_pool_fails_alone(make_engine, run_all):
    """Reached only when somebody schedules past the engine's own limit."""
    engine = make_engine(num_pages=5, page_size=4)
    big, small = engine.add([1, 2, 3], greedy(4)), engine.add([4], greedy(4))
    engine.step()
    big.tokens += [7] * 30
    run_all(engine)
    assert isinstance(big.error, OutOfPages)
    assert "needed: 9 pages of 4 tokens; the pool has 5" in str(big.error)
    assert big.finish_reason == "error"
    assert small.output == engine.runner.continuation([4], 4)


def test_end_tokens(make_engine, run_all):
    engine = make_engine()
    text = engine.runner.continuation([5, 6], 12)
    first = next(i for i, t in enumerate(text) if t not in text[:i] and i > 3)
    engine = make_engine(eos_token_ids=frozenset([text[first]]))
    ended = engine.add([5, 6], SamplingParams(temperature=0, max_tokens=12))
    ignoring = engine.add([5, 6], greedy(12))
    named = engine.add([5, 6], greedy(12, stop_token_ids=[text[2]]))
    patient = engine.add([5, 6], SamplingParams(temperature=0, max_tokens=12, min_tokens=first + 3))
    run_all(engine)
    assert ended.output == text[: first + 1]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)
    assert ignoring.output == text
    assert named.output == text[: text.index(text[2]) + 1]
    assert (named.finish_reason, named.stop_reason) == ("stop", text[2])
    assert patient.num_output >= first + 3
    assert text[first] not in patient.output[: first + 3 - 1]


def test_a_failing_step_ends_what_was_in_it(make_engine, run_all, monkeypatch):
    engine = make_engine(max_num_seqs=1)
    first, second = engine.add([1], greedy(5)), engine.add([2], greedy(5))
    run = engine.runner.run

    def fail(work):
        raise OutOfPages("no luck")

    monkeypatch.setattr(engine.runner, "run", fail)
    with pytest.raises(OutOfPages):
        engine.step()
    engine.check_integrity()
    assert first.finish_reason == "error"
    assert second.status is Status.WAITING
    monkeypatch.setattr(engine.runner, "run", run)
    run_all(engine)
    assert second.output == engine.runner.continuation([2], 5)


def test_logits_that_are_no_numbers_fail_alone(make_engine, run_all, monkeypatch):
    engine = make_engine()
    good, bad = engine.add([1], greedy(5)), engine.add([66], SamplingParams(max_tokens=5))
    logits = engine.runner.logits
    monkeypatch.setattr(
        engine.runner, "logits", lambda t: logits(t) * (np.nan if t[0] == 66 else 1)
    )
    assert bad in engine.step()
    run_all(engine)
    assert good.finish_reason == "length"
    assert bad.finish_reason == "error"
    assert "97 of 97 are NaN" in str(bad.error)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], greedy(1), "the prompt is empty"),
        ([97], greedy(1), "tokens that the model does not know"),
        ([-1], greedy(1), r"\[-1\], and tokens are 0 to 96"),
        ([1], greedy(1, stop="x"), "stop strings need a tokenizer"),
        ([1], greedy(1, stop_token_ids=[200]), r"a sampling parameter has tokens"),
        ([1], greedy(1, logit_bias={97: 1.0}), r"a sampling parameter has tokens"),
        ([1] * 1000, greedy(1), "the prompt is too long"),
    ],
)
def test_bad_requests_leave_nothing_behind(make_engine, prompt, params, message):
    engine = make_engine(num_pages=500)
    with pytest.raises(RequestError, match=message):
        engine.add(prompt, params)
    engine.check_integrity()
    assert not engine.has_work


def test_seeded_sampling_does_not_depend_on_the_batch(make_engine, run_all, rng):
    given = prompts(rng)
    params = [SamplingParams(temperature=0.8, top_k=20, seed=i, max_tokens=15) for i in range(8)]
    together = make_engine(18)
    batched = [together.add(p, one) for p, one in zip(given, params)]
    run_all(together)
    assert together.stats.preemptions > 0
    for prompt, one, sequence in zip(given, params, batched):
        alone = make_engine(200)
        single = alone.add(prompt, one)
        run_all(alone)
        assert single.output == sequence.output


def test_a_program_that_samples_is_believed(make_engine, run_all, rng):
    """The same tokens, whether the program or the engine draws them; logits are not fetched."""
    given = prompts(rng)
    params = [
        SamplingParams(temperature=0.5 * i, top_k=7 * i, top_p=0.95, seed=i, max_tokens=15)
        for i in range(8)
    ]
    outputs = []
    for samples in (False, True):
        engine = make_engine(200, samples=samples, pad=bucketed)
        sequences = [engine.add(p, one) for p, one in zip(given, params)]
        run_all(engine)
        outputs.append([s.output for s in sequences])
        assert (engine.runner.reads == 0) == samples
    assert outputs[0] == outputs[1]
    engine = make_engine(samples=True)
    penalized = engine.add([1], SamplingParams(seed=1, repetition_penalty=1.5, max_tokens=9))
    other = make_engine()
    expected = other.add([1], penalized.params)
    run_all(engine)
    run_all(other)
    assert engine.runner.reads == 9
    assert penalized.output == expected.output


@pytest.mark.parametrize("samples", [False, True])
def test_a_row_without_a_likeliest_token_ends_its_sequence_alone(make_engine, run_all, samples):
    """Also where logits stay on the device: those of such a row alone are fetched."""
    engine = make_engine(samples=samples, pad=bucketed)
    model, compute = engine.runner, engine.runner.compute

    def spoiled(**arrays):
        logits = compute(**arrays)
        if len(model.steps) == 3:
            logits[1, 5] = np.nan
        return logits

    model.compute = spoiled
    given = [SamplingParams(temperature=t, seed=1, max_tokens=6) for t in (0, 1, 0)]
    sequences = [engine.add([n + 1], params) for n, params in enumerate(given)]
    run_all(engine)
    assert [s.num_output for s in sequences] == [6, 2, 6]
    assert "1 of 97 are NaN" in str(sequences[1].error)
    if samples:
        assert model.reads == 1


def test_memory_is_reserved_at_the_start(make_engine):
    engine = make_engine(num_pages=5, page_size=4, max_num_seqs=3, max_num_batched_tokens=7)
    assert engine.runner.reserved == (7, 3, 20)


def test_unseeded_requests_differ_but_an_engine_repeats(make_engine, run_all):
    def outputs(seed):
        engine = make_engine(seed=seed)
        sequences = [engine.add([1, 2], SamplingParams(max_tokens=12)) for _ in range(3)]
        run_all(engine)
        return [tuple(s.output) for s in sequences]

    first = outputs(0)
    assert len(set(first)) == 3
    assert outputs(0) == first
    assert outputs(1) != first


def test_stats_count_every_token(make_engine, run_all, rng):
    engine = make_engine(200)
    given = prompts(rng)
    for prompt in given:
        engine.add(prompt, greedy(6))
    run_all(engine)
    stats = engine.stats
    assert stats.generated_tokens == 6 * len(given)
    assert stats.prefill_tokens == sum(map(len, given))
    assert stats.decode_tokens + stats.mixed_decode_tokens == 5 * len(given)
    assert stats.finished == len(given)
    assert stats.decode_tokens_per_second > 0
    assert np.isfinite(stats.prefill_tokens_per_second)
