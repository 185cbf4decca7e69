"""Objects in other processes: what hangs, crashes or raises costs its own call and no other."""

import importlib
import os
import time
from collections import Counter

import pytest

from tilewright.autotune.remote import Failure, Remote, RemotePool


@pytest.fixture(scope="module")
def counter():
    made = Remote(Counter, "abca")
    yield made
    made.close()


def test_a_remote_object_keeps_its_state(counter):
    assert counter.call("__getitem__", "a", limit=60) == 2
    assert counter.call("update", "aa", limit=60) is None
    assert counter.call("__getitem__", "a", limit=60) == 4


def test_what_raises_says_so_and_goes_on(counter):
    failure = counter.call("subtract", 5, limit=60)
    assert failure == Failure("TypeError: 'int' object is not iterable")
    assert counter.call("__getitem__", "b", limit=60) == 1


@pytest.fixture(scope="module")
def system():
    made = Remote(importlib.import_module, "os")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (("_exit", 3), "its process ended with 3"),
        (("abort",), "its process was ended by SIGABRT"),
        (("kill", 0, 9), "its process was ended by SIGKILL"),
    ],
)
def test_a_process_that_is_gone_is_replaced(system, call, reason):
    before = system.call("getpid", limit=60)
    assert before != os.getpid()
    method, *args = call
    assert system.call(method, *args, limit=60) == Failure(reason, is_fatal=True)
    after = system.call("getpid", limit=60)
    assert isinstance(after, int)
    assert after != before


def test_what_hangs_is_ended_and_others_go_on():
    pool = RemotePool(2, importlib.import_module, "time")
    try:
        begun = time.monotonic()
        heard = []
        results = pool.each("sleep", [(0.01,), (1000,), (0.02,), (0.01,)], 3.0, heard.append)
        assert results == [None, Failure("no end after 3 s", is_fatal=True), None, None]
        assert time.monotonic() - begun < 60
        assert heard == [1, 2, 3, 4]
        assert pool.each("monotonic", [()] * 2, 60.0) != [None, None]
    finally:
        pool.close()


def test_an_object_that_cannot_be_made_is_a_failure():
    broken = Remote(int, "seven")
    for _ in range(2):
        failure = broken.call("bit_length", limit=60)
        assert failure.reason.startswith("ValueError: invalid literal")
    broken.close()
