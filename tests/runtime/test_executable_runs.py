"""An executable run again and again: by threads, profiled, prepared, with memory set aside."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.errors import OutOfMemory
from tilewright.ir.program import DataCheck
from tilewright.ir.switches import switches
from tilewright.ir.target import cpu
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.dlpack import view_of
from tilewright.runtime.executable import Executable
from tilewright.runtime.fixed_run import FixedRun

from . import test_executable
from .test_executable import WEIGHTS, affine, compile_library, inputs

pytestmark = test_executable.pytestmark


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def exe(library):
    return Executable(affine(library), WEIGHTS, CpuDevice())


def test_threads_come_from_the_switch(exe, rng):
    seen = exe._module._libraries["tiny"]._library.tw_threads
    with switches(threads=3):
        exe(*inputs(rng, 1))
    assert seen() == 3
    with switches(threads=77), pytest.raises(OutOfMemory, match="kernels' scratch") as caught:
        exe(*inputs(rng, 1))
    assert "needed: 1,234 bytes" in str(caught.value)


def test_a_consumer_waits_in_place_of_the_host(exe, rng, monkeypatch):
    """Unless the program has data to check, of which the host has to be told."""
    given, told = inputs(rng, 3), []
    exe(*given)  # has its memory now
    monkeypatch.setattr(exe.device, "hand_over", lambda stream: told.append(stream))
    monkeypatch.setattr(exe.device, "synchronize", lambda: told.append("done"))
    exe(*given)
    assert told == ["done"]
    exe(*given, consumer=7)
    assert told == ["done", 7]
    exe.program = replace(exe.program, checks=(DataCheck("gather"),))
    exe(*given, consumer=7)
    assert told == ["done", 7, "done"]


def test_new_arrays_may_be_those_of_another_library(exe, rng):
    """Each is asked for once; states and inputs that are outputs as well."""
    given, made = inputs(rng, 3), []
    expected = [array.numpy().copy() for array in exe(*given)]

    def make(shape, dtype):
        made.append(np.full(shape, 7, dtype.numpy))
        return view_of(made[-1])

    again = Executable(affine(exe.program.blobs["tiny"]), WEIGHTS, CpuDevice())
    results = again(*given, make=make)
    assert {id(view.keep) for view in results} == set(map(id, made))
    assert len(made) < len(results), "one is named twice"
    for one, right in zip(results, expected):
        np.testing.assert_array_equal(one.numpy(), right)


def test_two_threads_take_turns(library, rng):
    exe = Executable(affine(library), WEIGHTS, CpuDevice())
    wrong = []

    def work(seed):
        own = np.random.default_rng(seed)
        for _ in range(200):
            x, h = inputs(own, int(own.integers(1, 20)))
            z = exe(x, h)[0].numpy()
            rest = z - x * WEIGHTS["w"]  # the state, the same in each row
            if not np.allclose(rest, rest[:1], atol=1e-3, rtol=1e-3):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_profile(exe, rng):
    profile = exe.profile(*inputs(rng, 4))
    assert [s.name for s in profile.steps] == ["k0", "k1", "k2"]
    assert [round(s.seconds * 1e6) for s in profile.steps] == [1, 2, 3]
    first = profile.steps[0]
    assert (first.bytes, first.operations, first.loc) == (12 * 24, 24, "first")
    assert first.floor(1e9, 1e12) == 12 * 24 / 1e9
    assert first.floor() == 12 * 24 / cpu().bandwidth
    assert replace(first, bytes=0).floor() == 24 / cpu().rate
    assert profile.floor() == sum(step.floor() for step in profile.steps)
    assert {step.template for step in profile.steps} == {"pointwise"}
    table = profile.table(1e9, 1e12)
    assert "scale" in table
    assert "28.8%" in table  # 0.288 us of 1 us


def test_prepared_runs_in_place(exe, rng):
    prepared = FixedRun(exe, [(2, 6), (4,)])
    for _ in range(2):
        x, h = inputs(rng, 2)
        exe.states["s"].numpy()[:] = 0
        prepared.run({"x": x, "h": h})
        np.testing.assert_array_equal(prepared.output(0), x * WEIGHTS["w"])
        np.testing.assert_array_equal(prepared.output(1), h[::-1])
        np.testing.assert_array_equal(prepared.output(3), x)


def test_reserved_arena_does_not_move(exe, rng):
    reserved = exe.reserve({"b": 100, "n": 6})
    assert reserved >= 64 * 100 + 4 * 600
    before = exe._arena
    exe(*inputs(rng, 100))
    assert exe._arena is before
