"""ProgramRunner over a compiled model: at its own sizes, and padded to buckets as for captures."""

import numpy as np
import pytest

from tilewright.api.token_scores import score_graph, score_program
from tilewright.ir.evaluate import evaluate
from tilewright.ir.target import get_target
from tilewright.runtime.engine.batch import BatchSizes
from tilewright.runtime.engine.engine import Engine, EngineConfig
from tilewright.runtime.engine.runner import (
    MAX_CAPTURED_TOKENS,
    SEQ_BUCKETS,
    TOKEN_BUCKETS,
    WIDTH_BUCKETS,
    ProgramRunner,
    round_up,
)
from tilewright.runtime.engine.sampler import log_probabilities
from tilewright.runtime.engine.sampling_params import SamplingParams
from tilewright.runtime.engine.scores import TokenScores
from tilewright.runtime.executable import Executable
from tilewright.runtime.fixed_run import LEAST_SHARED, SharedMemory

from ..models.tiny import make


@pytest.fixture(scope="module")
def compiled():
    import tilewright

    llm = tilewright.LLM(make("llama"), dtype="float32", target="cpu", max_model_len=600)
    return llm.engine.runner.executable


def new_engine(compiled, captures, pages=150, scores=None, **config):
    executable = Executable(
        compiled.program, compiled.weights, compiled.device, sizes={"pages": pages}
    )
    config = {"context_len": 600, "max_num_seqs": 9, "max_num_batched_tokens": 600} | config
    runner = ProgramRunner(executable, captures=captures, scores=scores)
    return Engine(runner, EngineConfig(**config))


@pytest.fixture(scope="module")
def scoring(compiled):
    """An executable that scores tokens of the compiled model's logits."""
    vocab_size = compiled.program.buffers[compiled.program.outputs[0]].type.shape[-1]
    return Executable(score_program(vocab_size, get_target("cpu")).program, {}, compiled.device)


def outputs(engine, prompts, params):
    sequences = [engine.add(p, one) for p, one in zip(prompts, params)]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    return [s.output for s in sequences]


def test_padding_and_captures_change_nothing(compiled, rng):
    prompts = [rng.integers(3, 320, n).tolist() for n in (1, 3, 17, 64, 65, 200, 333, 512)]
    params = [SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)] * 7
    params.append(SamplingParams(temperature=0.8, seed=3, max_tokens=10, ignore_eos=True))
    plain = new_engine(compiled, False)
    expected = outputs(plain, prompts, params)
    padded = new_engine(compiled, True)
    assert outputs(padded, prompts, params) == expected
    runner = padded.runner
    assert padded.runner.overlaps
    assert not plain.runner.overlaps
    assert {s.tokens > MAX_CAPTURED_TOKENS for s in runner._prepared} == {False, True}
    chunked = new_engine(compiled, True, pages=40, max_num_batched_tokens=100)
    assert outputs(chunked, prompts, params) == expected


def test_scores_of_the_device_are_those_of_the_host(compiled, scoring, rng):
    """Beside rows that need none, and rows whose prompts are scored; read a step late."""
    prompts = [rng.integers(3, 320, n).tolist() for n in (5, 1, 40, 9, 17, 8)]
    named = [
        {"logprobs": 5}, {}, {"logprobs": 0, "temperature": 0.9, "top_k": 30, "seed": 5},
        {"logprobs": 20, "prompt_logprobs": 3}, {"logprobs": 2, "repetition_penalty": 1.3},
        {"presence_penalty": 1.5, "min_tokens": 4, "stop_token_ids": [9]},
    ]  # fmt: skip
    params = [
        SamplingParams(**{"temperature": 0, "max_tokens": 12 + n, "ignore_eos": True} | more)
        for n, more in enumerate(named)
    ]
    engines = [new_engine(compiled, False), new_engine(compiled, True, scores=scoring)]
    groups = [[e.add(p, one) for p, one in zip(prompts, params)] for e in engines]
    fetched, reads = [], []
    run = engines[1].runner.run

    def watched(work):
        result = run(work)
        fetched.append(result.scores is not None)
        logits = result.logits
        object.__setattr__(result, "logits", lambda: reads.append(work) or logits())
        return result

    engines[1].runner.run = watched
    for engine in engines:
        while engine.has_work:
            engine.step()
            engine.check_integrity()
    assert all(fetched[:12])
    assert len(reads) < 6, "the largest logits decide nearly all that penalties change"
    assert engines[1].runner.overlaps
    for host, device in zip(*groups):
        assert device.output == host.output
        assert device.cumulative_logprob == pytest.approx(host.cumulative_logprob, abs=1e-4)
        for name in ("logprobs", "prompt_logprobs"):
            found, expected = getattr(device, name), getattr(host, name)
            assert [list(one) for one in found] == [list(one) for one in expected]
            for one, right in zip(found, expected):
                assert one == pytest.approx(right, abs=1e-5)


