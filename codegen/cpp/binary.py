"""C++ sources -> one shared library, by the system's compiler."""

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from ...ir import abi, switches
from ...ir.errors import BuildError, OptionError
from ...ir.progress import Progress, unwatched
from ...ir.target import Target
from ..scratch import scratch_folder
from .tables import kernel_table, turns_table

_HERE = Path(__file__).resolve().parent
# The same in every library. The inner loops of contractions and attention are formulas of ours,
# written with vectors: the compiler makes fused operations of them.
_SUPPORT = {
    "driver.cpp": (),
    "micro.cpp": ("-ffp-contract=fast",),
    "micro_pairs.cpp": (),
    "micro_bytes.cpp": (),
}
# those that only some libraries need
_WHERE_READ = {"micro_pairs.cpp": "tw_micro_i", "micro_bytes.cpp": "tw_micro_u"}
ELF = b"\x7fELF"  # how a shared library begins
LIMIT_SECONDS = 900  # for one file, which takes seconds: a compiler that hangs is ended
MAX_OBJECTS = 64  # compiled files that the process keeps
UNIT_LENGTH = 24_000  # characters of generated source that are compiled as one file
_CANDIDATES = ("g++", "clang++", "c++")
# NaN, infinities, signed zeros, the order of sums and every rounding are kept: a * b + c is two
# operations unless the source says tw_fma. No code relies on floating point exceptions.
FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-fopenmp-simd", "-fwrapv", "-fno-math-errno",
    "-fno-trapping-math", "-ffp-contract=off", "-fvisibility=hidden", "-fno-exceptions",
    "-fno-rtti", "-fno-semantic-interposition", "-fno-plt", "-w",
)  # fmt: skip


def find_compiler() -> tuple[str, ...]:
    """The words that start the C++ compiler: the switch `cxx`, else the first of g++, clang++, c++.

    The switch is split as a shell would, so that a launcher may stand first: `ccache g++`.
    """
    wanted = switches.get("cxx")
    for command in (split_command(wanted),) if wanted else ((name,) for name in _CANDIDATES):
        path = shutil.which(command[0])
        if path:
            return os.path.abspath(path), *command[1:]  # it is started in another folder
    looked_for = split_command(wanted)[0] if wanted else ", ".join(_CANDIDATES)
    raise BuildError(
        f"no C++ compiler {wanted!r}" if wanted else "no C++ compiler",
        facts=f"looked for {looked_for} on PATH",
        fix="install one (Debian: apt-get install g++), or name one with TILEWRIGHT_CXX",
    )


