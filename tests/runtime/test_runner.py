"""ProgramRunner over a compiled model: at its own sizes, and padded to buckets as for captures."""

import numpy as np
import pytest

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
from tilewright.runtime.engine.sampling_params import SamplingParams
from tilewright.runtime.executable import Executable
from tilewright.runtime.fixed_run import LEAST_SHARED, SharedMemory

from ..models.tiny import make


@pytest.fixture(scope="module")
def compiled():
    import tilewright

    llm = tilewright.LLM(make("llama"), dtype="float32", target="cpu", max_model_len=600)
    return llm.engine.runner.executable


def new_engine(compiled, captures, pages=150, **config):
    executable = Executable(
        compiled.program, compiled.weights, compiled.device, sizes={"pages": pages}
    )
    config = {"context_len": 600, "max_num_seqs": 9, "max_num_batched_tokens": 600} | config
    return Engine(ProgramRunner(executable, captures=captures), EngineConfig(**config))


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