@pytest.mark.parametrize("vocab_size", [1, 7, 33])
def test_scores_of_a_row(vocab_size, rng):
    """Equal logits in the order of their tokens; NaN and infinities where the engine sees them."""
    logits = rng.integers(-3, 3, (9, vocab_size)).astype(np.float32) * 40
    logits[7, -1], logits[8] = np.nan, -np.inf
    chosen, targets = (rng.integers(-1, vocab_size, 9).astype(np.int32) for _ in range(2))
    inputs = {"logits": logits, "chosen": chosen, "targets": targets}
    with np.errstate(invalid="ignore"):
        arrays, _ = evaluate(score_graph(vocab_size), inputs)
    scores = TokenScores(*arrays)
    tokens = np.maximum(np.where(targets < 0, chosen, targets), 0)
    for row, token in enumerate(tokens[:7].tolist()):
        for count in (0, 1, min(5, vocab_size)):
            found = scores.top(row, count, token)
            expected = log_probabilities(logits[row], count, token)
            assert list(found) == list(expected)
            assert found == pytest.approx(expected, abs=1e-4)
    assert not np.isfinite(scores.best[7:, 0]).any()


def test_preemption_changes_nothing(compiled, rng):
    prompts = [rng.integers(3, 320, 14).tolist() for _ in range(8)]
    params = [SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)] * 8
    expected = outputs(new_engine(compiled, False), prompts, params)
    tight = new_engine(compiled, False, pages=12)
    assert outputs(tight, prompts, params) == expected
    assert tight.stats.preemptions > 0


def test_prepared_steps_share_memory(compiled):
    engine = new_engine(compiled, True)
    params = SamplingParams(temperature=0, max_tokens=3)
    for seqs in (1, 2, 4, 8):
        outputs(engine, [[5]] * seqs, [params] * seqs)
    prepared = list(engine.runner._prepared.values())
    assert [s.seqs for s in engine.runner._prepared] == [1, 2, 4, 8]
    assert len({id(p._memory) for p in prepared}) == 1
    arena = engine.runner.executable._arena
    outputs(engine, [[5] * 500], [params])
    assert engine.runner.executable._arena is arena, "reserved at the start for every step"


def test_shared_memory_doubles(compiled):
    memory = SharedMemory(compiled.device)
    first = memory.take(100, "a test")
    assert memory.take(LEAST_SHARED, "a test") is first
    assert memory.take(LEAST_SHARED + 1, "a test").nbytes == 2 * LEAST_SHARED
    assert memory.take(LEAST_SHARED * 9, "a test").nbytes == 9 * LEAST_SHARED


def test_buckets(compiled):
    runner = ProgramRunner(compiled, captures=True)
    assert runner.bucket(BatchSizes(1, 1, 1, 1)) == BatchSizes(1, 1, 8, 1)
    assert runner.bucket(BatchSizes(5, 5, 9, 5)) == BatchSizes(8, 8, 16, 8)
    mixed = runner.bucket(BatchSizes(70, 3, 5, 2))
    assert (mixed.tokens, mixed.seqs, mixed.rows) == (128, 4, 4)
    for buckets in (SEQ_BUCKETS, TOKEN_BUCKETS, WIDTH_BUCKETS):
        assert list(buckets) == sorted(set(buckets))
        for value in (1, 3, buckets[-1], buckets[-1] + 1, 3 * buckets[-1] - 1):
            assert value <= round_up(value, buckets) < 2 * value + buckets[0]


def test_bucket_limits_hold(compiled):
    limits = {n: s.hi for n, s in compiled.program.symbols.items()}
    runner = ProgramRunner(compiled, captures=True)
    top = limits["t"]
    assert runner.bucket(BatchSizes(top, 2, 3, 1)).tokens == top
    assert np.isin(["t", "seqs", "width", "rows"], list(limits)).all()