def split_command(text: str) -> tuple[str, ...]:
    """The words of a command, one at least. OptionError when quotes are not closed."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise OptionError(
            f"TILEWRIGHT_CXX={text!r} is no command",
            facts=str(error),
            fix="quote it as for a shell: TILEWRIGHT_CXX='ccache g++'",
        ) from None
    return words or (text,)


def flags_for(target: Target) -> tuple[str, ...]:
    """What the compiler is told for `target`: part of what decides the code."""
    march = target.march or "native"
    wide = ("-mprefer-vector-width=512",) if _has_avx512(march) else ()
    names = ("NO_MEMORY", "BAD_STEP", "COPY", "REPEAT", "CHOOSE")
    numbers = {"ABI_VERSION": abi.VERSION, **{name: getattr(abi, name) for name in names}}
    return (*FLAGS, f"-march={march}", *wide, *(f"-DTW_{n}={v}" for n, v in numbers.items()))


def compile_library(
    sources: Sequence[tuple[str, str]], target: Target, progress: Progress = unwatched
) -> bytes:
    """The bytes of a shared library with the kernels `sources`, (name, source) each.

    A kernel's index at run time is its place in `sources`. `progress` hears of each file that is
    finished. On failure the sources are kept and BuildError says where, with the compiler's words.
    """
    compiler, flags = find_compiler(), flags_for(target)
    with scratch_folder() as folder:
        units = _written(folder, sources)
        jobs = []
        for unit in units:
            wanted = (*flags, *_SUPPORT.get(unit.name, ()))
            jobs.append((unit, [*compiler, *wanted, "-c", unit.name, "-o", f"{unit.stem}.o"]))
        made = {unit.with_suffix(".o"): _identity(unit, command) for unit, command in jobs}
        for file, name in made.items():
            if (content := _objects.get(name)) is not None:
                file.write_bytes(content)
        jobs = [job for job in jobs if not job[0].with_suffix(".o").is_file()]
        files = len(made) + 1  # and the library
        known = len(made) - len(jobs)
        _run_all(folder, jobs, lambda done: progress("compile", known + done, files))
        for file, name in made.items():
            if file.is_file():  # else linking says what is wrong
                _keep(name, file.read_bytes())
        library = folder / "library.so"
        objects = [f"{unit.stem}.o" for unit in units]
        link = [*compiler, *flags, "-pthread", "-shared", "-o", library.name, *objects, "-lm"]
        _Runner(folder).run(None, link)
        content = library.read_bytes() if library.is_file() else b""
        if content[:4] != ELF:
            made = f"{len(content)} bytes of something else" if library.is_file() else "none"
            raise BuildError(
                "the C++ compiler made no shared library",
                where=str(library),
                facts=f"{' '.join(compiler)} ended well, and of the library there is {made}",
                fix="name a C++ compiler that works with TILEWRIGHT_CXX",
            )
        progress("compile", files, files)
        return content


def _written(folder: Path, sources: Sequence[tuple[str, str]]) -> list[Path]:
    """The files to compile, in a folder with their headers."""
    for header in sorted(_HERE.glob("*.h")):
        shutil.copyfile(header, folder / header.name)
    text = "".join(source for _, source in sources)
    units = [folder / name for name in _SUPPORT if _WHERE_READ.get(name, "") in text]
    for unit in units:
        shutil.copyfile(_HERE / unit.name, unit)
    table = folder / "table.cpp"
    table.write_text(kernel_table([name for name, _ in sources]) + turns_table())
    units.append(table)
    for i, members in enumerate(group_sources(sources, len(os.sched_getaffinity(0)))):
        unit = folder / (f"{members[0][0]}.cpp" if len(members) == 1 else f"kernels_{i}.cpp")
        unit.write_text("\n".join(source for _, source in members))
        units.append(unit)
    return units


# What files were compiled to, by all that decides it; the one used least recently comes first. A
# part is the same in every library, and all is when a module is compiled again.
_objects: OrderedDict[str, bytes] = OrderedDict()


def _keep(name: str, content: bytes) -> None:
    _objects.pop(name, None)
    _objects[name] = content
    while len(_objects) > MAX_OBJECTS:
        _objects.popitem(last=False)


def _identity(unit: Path, command: Sequence[str]) -> str:
    """Hash of a source, of all headers beside it, and of the command."""
    digest = hashlib.sha256("\0".join(command).encode())
    for file in (unit, *sorted(unit.parent.glob("*.h"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def group_sources(sources: Sequence[tuple[str, str]], cores: int) -> list[list[tuple[str, str]]]:
    """Sources that are compiled as one file: starting a compiler costs as much as a small kernel.

    Enough files that all cores work to the end, of nearly equal length.
    """
    length = sum(len(source) for _, source in sources)
    count = min(len(sources), max(2 * cores, length // UNIT_LENGTH))
    units: list[list[tuple[str, str]]] = [[] for _ in range(count)]
    lengths = [0] * count
    for name, source in sorted(sources, key=lambda item: -len(item[1])):
        least = lengths.index(min(lengths))
        units[least].append((name, source))
        lengths[least] += len(source)
    return units


def _run_all(
    folder: Path, jobs: Sequence[tuple[Path, list[str]]], done: Callable[[int], None]
) -> None:
    """Run the commands side by side, the longest sources first; the first failure is raised.

    `done` hears how many have ended.
    """
    runner = _Runner(folder)
    ordered = sorted(jobs, key=lambda job: -job[0].stat().st_size)
    workers = max(1, min(len(os.sched_getaffinity(0)), len(jobs)))
    done(0)
    with ThreadPoolExecutor(workers) as pool:
        try:
            futures = [pool.submit(runner.run, *job) for job in ordered]
            for number, future in enumerate(as_completed(futures), 1):
                future.result()
                done(number)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            raise


class _Runner:
    """Runs compiler processes, and can end those that still run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.running: set[subprocess.Popen] = set()
        self.lock = threading.Lock()
        self.stopped = False

    def run(self, unit: Path | None, command: list[str]) -> None:
        """One command; BuildError with its output when it fails."""
        with self.lock:
            if self.stopped:
                return
            process = self._start(command)
            self.running.add(process)
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(process)
            output, _ = process.communicate()
            output = f"no end after {LIMIT_SECONDS} s\n{output}"
        finally:
            with self.lock:
                self.running.discard(process)
        if process.returncode and not self.stopped:
            source = unit or self.folder
            words = "\n".join(output.strip().splitlines()[:20]) or "it said nothing"
            code = process.returncode
            end = f"ended with {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            raise BuildError(
                f"the C++ compiler failed on {unit.name if unit else 'linking'}",
                where=str(source),
                facts=f"{' '.join(command[:1])} {end}:\n{words}",
                fix=f"run it again in {self.folder}: {' '.join(command)}",
            )

    def _start(self, command: list[str]) -> subprocess.Popen:
        try:
            # a session of its own, so that `stop` ends the compiler proper and not only its driver
            return subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                # its own temporary files go with the folder when it is ended in the middle
                env={**os.environ, "TMPDIR": str(self.folder)},
            )
        except OSError as error:
            raise BuildError(
                "the C++ compiler does not start",
                where=command[0],
                facts=str(error.strerror),
                fix="name one that does with TILEWRIGHT_CXX",
            ) from error

    def stop(self) -> None:
        """End what still runs."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                _kill(process)


def _kill(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):  # it has just ended by itself
        os.killpg(process.pid, signal.SIGKILL)


def _has_avx512(march: str) -> bool:
    if march == "native":
        try:
            return "avx512f" in Path("/proc/cpuinfo").read_text()
        except OSError:
            return False
    return march in ("x86-64-v4", "znver4", "znver5") or "avx512" in march
