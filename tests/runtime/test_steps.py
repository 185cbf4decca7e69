"""Steps of every kind, run on the CPU in programs written by hand."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from tilewright.codegen.cpp.binary import compile_library
from tilewright.ir.dim import Symbol
from tilewright.ir.errors import ArtifactError, DeviceError, DimError, ShapeError
from tilewright.ir.host_functions import register_function
from tilewright.ir.program import Buffer, Program
from tilewright.ir.steps import (
    Collective,
    Cond,
    Copy,
    HostCall,
    LibraryCall,
    ScanLoop,
)
from tilewright.ir.target import cpu
from tilewright.ir.types import bool_, f32
from tilewright.runtime.communicator import Single
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.executable import Executable
from tilewright.runtime.fixed_run import FixedRun
from tilewright.runtime.program_json import program_from_json, program_to_json

from .step_programs import (
    SOURCES,
    X_TO_Y,
    I,
    N,
    bind_program,
    cond_program,
    launch,
    make,
    nonzero_program,
    scan_program,
    while_program,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


@pytest.fixture(scope="module")
def library():
    kernels = [
        (
            name,
            f'#include "tw.h"\nextern "C" void {name}(TW_ARGS) {{ {body} }}\n'
            f'extern "C" void {name}_scratch(const int64_t*, int64_t, int64_t*) {{}}\n',
        )
        for name, body in SOURCES.items()
    ]
    return compile_library(kernels, cpu())


class Remote(CpuDevice):
    """Says that its memory is another device's: all that the host sees of it is copied."""

    name, dlpack_device = "remote", (2, 0)


class Stepwise(CpuDevice):
    """Whose plans hold launches alone, as a GPU's do: the interpreter runs what is around them."""

    def load(self, program):
        module = super().load(program)
        module.takes_blocks = False
        return module


DEVICES = [CpuDevice, Stepwise, Remote]


def executable(program: Program, device=CpuDevice, **options) -> Executable:
    """Through JSON and back, as an artifact has it."""
    data = json.loads(json.dumps(program_to_json(program)))
    read = program_from_json(data, program.blobs, lambda name: "")
    assert read.steps == program.steps
    return Executable(read, {}, device(), **options)


def floats(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_copy_between_offsets(library, device):
    steps = [
        Copy("first", "x", "y", 8, source_offset=4 * N - 8),
        Copy("rest", "x", "y", 4 * N - 8, target_offset=8),
    ]
    exe = executable(make(library, X_TO_Y, steps), device)
    np.testing.assert_array_equal(exe(floats(1, 2, 3, 4, 5))[0].numpy(), [4, 5, 1, 2, 3])
    with pytest.raises(ArtifactError, match=r"copies what is outside(.|\n)*8 bytes from -4 of 4"):
        exe(floats(1))


@pytest.mark.parametrize("device", DEVICES)
def test_a_host_call_gets_and_returns_arrays(library, device):
    seen = []

    def double(x):
        seen.append(x)
        x[:] *= 2  # its own copy
        return x

    register_function("test.double", double)
    steps = [HostCall("call", "test.double", ("x",), ("y",))]
    exe, x = executable(make(library, X_TO_Y, steps), device), floats(1, 2, 3)
    np.testing.assert_array_equal(exe(x)[0].numpy(), [2, 4, 6])
    np.testing.assert_array_equal(x, [1, 2, 3])
    assert seen[0].flags.writeable
    prepared = FixedRun(exe, [(2,)])
    prepared.run({"x": floats(5, 6)})
    np.testing.assert_array_equal(prepared.output(0), [10, 12])


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        (lambda x: (x, x), ShapeError, "returned 2 arrays, declared are 1"),
        (
            lambda x: x.astype(np.float64),
            ShapeError,
            r"result 0 is float64\[3\], declared f32\[n\]",
        ),
        (lambda x: x[None], ShapeError, r"result 0 is float32\[1, 3\]"),
        (lambda x: x[:2], DimError, r"y axis 0 is 2, must be 3 \(n\)"),
        (lambda x: x[7], IndexError, "out of bounds"),
    ],
)
def test_what_a_host_call_returns_is_checked(library, function, error, says):
    register_function("test.wrong", function)
    steps = [HostCall("call", "test.wrong", ("x",), ("y",))]
    with pytest.raises(error, match=says):
        executable(make(library, X_TO_Y, steps))(floats(1, 2, 3))


