"""The life of a program's library on the CPU: threads, forks, and what is given back."""

import gc
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tilewright import passes
from tilewright.codegen.build import build
from tilewright.ir.builder import Builder
from tilewright.ir.target import cpu
from tilewright.passes.pipelines import dense
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.executable import Executable

X = np.random.default_rng(0).standard_normal((40, 96)).astype(np.float32)


def make_program():
    """Steps of every kind of sharing: a product, a reduction over few long rows, pointwise."""
    b = Builder("shared")
    t = b.dim("t", 0, 4096)
    x = b.input("x", (t, 96))
    y = b.softmax(b.matmul(x, b.weight("w", (160, 96)), transpose_w=True), axis=-1)
    return build(passes.run(b.graph([y, b.sum(x, axes=(0,))]), dense()).graph, cpu())


@pytest.fixture(scope="module")
def program():
    return make_program()


def load(program, threads):
    w = np.random.default_rng(1).standard_normal((160, 96)).astype(np.float32)
    (buffer,) = program.weights
    packed = buffer.encoding.pack(w, buffer.type.dtype)
    return Executable(program, {"w": packed}, CpuDevice(threads=threads))


def run(exe, x=X):
    return [out.numpy() for out in exe(x)]


def held():
    """(open descriptors, mapped libraries of ours, threads)."""
    with open("/proc/self/maps") as maps:
        mapped = len(set(re.findall(r"memfd:tilewright-\S+.*", maps.read())))
    return len(os.listdir("/proc/self/fd")), mapped, len(os.listdir("/proc/self/task"))


def test_what_was_loaded_is_given_back(program):
    gc.collect()
    before = held()
    for _ in range(3):
        exe = load(program, 3)
        run(exe)
        assert held()[2] >= before[2] + 2
        del exe
        gc.collect()
        assert held() == before
    several = [load(program, 2) for _ in range(3)]
    wanted = run(several[0])
    for _ in range(4):  # a descriptor that one gives back is taken by the next
        del several[0]
        several.append(load(program, 2))
        for exe in several:
            for got, want in zip(run(exe), wanted):
                np.testing.assert_array_equal(got, want)
    del exe, several
    gc.collect()
    assert held() == before


def test_threads_that_come_and_go(program):
    wanted = run(load(program, 1))
    exe = load(program, 1)
    for threads in (3, 1, 2, 7, 7, 1, 2, 16, 2):
        exe.device._threads = threads
        for x, want in ((X, wanted), (X[:0], None)):
            got = run(exe, x)
            if want is not None:
                for a, b in zip(got, want):
                    np.testing.assert_array_equal(a, b)


def test_threads_without_work_end(program):
    exe = load(program, 2)
    wanted, most = run(exe), held()[2]
    limit = time.monotonic() + 120
    while held()[2] >= most and time.monotonic() < limit:
        time.sleep(0.1)
    assert held()[2] == most - 1
    for got, want in zip(run(exe), wanted):  # and come again
        np.testing.assert_array_equal(got, want)


def test_little_work_wakes_nobody(program, monkeypatch):
    monkeypatch.delenv("TILEWRIGHT_THREADS")
    monkeypatch.setattr("tilewright.runtime.cpu.usable_cores", lambda: 3)
    monkeypatch.setattr("tilewright.runtime.cpu.SHARED_WORK", 1 << 19)
    gc.collect()
    before = held()[2]
    exe, asked = load(program, None), load(program, 2)
    (few, _), (many, _) = run(exe, X[:1]), run(load(program, 1))
    assert held()[2] == before
    np.testing.assert_array_equal(few, many[:1])
    np.testing.assert_array_equal(run(exe)[0], many)
    assert held()[2] == before + 2
    np.testing.assert_array_equal(run(asked, X[:1])[0], few)
    assert held()[2] == before + 3, "asked for, they are used"


@pytest.mark.parametrize("limit", [0, 40_000, 1 << 40])
def test_steps_of_one_thread_among_those_of_all(program, monkeypatch, limit):
    """None, some and all of the steps are little work, at sizes that change from call to call."""
    monkeypatch.setattr("tilewright.runtime.cpu.LITTLE_WORK", limit)
    exe, alone = load(program, 3), load(program, 1)
    kinds = set()
    for rows in (40, 1, 17, 2, 40, 0, 5):
        for ours, expected in zip(run(exe, X[:rows]), run(alone, X[:rows]), strict=True):
            np.testing.assert_array_equal(ours, expected)
        kinds |= {flag for b in exe._bound.values() for flag in b.plan._steps["alone"]}
    assert kinds == {0: {0}, 40_000: {0, 1}, 1 << 40: {1}}[limit]


def test_callers_of_several_threads(program):
    executables = [load(program, 2) for _ in range(2)]
    wanted = run(executables[0])
    wrong: list[int] = []

    def call(exe):
        for _ in range(100):
            wrong.extend(i for i, (a, b) in enumerate(zip(run(exe), wanted)) if (a != b).any())

    threads = [threading.Thread(target=call, args=(executables[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


FORK = """
import os, sys, threading
import numpy as np
sys.path.insert(0, FOLDER)
from test_cpu_library import load, make_program, run
exe = load(make_program(), 3)
wanted = run(exe)
same = lambda: all((a == b).all() for a, b in zip(run(exe), wanted))
busy = BUSY
def work():
    while busy:
        run(exe)
thread = threading.Thread(target=work)
thread.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        grandchild = os.fork() if same() else -1
        if grandchild == 0:
            os._exit(0 if same() else 3)
        code = os.waitpid(grandchild, 0)[1] if grandchild > 0 else 4
        os._exit(0 if same() and code == 0 else 5)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code or not same():
        os._exit(code or 6)
busy = False
thread.join()
"""


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_forked_process_computes_too(is_busy):
    """After the first call, and while another thread is in the middle of one."""
    text = FORK.replace("BUSY", str(is_busy)).replace("FOLDER", repr(str(Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
