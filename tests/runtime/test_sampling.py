"""Sampling: parameters checked, the op's reference met, distributions right."""

import copy
from dataclasses import fields, replace

import numpy as np
import pytest

from tilewright.ir.errors import RequestError
from tilewright.ir.ops.sampling import sample
from tilewright.runtime.engine.sampler import (
    adjust,
    choose,
    choose_of_largest,
    draw,
    log_probabilities,
)
from tilewright.runtime.engine.sampling_params import SamplingParams
from tilewright.runtime.engine.sequence import Sequence


def sequence(params, prompt=(1, 2), output=()):
    made = Sequence(1, tuple(prompt), params, params.seed or 0)
    made.tokens += output
    return made


@pytest.mark.parametrize("temperature", [0.0, 1e-42, 5e-37, 0.3, 1.0, 2.5])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.9), (8, 0.7), (500, 0.99)])
def test_equals_the_reference(rng, temperature, top_k, top_p):
    rows = 40
    logits = (rng.standard_normal((rows, 300)) * 4).astype(np.float32)
    logits[:, 7] = logits[:, 9] = logits[:, 3]  # ties, also at the cut
    seeds = rng.integers(-(2**63), 2**63 - 1, rows)
    steps = rng.integers(0, 1000, rows)
    expected = sample.reference(
        logits,
        np.full(rows, temperature, np.float32),
        np.full(rows, top_k, np.int32),
        np.full(rows, top_p, np.float32),
        seeds,
        steps,
    )
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    found = [draw(logits[r], params, int(seeds[r]), int(steps[r])) for r in range(rows)]
    assert found == expected.tolist()


@pytest.mark.parametrize("temperature", [1e-320, 1e-45, 2e-39, 7e-37, 1e-20])
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"min_p": 0.5}, {"top_k": 40}])
@pytest.mark.parametrize("size", [1.0, 3e38])
def test_the_least_temperatures_are_greedy(rng, temperature, cut, size):
    """However small or large the logits: nothing overflows on the way."""
    logits = (rng.uniform(0.5, 1, (20, 300)) * size).astype(np.float32)
    params = SamplingParams(temperature=temperature, **cut)
    found = [draw(row, params, seed, 3) for seed, row in enumerate(logits)]
    assert found == logits.argmax(-1).tolist()


def frequencies(logits, params, count=20_000):
    tokens = [draw(logits, params, 99, step) for step in range(count)]
    return np.bincount(tokens, minlength=len(logits)) / count


def test_distribution_is_the_softmax(rng):
    logits = rng.standard_normal(12).astype(np.float32)
    expected = np.exp(logits / 0.7)
    expected /= expected.sum()
    found = frequencies(logits, SamplingParams(temperature=0.7))
    # five standard deviations of a binomial
    assert (np.abs(found - expected) < 5 * np.sqrt(expected / 20_000)).all()


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), [3, 1]),
        (SamplingParams(top_p=0.6), [3, 1]),
        (SamplingParams(top_p=0.5), [3]),
        (SamplingParams(min_p=0.3), [3, 1]),
        (SamplingParams(top_k=3, top_p=0.99), [3, 1, 0]),
        (SamplingParams(top_k=1), [3]),
    ],
)
def test_cuts_keep_the_likeliest(params, kept):
    probabilities = np.array([0.12, 0.2, 0.05, 0.55, 0.08])
    logits = np.log(probabilities).astype(np.float32)
    found = frequencies(logits, params, 3000)
    assert set(np.flatnonzero(found)) == set(kept)
    expected = probabilities[kept] / probabilities[kept].sum()
    assert np.abs(found[kept] - expected).max() < 0.05


def test_seed_and_step_decide(rng):
    logits = rng.standard_normal(50).astype(np.float32)
    params = SamplingParams()
    assert draw(logits, params, 1, 5) == draw(logits, params, 1, 5)
    assert len({draw(logits, params, seed, 5) for seed in range(50)}) > 10
    assert len({draw(logits, params, 1, step) for step in range(50)}) > 10