def test_functions_and_routines_must_be_there(library):
    calls = [HostCall("a", "test.gone", ("x",), ("y",)), HostCall("b", "more", ("x",), ("y",))]
    with pytest.raises(DeviceError, match=r"calls 2 functions(.|\n)*test.gone\n.*more"):
        executable(make(library, X_TO_Y, calls))
    with pytest.raises(DeviceError, match=r"library routines(.|\n)*blas.gone"):
        executable(make(library, X_TO_Y, [LibraryCall("a", "blas.gone", ("x",), ("y",))]))


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_binds_a_size(library, rng, device):
    exe = executable(nonzero_program(library), device)
    for count in (7, 0, 100, 7):
        x = np.zeros(100, np.float32)
        where = np.sort(rng.choice(100, count, replace=False))
        x[where] = 1
        y, again = exe(x)
        np.testing.assert_array_equal(y.numpy(), where + count)
        assert y.shape == (count,)
        np.testing.assert_array_equal(again.numpy(), y.numpy())
    for use in (
        lambda: exe(x, out=[y, y]),
        lambda: exe.output_types([(100,)]),
        lambda: FixedRun(exe, [(100,)]),
    ):
        with pytest.raises(DimError, match="only a run says how large y, y is"):
            use()
    narrow = replace(exe.program, symbols={**exe.program.symbols, "u": Symbol("u", 0, 3)})
    with pytest.raises(DimError, match=r"dim u \(at axis 0\) is 7, its range is \[0, 3\]"):
        executable(narrow, device)(x)


@pytest.mark.parametrize("device", DEVICES)
def test_a_size_is_what_was_computed(library, device):
    exe, x = executable(bind_program(library), device), floats(1, 2, 3, 4)
    for count in (2, 0, 3):
        np.testing.assert_array_equal(exe(x, np.array(count))[0].numpy(), x[: count + 1])
    with pytest.raises(DimError, match=r"outside its declared range(.|\n)*is -4, its range is \[0"):
        exe(x, np.array(-5))
    with pytest.raises(ArtifactError, match="copies what is outside"):
        exe(x, np.array(4))


@pytest.mark.parametrize("device", DEVICES)
def test_cond_runs_one_of_two(library, device):
    exe, x = executable(cond_program(library), device), floats(1, 2, 3)
    np.testing.assert_array_equal(exe(np.array(True), x)[0].numpy(), 2 * x)
    np.testing.assert_array_equal(exe(np.array(False), x)[0].numpy(), x)


@pytest.mark.parametrize("device", DEVICES)
def test_while_runs_until_its_test_says_no(library, device):
    exe = executable(while_program(library), device)
    for x, limit, expected in [(1, 100, 128), (3, 3, 3), (3, 4, 6)]:
        assert exe(np.array(x, np.float32), np.array(limit, np.float32))[0].numpy() == expected


@pytest.mark.parametrize("device", DEVICES)
def test_scan_carries_and_stacks(library, rng, device):
    exe = executable(scan_program(library), device)
    for n in (0, 1, 5):
        x = rng.integers(0, 9, (n, 2)).astype(np.float32)
        last, y = exe(np.zeros(2, np.float32), x)
        np.testing.assert_array_equal(y.numpy(), np.cumsum(x, 0))
        np.testing.assert_array_equal(last.numpy(), x.sum(0))


@pytest.mark.parametrize("work", [0, 1 << 23])
@pytest.mark.parametrize("device", DEVICES)
def test_a_branch_in_a_loop(library, rng, device, work):
    """Each number of x, or twice it where it is not below the limit; by one thread, or by all."""
    buffers = {
        "x": ((N,), f32, "input"), "limit": ((1,), f32, "input"), "y": ((N,), f32, "output"),
        "one": ((1,), f32, 0), "two": ((1,), f32, 64), "below": ((1,), bool_, 128),
    }  # fmt: skip
    test = replace(launch("less", "one", "limit", "below", writes="below"), traffic=work)
    twice = replace(launch("add", "one", "one", "two", 1, writes="two"), traffic=work)
    body = (
        Copy("slice", "x", "one", 4, source_offset=4 * I),
        test,
        Cond(
            "if",
            "below",
            (Copy("once", "one", "y", 4, target_offset=4 * I),),
            (twice, Copy("twice", "two", "y", 4, target_offset=4 * I)),
        ),
    )
    exe = executable(
        make(library, buffers, [ScanLoop("all", "i", N, body)], inputs="x limit"), device
    )
    for n in (0, 1, 50):
        x = rng.integers(0, 9, n).astype(np.float32)
        np.testing.assert_array_equal(exe(x, floats(5))[0].numpy(), np.where(x < 5, x, 2 * x))


