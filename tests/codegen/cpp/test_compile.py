"""The library as a whole: exports, errors of the compiler, other instruction sets, concurrency."""

import ctypes
import re
import shutil
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tilewright.codegen.cpp.binary import compile_library, find_compiler, group_sources
from tilewright.codegen.cpp.emit import emit_kernel
from tilewright.codegen.loops import Axis, Load, LoopKernel, Param, Pointwise, Store
from tilewright.ir import abi, switches
from tilewright.ir.dim import symbol
from tilewright.ir.errors import BuildError, OptionError
from tilewright.ir.target import cpu
from tilewright.ir.types import DTYPES, TensorType, bool_, f32

from ..triton import samples
from .harness import Library, TwStep

n, i = symbol("n"), symbol("i")


def copy(dtype=f32) -> LoopKernel:
    t = TensorType((n,), dtype)
    part = Pointwise((Axis("i", n),), (Store(1, i, Load(0, i, dtype)),))
    return LoopKernel((Param(t, False), Param(t, True)), (part,), ("n",), "pointwise")


CASES = {
    "linear": samples.linear(20, n=100, k=600), "softmax": samples.norm("softmax", t=9, width=700),
    "attention": samples.attention([5, 1, 300], [7, 900, 310], size=20, window=40, softcap=5.0),
    "reductions": samples.reductions(), "rope": samples.rope_append(),
}  # fmt: skip


@pytest.fixture(scope="module")
def library():
    return Library({"first": copy(), "second": copy(), **{k: c.kernel for k, c in CASES.items()}})


def test_the_library_describes_itself(library):
    so = library.so
    assert so.tw_abi_version() == abi.VERSION
    assert so.tw_runs_here() == 1
    assert so.tw_num_kernels() == 7
    names = [so.tw_kernel_name(k).decode() for k in range(7)]
    assert names == list(library.kernels)
    assert [so.tw_kernel_index(name.encode()) for name in names] == list(range(7))
    assert so.tw_kernel_index(b"third") == -1
    assert so.tw_kernel_name(7) is None


def test_steps_run_in_order_with_a_barrier_and_are_timed(library):
    arrays = [np.zeros(100_000, np.float32) for _ in range(4)]
    arrays[0][:] = np.arange(100_000)
    made = [library.step("first", arrays[k : k + 2], {"n": 100_000}) for k in range(3)]
    steps = (TwStep * 3)(*(step for step, _ in made))
    times = np.zeros(3, np.int64)
    at = times.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
    assert library.so.tw_run(steps, ctypes.c_int64(3), 3, at) == abi.OK
    np.testing.assert_array_equal(arrays[3], arrays[0])
    assert (times > 0).all()


def test_a_step_outside_the_table_is_refused_before_anything_runs(library):
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    good, keep = library.step("first", [x, y], {"n": 4})
    bad = TwStep(99, 0, good.p, good.d)
    steps = (TwStep * 2)(good, bad)
    assert library.so.tw_run(steps, ctypes.c_int64(2), 1, None) == abi.BAD_STEP
    assert library.so.tw_scratch_bytes(steps, ctypes.c_int64(2), 1) == -1
    assert not y.any()
    del keep


def test_no_steps_is_fine(library):
    assert library.so.tw_run(None, ctypes.c_int64(0), 2, None) == abi.OK


def test_two_callers_at_once(library):
    case = CASES["linear"]
    results: list[bytes] = []

    def work():
        for _ in range(20):
            got = [a.copy() for a in case.arrays]
            library.run("linear", got, case.sizes, 2)
            results.append(got[case.written()[0]].tobytes())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 60
    assert len(set(results)) == 1


@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64"])
def test_narrower_vectors_compute_the_same(march):
    """AVX2 runs the 8-lane code, plain x86-64 the 4-lane code that NEON runs too."""
    flags = Path("/proc/cpuinfo").read_text()
    if "x86" not in march or "avx2" not in flags:
        pytest.skip("no x86 processor with AVX2")
    narrow = Library({k: c.kernel for k, c in CASES.items()}, cpu(march))
    for name, case in CASES.items():
        narrow.check_case(name, case)


# ---- errors --------------------------------------------------------------------------------------


def test_no_compiler_says_what_was_looked_for(monkeypatch, tmp_path):
    with switches.switches(cxx="no-such-compiler"), pytest.raises(BuildError) as error:
        find_compiler()
    assert "no C++ compiler 'no-such-compiler'" in str(error.value)
    assert "TILEWRIGHT_CXX" in str(error.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        BuildError, match=r"no C\+\+ compiler\n  looked for g\+\+, clang\+\+, c\+\+"
    ):
        find_compiler()


def test_the_switch_chooses_the_compiler(tmp_path):
    log = tmp_path / "log"
    script = tmp_path / "mycxx"
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {find_compiler()[0]} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    with switches.switches(cxx=str(script)):
        compile_library([("k", emit_kernel(copy(), "k", cpu()))], cpu("x86-64-v3"))
    assert "-march=x86-64-v3" in log.read_text()


