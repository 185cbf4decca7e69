"""Tuning real C++ kernels: candidates that hang, crash or are wrong harm no others."""

from contextlib import closing
from dataclasses import replace

import pytest

from tilewright.autotune import search
from tilewright.autotune.remote import Failure
from tilewright.autotune.search import DeviceTrial, Tools, tune_kernel
from tilewright.codegen.cpp.emit import choices
from tilewright.codegen.cpp.schedules import RunSchedule
from tilewright.codegen.templates import choices as gpu_choices
from tilewright.ir.builder import Builder
from tilewright.ir.errors import DeviceError
from tilewright.ir.target import cpu
from tilewright.ir.types import f32
from tilewright.runtime.cpu import CpuDevice

from .simulated import SM_90, kernels_of, product_kernel, task_of

CPU = cpu(num_cores=2)
# what a compiler makes of a candidate: the size of its blocks tells which
EVIL = """#!/bin/bash
for word in "$@"; do
    if [[ $word == pointwise_*.cpp ]]; then
        entry='s/^extern "C" void \\(.*\\)(TW_ARGS) {/&'
        grep -q "/ 512;" $word && sed -i "${entry}for (;;);/" $word
        grep -q "/ 1024;" $word && sed -i "${entry}__builtin_trap();/" $word
        grep -q "/ 2048;" $word && sed -i 's/ = tw_/ = 1.001f * tw_/' $word
        grep -q "/ 8192;" $word && exec sleep 1000
        grep -q "/ 16384;" $word && { echo "I do not like it"; exit 1; }
    fi
done
exec g++ "$@"
"""


def scaled():
    """exp(x) of a long vector, in blocks of a size that is chosen."""
    b = Builder("g")
    n = b.dim("n", 1, 1 << 20, hint=1 << 16)
    (kernel,) = kernels_of(b.graph([b.exp(b.input("x", (n,)))]), CPU)
    size, (bucket,) = choices(kernel)
    return task_of(kernel, CPU, size, bucket)


@pytest.fixture
def evil(tmp_path, monkeypatch):
    compiler = tmp_path / "evil++"
    compiler.write_text(EVIL)
    compiler.chmod(0o755)
    monkeypatch.setenv("TILEWRIGHT_CXX", str(compiler))
    with closing(Tools(CpuDevice(), 1)) as tools:
        yield tools


class Fake:
    """Compilers and a meter that note what they are asked; what `wrong` names fails once."""

    def __init__(self, **wrong):
        self.wrong, self.asked = wrong, []
        self.compilers = self.meter = self

    def each(self, method, arguments, limit):
        return [schedule for *_, schedule in arguments]

    def call(self, method, *args, limit):
        number = None if method == "prepare" else args[0]
        self.asked.append((method, number))
        failures = self.wrong.get(f"{method}_{number}")
        return failures.pop() if failures else None

    def close(self):
        self.asked.append(("close", None))


def test_after_any_failure_on_a_gpu_its_process_is_replaced():
    """What broke one kernel's memory accesses may have broken all that the process does after."""
    kernel = product_kernel(64, 64, SM_90, f32)
    size, (bucket, *_) = gpu_choices(kernel, SM_90)
    tools = Fake(check_1=[Failure("DeviceError: an illegal memory access")])
    trial = DeviceTrial(task_of(kernel, SM_90, size, bucket), tools, 0)
    first, second = (replace(bucket[2], bn=bn) for bn in (2, 4))
    reasons = trial.ready([bucket[2], first, second])
    assert reasons == [None, "not run: DeviceError: an illegal memory access", None]
    begun = [("prepare", None), ("load", 0), ("check", 0)]
    tried = [("load", 1), ("check", 1)]
    assert tools.asked == [*begun, *tried, ("close", None), *begun, *tried]


@pytest.mark.slow
def test_bad_candidates_say_what_is_wrong_and_good_ones_are_measured(evil, monkeypatch):
    trial = DeviceTrial(scaled(), evil, 0)
    # a process compiles once what libraries have in common, which takes longest
    assert trial.ready([RunSchedule(4096), RunSchedule(256)]) == [None, None]
    monkeypatch.setattr(search, "COMPILE_SECONDS", 20.0)
    monkeypatch.setattr(search, "RUN_SECONDS", 8.0)
    blocks = (512, 1024, 32768, 2048, 16384, 65536, 8192)
    reasons = dict(zip(blocks, trial.ready([RunSchedule(block) for block in blocks])))
    good = [block for block, reason in reasons.items() if reason is None]
    assert good == [32768, 65536]
    assert reasons[512] == "not run: no end after 8 s"
    assert reasons[1024] == "not run: its process was ended by SIGILL"
    assert reasons[2048].startswith("wrong: parameter 1: off the reference by")
    assert reasons[8192] == "not compiled: no end after 20 s"
    assert reasons[16384].startswith("not compiled: the C++ compiler failed on pointwise_")
    # those that were good before the others broke what held them still are
    for times in trial.seconds([RunSchedule(block) for block in (4096, 256, *good)], 3):
        assert times.shape == (4, 3)
        assert (times > 0).all()


def test_a_kernel_is_tuned():
    task, heard = scaled(), []
    progress = lambda stage, done, of: heard.append((stage, done, of))  # noqa: E731
    outcome = tune_kernel(task, CpuDevice(), seconds=5.0, workers=1, progress=progress)
    assert outcome.task is task
    assert outcome.winner in {t.schedule for t in outcome.tried if t.seconds is not None}
    assert not [t for t in outcome.tried if t.reason]
    assert outcome.tried[0].schedule == task.default
    assert outcome.floor_seconds > 0
    assert 0 < outcome.seconds <= outcome.default_seconds
    assert heard[-1][1] == len(outcome.tried)


def test_a_device_that_is_not_there_is_an_error():
    class Missing(CpuDevice):
        name = "cuda:99"

    with pytest.raises(DeviceError, match="the device to tune on cannot be used"):
        tune_kernel(scaled(), Missing(), seconds=1.0, workers=1)