def test_profile_adds_up_what_repeats(library):
    exe = executable(scan_program(library))
    profile = exe.profile(np.zeros(2, np.float32), np.ones((5, 2), np.float32), repeats=3)
    names = [step.name for step in profile.steps]
    assert names == ["begin", "slice", "add sum", "carry", "stack"]
    assert all(step.seconds > 0 for step in profile.steps)
    assert {step.template for step in profile.steps} == {"Copy", "pointwise"}


def test_a_group_of_one(library):
    for operation in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        program = make(library, X_TO_Y, [Collective("all", operation, "tp", "x", "y")])
        exe = executable(program, communicators={"tp": Single()})
        np.testing.assert_array_equal(exe(floats(1, 2))[0].numpy(), [1, 2])
    with pytest.raises(DeviceError, match=r"1 groups of processes(.|\n)*tp"):
        executable(program)


@pytest.mark.parametrize(
    ("make_program", "change", "says"),
    [
        (cond_program, lambda s: [replace(s[0], otherwise=())], "output y is written by no step"),
        (cond_program, lambda s: [replace(s[0], predicate="x")], r"asks x, which is f32\[n\]"),
        (cond_program, lambda s: [replace(s[0], predicate="q")], "asks q, and there is no such"),
        (while_program, lambda s: [replace(s[1], test=()), s[0]], "reads y, which no step before"),
        (while_program, lambda s: [s[0], replace(s[1], test=())], "asks go, which its test does"),
        (
            scan_program,
            lambda s: [s[0], replace(s[1], body=s[1].body[1:])],
            "reads row, which no step before it writes",
        ),
        (
            scan_program,
            lambda s: [s[0], s[1].body[0], s[1]],
            "needs dim i, which no step before it binds",
        ),
        (scan_program, lambda s: [s[0], s[1], s[1]], "dim i is bound by two steps"),
        (scan_program, lambda s: [s[0], replace(s[1], index="k")], "counter k is not declared"),
        (bind_program, lambda s: [*s[:1], *s[2:], s[1]], "needs dim u, which no step before it"),
        (bind_program, lambda s: [*s[:1], replace(s[1], source="x"), s[2]], "reads a size from x"),
        (nonzero_program, lambda s: [s[1], s[0]], "needs dim u, which no step before it binds"),
        (nonzero_program, lambda s: [replace(s[0], bound=("v",))], "binds v, which is not decl"),
        (
            nonzero_program,
            lambda s: [replace(s[0], bound=())],
            "temporary buffer at has no offset in the arena",
        ),
    ],
)
def test_programs_that_are_not_whole_are_refused(library, make_program, change, says):
    program = make_program(library)
    with pytest.raises(ArtifactError, match=says):
        executable(replace(program, steps=tuple(change(program.steps))))


def doubles_until_5(program, error):
    exe, limits = executable(program), (np.array(1, np.float32), np.array(5, np.float32))
    with pytest.raises(ArtifactError, match=error) if error else nullcontext():
        assert exe(*limits)[0].numpy() == 8


@pytest.mark.parametrize(("place", "fits"), [(128, True), (0, False)])
def test_what_a_loop_asks_is_kept_until_its_test_has_run(library, place, fits):
    program = while_program(library)
    seen = Buffer("seen", program.buffers["limit"].type, "temp", place)
    begin, loop = program.steps
    loop = replace(loop, test=(*loop.test, Copy("see", "limit", "seen", 4)))
    program = replace(program, buffers={**program.buffers, "seen": seen}, steps=(begin, loop))
    doubles_until_5(program, None if fits else "go at 0 to 1 and seen at 0 to 4 are in use")


@pytest.mark.parametrize(("place", "fits"), [(64, True), (128, False)])
def test_what_a_loop_carries_is_kept_apart(library, place, fits):
    """Memory of one iteration may be used again in it; that of a carried value may not."""
    program = while_program(library)
    type = program.buffers["y"].type
    carry, out = Buffer("y", type, "temp", 128), Buffer("out", type, "output")
    twice = Buffer("twice", type, "temp", place)
    moved = {**program.buffers, "y": carry, "out": out, "twice": twice}
    steps = (*program.steps, Copy("end", "y", "out", 4))
    program = replace(program, buffers=moved, outputs=("out",), steps=steps)
    doubles_until_5(program, None if fits else "in use at the same time")