def test_penalties(rng):
    logits = np.array([1.0, -1.0, 2.0, 0.5], np.float32)
    before = logits.copy()
    repeated = sequence(SamplingParams(repetition_penalty=2.0), prompt=[0], output=[1])
    np.testing.assert_array_equal(adjust(logits, repeated, frozenset()), [0.5, -2.0, 2.0, 0.5])
    frequent = sequence(SamplingParams(frequency_penalty=0.5), prompt=[0], output=[2, 2, 3])
    np.testing.assert_array_equal(adjust(logits, frequent, frozenset()), [1.0, -1.0, 1.0, 0.0])
    present = sequence(SamplingParams(presence_penalty=0.5), prompt=[0], output=[2, 2, 3])
    np.testing.assert_array_equal(adjust(logits, present, frozenset()), [1.0, -1.0, 1.5, 0.0])
    biased = sequence(SamplingParams(logit_bias={1: 100.0}, temperature=0))
    assert choose(logits, biased).token == 1
    allowed = sequence(SamplingParams(allowed_token_ids=[1, 3], temperature=0))
    assert choose(logits, allowed).token == 3
    assert choose(logits, allowed, frozenset([3])).token == 1
    np.testing.assert_array_equal(logits, before)


def test_logprobs(rng):
    logits = rng.standard_normal(30).astype(np.float32) * 3
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    top = log_probabilities(logits, 3, int(logits.argmin()))
    order = np.argsort(-logits)
    assert list(top) == [*order[:3], logits.argmin()]
    for token, value in top.items():
        assert value == pytest.approx(exact[token], abs=1e-5)
    choice = choose(logits, sequence(SamplingParams(temperature=0, logprobs=0)))
    assert choice.top == {choice.token: choice.logprob}
    assert len(log_probabilities(logits[:2], 5, 0)) == 2


def test_defaults_are_those_callers_know():
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.max_tokens) == (1.0, 1.0, 16)
    assert not params.is_greedy
    assert params.is_plain
    assert not SamplingParams(min_p=0.1).is_plain
    assert SamplingParams(temperature=0, logprobs=0).is_plain, "to be told of it changes nothing"
    assert not SamplingParams(logit_bias={1: 1.0}).is_plain
    assert SamplingParams(top_k=-1).top_k == 0
    assert SamplingParams(stop="x").stop == ("x",)
    assert replace(params, temperature=0).is_greedy
    assert copy.deepcopy(params) == params
    assert len(fields(params)) == 20


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1, must be a number from 0 to 100"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": True}, "temperature is True"),
        ({"top_p": -0.1}, "top_p is -0.1, must be a number from 0 to 1"),
        ({"top_p": 10**400}, "top_p is 1000"),
        ({"temperature": np.float32("inf")}, "temperature is inf|np.float32.inf"),
        ({"min_p": np.bool_(True)}, "min_p is"),
        ({"seed": 1.0}, "seed is 1.0, must be a whole number"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"stop": b"x"}, "stop has b'x'"),
        ({"stop": ["x" * 1025]}, "a string of 1025 characters, at most 1024"),
        ({"stop_token_ids": [-1]}, "-1 is not a token's number"),
        ({"stop_token_ids": [True]}, "True is not a token's number"),
        ({"logit_bias": {"²": 1}}, "'²', which is not a token's number"),
        ({"logit_bias": {-3: 1}}, "-3, which is not a token's number"),
        ({"logit_bias": {"9" * 5000: 1}}, "which is not a token's number"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias of 1 is inf"),
        ({"logit_bias": {1: True}}, "logit_bias of 1 is True"),
        ({"top_p": 1.1}, "top_p is 1.1, must be a number from 0 to 1"),
        ({"top_k": -2}, "top_k is -2, must be a whole number from 0"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"min_p": 2}, "min_p is 2"),
        ({"n": 0}, "n is 0, must be a whole number from 1 to 128"),
        ({"max_tokens": 0}, "max_tokens is 0, must be a whole number from 1"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5, above max_tokens 4"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
        ({"stop": ["a", ""]}, "stop has '', must be strings that are not empty"),
        ({"stop": ["x"] * 17}, "stop has 17 strings, at most 16"),
        ({"stop_token_ids": ["a"]}, "'a' is not a token's number"),
        ({"allowed_token_ids": []}, "no token could be chosen"),
        ({"logprobs": 21}, "logprobs is 21, must be a whole number from 0 to 20"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0, must be above 0"),
        ({"ignore_eos": 1}, "ignore_eos is 1, must be True or False"),
    ],
)
def test_bad_values_are_named(named, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**named)


