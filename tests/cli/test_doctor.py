"""`tilewright doctor`: its facts are this machine's, and what is missing is named."""

import json
import os
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.api import machine
from tilewright.api.machine import open_device, resolve_target
from tilewright.cli import doctor
from tilewright.ir.errors import DeviceError
from tilewright.runtime import cgroup, cpu

NO_GPU = machine.Gpus((), None, "no NVIDIA driver")
ONE_GPU = machine.Gpus((machine.Gpu("NVIDIA H200", "sm_90", 1 << 37),), "13.0", None)


def test_json_holds_the_facts(tilewright):
    done = tilewright("doctor", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["libraries"]["numpy"] == np.__version__
    assert 1 <= facts["cpu"]["cores"] <= os.cpu_count()
    assert 0 < facts["memory"]["available_bytes"] <= facts["memory"]["total_bytes"]
    assert "cpu" in facts["targets"]
    assert bool(facts["gpus"]) != bool(facts["no_gpu_because"])


def test_the_cache_and_its_size(tilewright, tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "kernel.so").write_bytes(bytes(100))
    done = tilewright("doctor", "--json", env={"TILEWRIGHT_CACHE": tmp_path / "a"})
    assert json.loads(done.stdout)["cache"] == {
        "folder": str(tmp_path / "a"),
        "files": 1,
        "bytes": 100,
    }


def test_text_has_a_line_for_each_fact(tilewright):
    done = tilewright("doctor")
    assert done.returncode == 0, done.stderr
    labels = [line.split("  ")[0] for line in done.stdout.splitlines()]
    for label in ["cpu", "memory", "compiler", "gpu", "torch", "triton", "cuda-core", "targets"]:
        assert label in labels


def test_without_a_compiler_nothing_can_be_compiled(tilewright, tmp_path):
    done = tilewright("doctor", env={"PATH": str(tmp_path)})
    if "gpu         none" in done.stdout:
        assert done.returncode == 1
        assert "targets" in done.stdout
    assert "no C++ compiler: install g++ (or set TILEWRIGHT_CXX)" in done.stdout


def test_verdict():
    libraries = dict.fromkeys(doctor.GPU_LIBRARIES, "1.0")
    compilers = [{"path": "/usr/bin/g++", "version": "g++ 12"}]
    assert doctor.verdict(compilers, NO_GPU, libraries) == (["cpu"], [])
    assert doctor.verdict(compilers, ONE_GPU, libraries) == (["cpu", "cuda:sm_90"], [])
    targets, problems = doctor.verdict([], ONE_GPU, {**libraries, "triton": None})
    assert targets == []
    assert problems[1] == "NVIDIA H200: install tilewright[gpu]; missing: triton"


@pytest.mark.parametrize(
    ("arch", "target"),
    [
        ("sm_90", "sm_90"),
        ("sm_80", "sm_80"),
        ("sm_89", "sm_86"),
        ("sm_103", "sm_100"),
        ("sm_75", None),
    ],
)
def test_the_target_of_a_gpu(monkeypatch, arch, target):
    gpus = machine.Gpus((machine.Gpu("a GPU", arch, 1 << 30),), "13.0", None)
    monkeypatch.setattr(machine, "nvidia_gpus", lambda: gpus)
    assert machine.gpu_target() == target


def test_no_gpu_has_no_target(monkeypatch):
    monkeypatch.setattr(machine, "nvidia_gpus", lambda: NO_GPU)
    assert machine.gpu_target() is None


def test_a_process_forked_after_the_gpu_was_used_is_told_so(monkeypatch):
    cuda = SimpleNamespace(cuInit=lambda flags: machine.NOT_INITIALIZED)
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: cuda)
    for target in ("auto", "sm_90"):
        with pytest.raises(DeviceError, match=r"was forked from one that used the GPU(.|\n)*spawn"):
            open_device(resolve_target(target))


def test_a_containers_limit_counts(monkeypatch):
    machine_has = {"SC_PHYS_PAGES": 250, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(doctor.os, "sysconf", machine_has.__getitem__)
    for limit, total in ((512000, 512000), (2048000, 1024000), (None, 1024000)):
        monkeypatch.setattr(cgroup, "memory_limit", lambda limit=limit: limit)
        assert doctor.total_bytes() == total


def test_isa_and_name_are_read_off_cpuinfo(monkeypatch):
    lines = ["model name\t: Some CPU\n", "flags\t: fpu avx avx2 fma avx512f amx_bf16 movbe\n"]
    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", lambda path: nullcontext(lines))
        has = cpu.instruction_sets()
        assert has == ("amx_bf16", "avx", "avx2", "avx512f", "fma", "movbe")
        patched.setattr(machine.Path, "read_text", lambda path: "".join(lines))
        assert machine.cpu_name() == "Some CPU"
    monkeypatch.setattr(cpu, "instruction_sets", lambda: has)
    assert doctor.collect()["cpu"]["isa"] == ["avx", "fma", "avx2", "avx512f", "amx_bf16"]