def test_a_file_is_compiled_once_a_process(tmp_path, monkeypatch):
    """The same text with the same flags; but for those that were used least recently."""
    log = tmp_path / "log"
    script = tmp_path / "mycxx"
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {find_compiler()[0]} "$@"\n')
    script.chmod(0o755)

    def compiled(name, march):
        log.write_text("")
        target = cpu(march)
        with switches.switches(cxx=str(script)):
            library = compile_library([(name, emit_kernel(copy(), name, target))], target)
        assert library[:4] == b"\x7fELF"
        return set(re.findall(r"-c (\S+)\.cpp", log.read_text())), library

    every = {"micro", "driver", "table"}
    files, first = compiled("k", "x86-64-v2")
    assert files == {*every, "k"}
    assert compiled("k", "x86-64-v2") == (set(), first)
    assert compiled("other", "x86-64-v2")[0] == {"table", "other"}
    monkeypatch.setattr("tilewright.codegen.cpp.binary.MAX_OBJECTS", 4)
    assert compiled("k", "x86-64")[0] == {*every, "k"}
    assert compiled("k", "x86-64")[0] == set()
    assert compiled("k", "x86-64-v2")[0] == {*every, "k"}


def test_a_launcher_may_stand_before_the_compiler(tmp_path):
    log = tmp_path / "log"
    launcher = tmp_path / "my launcher"
    launcher.write_text(f'#!/bin/sh\necho "$1" >> {log}\nexec "$@"\n')
    launcher.chmod(0o755)
    (compiler,) = find_compiler()
    with switches.switches(cxx=f"'{launcher}' {compiler} -DOWN_FLAG=1"):
        assert find_compiler() == (str(launcher), compiler, "-DOWN_FLAG=1")
        source = "#ifndef OWN_FLAG\n#error without the flag\n#endif\n"
        compile_library([("k", source + emit_kernel(copy(), "k", cpu()))], cpu("x86-64-v3"))
    assert set(log.read_text().splitlines()) == {compiler}
    with switches.switches(cxx="ccache 'g++"), pytest.raises(OptionError, match="No closing quot"):
        find_compiler()
    with switches.switches(cxx="no-such-launcher g++"), pytest.raises(BuildError) as error:
        find_compiler()
    assert "no C++ compiler 'no-such-launcher g++'\n  looked for no-such-launcher on" in str(
        error.value
    )


def test_a_failure_keeps_the_sources_and_shows_the_compilers_words():
    with pytest.raises(BuildError) as error:
        compile_library([("broken", '#include "tw.h"\nint broken = nonsense;\n')], cpu())
    text = str(error.value)
    assert "the C++ compiler failed on broken.cpp" in text
    assert "'nonsense' was not declared" in text.replace("‘", "'").replace("’", "'")
    (path,) = re.findall(r"at (/\S+/broken\.cpp)", text)
    assert "nonsense" in Path(path).read_text()
    assert f"run it again in {Path(path).parent}" in text
    shutil.rmtree(Path(path).parent)


def test_an_interrupt_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewright.codegen.cpp.binary._run_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_library([("k", "")], cpu())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", None)


def test_one_failure_ends_the_other_compilers(tmp_path, monkeypatch):
    """Nothing of a build outlives it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\ncase "$*" in *broken*) exit 3;; *) exec sleep 600;; esac\n')
    slow.chmod(slow.stat().st_mode | stat.S_IEXEC)
    start = time.monotonic()
    with switches.switches(cxx=str(slow)), pytest.raises(BuildError, match="ended with 3"):
        compile_library([("broken", "x" * 99_999)], cpu())
    assert time.monotonic() - start < 300  # nobody waited for the other compiler
    monkeypatch.setattr("tempfile.tempdir", None)


def test_every_dtype_is_copied():
    whole = {name: dtype for name, dtype in DTYPES.items() if not dtype.is_packed}
    library = Library({f"copy_{name}": copy(dtype) for name, dtype in whole.items()})
    for name, dtype in whole.items():
        source = np.arange(256, dtype=np.uint8).repeat(dtype.nbytes).view(dtype.numpy)
        source = source.view(np.uint8) % 2 == 1 if dtype is bool_ else source
        target = np.zeros_like(source)
        library.run(f"copy_{name}", [source, target], {"n": len(source)})
        number = source == source
        assert ((target != target) == ~number).all(), name
        assert (target[number] == source[number]).all(), name


def test_what_has_no_cpp_form_is_named():
    with pytest.raises(BuildError, match="is not a name for a kernel"):
        emit_kernel(copy(), "a b", cpu())


def test_small_kernels_share_a_file():
    units = group_sources([(f"k{k}", "x" * 100) for k in range(50)], cores=2)
    assert len(units) == 4
    assert sorted(name for unit in units for name, _ in unit) == sorted(f"k{k}" for k in range(50))
    large = group_sources([(f"k{k}", "x" * 50_000) for k in range(9)], cores=2)
    assert len(large) == 9