def test_numbers_of_numpy_mean_the_same():
    given = SamplingParams(
        n=np.int8(2),
        temperature=np.float32(0.5),
        top_k=np.uint16(7),
        seed=np.int64(-3),
        stop_token_ids=np.array([1, 2]),
        allowed_token_ids=np.arange(3),
        logit_bias={np.int32(4): np.float64(1.5), "5": -float("inf")},
        max_tokens=2**70,
    )
    same = SamplingParams(
        n=2, temperature=0.5, top_k=7, seed=-3, stop_token_ids=[1, 2],
        allowed_token_ids=[0, 1, 2], logit_bias={4: 1.5, 5: -float("inf")}, max_tokens=2**70,
    )  # fmt: skip
    assert given == same
    assert repr(given) == repr(same)


@pytest.mark.parametrize("temperature", [0, 1e-30, 1, 100])
def test_adjusted_logits_are_numbers(rng, temperature):
    """However small a penalty or large a bias, what is left has a largest, and it is chosen."""
    logits = (rng.standard_normal(20) * 1e38).astype(np.float32)
    for more in ({"repetition_penalty": 1e-300}, {"logit_bias": {3: 1e300, 4: -1e300}}):
        params = SamplingParams(temperature=temperature, **more)
        changed = adjust(logits, sequence(params, prompt=range(20)), frozenset())
        assert np.isfinite(changed.max())
        assert choose(logits, sequence(params, prompt=range(20))).token != 4
    nothing = SamplingParams(
        temperature=temperature, logit_bias={2: -np.inf}, allowed_token_ids=[2]
    )
    with pytest.raises(RequestError, match="no token could be chosen"):
        choose(logits, sequence(nothing))


def test_top_p_of_nothing_is_the_likeliest(rng):
    logits = rng.standard_normal((9, 50)).astype(np.float32)
    params = SamplingParams(top_p=0)
    assert [draw(x, params, 3, 4) for x in logits] == logits.argmax(-1).tolist()


def test_all_bad_values_are_listed():
    with pytest.raises(RequestError) as caught:
        SamplingParams(temperature=-1, top_p=3, n=0)
    assert [line.split()[0] for line in str(caught.value).splitlines()[1:]] == [
        "n",
        "temperature",
        "top_p",
    ]


def test_unknown_parameters_are_named():
    with pytest.raises(RequestError, match="parameter best_of, use_beam_search is not supported"):
        SamplingParams(temperature=0, best_of=2, use_beam_search=True)


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_logits_decide_where_they_can(seed):
    """What is chosen of them is what is chosen of all, first of equals too; else they say so."""
    rng = np.random.default_rng(seed)
    logits = (rng.integers(-8, 9, 40) / 2).astype(np.float32)
    tokens = rng.integers(0, 40, 12).tolist()
    params = SamplingParams(
        temperature=0,
        presence_penalty=float(rng.choice([0, 0.5, 2])),
        frequency_penalty=float(rng.choice([0, 0.5])),
        repetition_penalty=float(rng.choice([1, 1.7])),
        logit_bias={3: -1.0, 39: -100.0} if seed % 3 == 0 else None,
        allowed_token_ids=range(5, 35) if seed % 4 == 0 else None,
    )
    assert params.only_lowers
    sequence = Sequence(1, tuple(tokens[:4]), params, 0)
    sequence.tokens += tokens[4:]
    forbidden = frozenset(np.argsort(-logits)[: seed % 3].tolist())
    expected = choose(logits, sequence, forbidden).token
    order = np.argsort(-logits, kind="stable")
    decided = []
    for count in (1, 3, 10, 20):
        largest = logits[order[:count]]
        found = choose_of_largest(largest, order[:count], sequence, forbidden)
        assert found in (None, expected)
        decided.append(found is not None)
    assert decided == sorted(decided), "more of them decide no less"
    assert logits[order[19]] == np.sort(logits)[-20], "and are not changed"


@pytest.mark.parametrize(
    "named",
    [
        {"temperature": 0.5}, {"presence_penalty": -1}, {"frequency_penalty": -1},
        {"repetition_penalty": 0.5}, {"logit_bias": {1: 1.0}},
    ],
)  # fmt: skip
def test_what_may_raise_a_logit_is_not_left_to_the_largest(named):
    assert not SamplingParams(**{"temperature": 0} | named).only_lowers
