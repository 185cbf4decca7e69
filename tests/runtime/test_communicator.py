"""Two processes that exchange arrays, alone and at the collective steps of a program."""

import multiprocessing
import traceback

import ml_dtypes
import numpy as np
import pytest

from tilewright.ir.dim import Symbol, symbol
from tilewright.ir.errors import ArtifactError, DeviceError, ShapeError
from tilewright.ir.program import Buffer, Program
from tilewright.ir.steps import Collective
from tilewright.ir.types import TensorType, f32
from tilewright.runtime.communicator import SLOT_BYTES, HostGroup, communicated
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.executable import Executable

CONTEXT = multiprocessing.get_context("spawn")


def run_in_two(work):
    """`work(communicator)` in two processes, this one being rank 0. -> what each returned."""
    group = HostGroup(2, CONTEXT, timeout=60)
    ours, theirs = CONTEXT.Pipe()
    other = CONTEXT.Process(target=_other, args=(work, group, theirs))
    other.start()
    try:
        first = work(group.member(0))
        second = ours.recv()
    finally:
        other.join(60)
    assert isinstance(second, dict), second
    return first, second


def _other(work, group, pipe):
    try:
        pipe.send(work(group.member(1)))
    except BaseException:
        pipe.send(traceback.format_exc())
        raise


def arrays_of(rank):
    rng = np.random.default_rng(rank)
    large = rng.integers(0, 99, (2, SLOT_BYTES)).astype(np.int16)  # in four pieces
    short = rng.standard_normal((4, 3)).astype(ml_dtypes.bfloat16)
    return {"large": large, "short": short, "float": short.astype(np.float32), "none": large[:0]}


def exchange(group):
    """Every operation on every array, and what is refused."""

    def made(operation, array, *more):
        return communicated(Collective("all", operation, "tp", "x", "y", *more), group, array)

    found = {}
    for name, array in arrays_of(group.rank).items():
        for reduction in ("sum", "max", "min"):
            found[name, reduction] = made("all_reduce", array, reduction)
            found[name, reduction, "piece"] = made("reduce_scatter", array, reduction)
        found[name, "all"] = made("all_gather", array)
        found[name, "root"] = made("broadcast", array, "sum", 1)
    with pytest.raises(ShapeError, match=r"different types(.|\n)*rank 1: float32\[3\]"):
        made("all_reduce", np.zeros(2 + group.rank, np.float32))
    with pytest.raises(ShapeError, match=r"its shape is \[3\], the group has 2"):
        made("reduce_scatter", np.zeros(3, np.float32))
    found["program"] = run_program(group)
    return found


N = symbol("n")


def gathered_program(size) -> Program:
    """y = all_gather(all_reduce(x)): [size * n]."""
    made = [
        Buffer("x", TensorType((N,), f32), "input"),
        Buffer("sum", TensorType((N,), f32), "temp", 0),
        Buffer("y", TensorType((size * N,), f32), "output"),
    ]
    steps = (
        Collective("add", "all_reduce", "tp", "x", "sum"),
        Collective("gather", "all_gather", "tp", "sum", "y"),
    )
    buffers = {b.name: b for b in made}
    symbols = {"n": Symbol("n")}
    return Program("p", "cpu", symbols, buffers, ("x",), ("y",), {}, steps, 4 * N, {})


def run_program(group):
    x = np.arange(3, dtype=np.float32) + 10 * group.rank
    wrong = Executable(gathered_program(3), {}, CpuDevice(), communicators={"tp": group})
    with pytest.raises(ArtifactError, match=r"does not fit the group(.|\n)*\[6\], y is \[9\]"):
        wrong(x)
    exe = Executable(gathered_program(2), {}, CpuDevice(), communicators={"tp": group})
    return exe(x)[0].numpy()


def test_two_processes_exchange_arrays():
    first, second = run_in_two(exchange)
    a, b = arrays_of(0), arrays_of(1)
    for name in a:
        for reduction, function in [("sum", np.add), ("max", np.maximum), ("min", np.minimum)]:
            wide = np.float32 if name == "short" else a[name].dtype
            expected = function(a[name].astype(wide), b[name].astype(wide)).astype(a[name].dtype)
            for found in (first, second):
                np.testing.assert_array_equal(found[name, reduction], expected)
            pieces = [found[name, reduction, "piece"] for found in (first, second)]
            np.testing.assert_array_equal(np.concatenate(pieces), expected)
        for found in (first, second):
            np.testing.assert_array_equal(found[name, "all"], np.concatenate([a[name], b[name]]))
            np.testing.assert_array_equal(found[name, "root"], b[name])
    for found in (first, second):
        np.testing.assert_array_equal(found["program"], [10, 12, 14] * 2)


def test_a_process_that_does_not_come_is_told():
    group = HostGroup(2, CONTEXT, timeout=0.1)
    with pytest.raises(DeviceError, match=r"did not come\n  at rank 0 of 2"):
        group.member(0).exchange(np.zeros(2))
    with pytest.raises(DeviceError, match="no rank 2"):
        group.member(2)
