"""Times that can be trusted: candidates in turn, round after round, on data that no cache holds."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..codegen.backend import COUNTERS
from ..codegen.loops import LoopKernel
from ..codegen.templates import template_with
from ..ir.dim import evaluate
from ..ir.program import Program
from ..ir.target import Target
from ..runtime.cpu import CpuDevice, usable_cores
from ..runtime.cuda import CudaDevice
from ..runtime.device import Device, Launch, LaunchPlan, Memory, Module
from ..runtime.fixed_run import SharedMemory
from .bucket_sizes import Sizes
from .candidate import CompiledCandidate
from .check import expected, poison, why_wrong
from .data import Data, make_data

ROTATED = {
    "cpu": 64 << 20,
    "cuda": 256 << 20,
}  # bytes that buffers take turns over: more than caches
MOST_COPIES = 16
LEAST_SECONDS = 2e-3  # of one measurement: long beside what starting and waiting for it takes
MOST_SECONDS = 1e-2  # up to which it goes over all sets of buffers
MOST_LAUNCHES = 4096  # in one measurement
OUTLIER = 4.0  # times the spread that a measurement may be off the median
TIE = 1.03  # times the least that count as equally fast
SURE = 2.0  # times its error that a time may be off


# ---- what many measurements say ----------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Typical seconds, and by how much they may be wrong."""

    seconds: float
    error: float


def settled(rounds: np.ndarray) -> list[Timing]:
    """Of seconds [candidates, rounds], a round's measured in turn: the medians, a candidate each.

    A round in which most were slower than usual is made as fast as the others; measurements far
    from a candidate's median are left out. The error is that of a median of normal numbers,
    1.25 s / sqrt(n).
    """
    usual = rounds / np.median(rounds, axis=1, keepdims=True)
    even = rounds / np.median(usual, axis=0) if len(rounds) > 2 else rounds
    made = []
    for row in even:
        off = np.abs(row - np.median(row))
        spread = 1.4826 * np.median(off)  # of normal numbers, their standard deviation
        kept = row[off <= OUTLIER * spread] if spread else row[off == 0]
        made.append(Timing(float(np.median(kept)), 1.25 * spread / len(kept) ** 0.5))
    return made


def fastest(timings: Sequence[Timing]) -> int:
    """The first that may be within the tie band of the least: the order decides among equals.

    The less certain the times are, the more of them count as equal.
    """
    most = TIE * min(timing.seconds + SURE * timing.error for timing in timings)
    return next(i for i, t in enumerate(timings) if t.seconds - SURE * t.error <= most)


def is_decided(timings: Sequence[Timing]) -> bool:
    """Whether more rounds would hardly change which is `fastest`.

    That is so when each up to it is clearly inside the band or outside.
    """
    least = min(timings, key=lambda timing: timing.seconds)
    edge = TIE * least.seconds
    return all(
        abs(timing.seconds - edge) > SURE * (timing.error + TIE * least.error)
        for timing in timings[: fastest(timings) + 1]
    )


# ---- measuring ---------------------------------------------------------------------------------


def open_device(name: str) -> Device:
    """The device of a name as in `Device.name`; a CPU's kernels run on all its cores."""
    if name == "cpu":
        return CpuDevice(usable_cores())
    return CudaDevice(int(name.removeprefix("cuda:")))


class Meter:
    """Runs candidates for one kernel on a device; meant for a process of its own."""

    def __init__(self, device: str):
        self.device = open_device(device)
        self.places: list[_Place] = []
        self.loaded: dict[int, list[_Loaded]] = {}

    def prepare(
        self, kernel: LoopKernel, target: Target, sizes: Sequence[Sizes], seed: int
    ) -> None:
        """Begin with another kernel, at these sizes."""
        self.loaded, self.places = {}, []
        self.kernel, self.target = kernel, target
        self.places = [_Place(self.device, kernel, s, seed) for s in sizes]

    def load(self, number: int, built: CompiledCandidate) -> None:
        """Make a candidate ready, under a number."""
        program = Program(
            "tune", self.target.name, {}, {}, (), (), built.kernels, (), 0, built.blobs
        )  # fmt: skip
        module = self.device.load(program)
        self.loaded[number] = [_Loaded(self.device, module, built, place) for place in self.places]

    def check(self, number: int) -> str | None:
        """What is wrong with a candidate's results at some size; 0 is the default schedule."""
        for place, loaded in zip(self.places, self.loaded[number]):
            found = place.results(loaded)
            usual = place.default if number else None
            wrong = why_wrong(self.kernel, found, usual, place.reference)
            if wrong is not None:
                return f"{wrong} at {place.sizes}"
            if not number:
                place.default = found
        return None

    def time(self, numbers: Sequence[int], rounds: int) -> list[list[list[float]]]:
        """Seconds of one run of each candidate: [size][candidate][round]."""
        made = []
        for at, place in enumerate(self.places):
            runs = [self.loaded[number][at].timed(place) for number in numbers]
            times: list[list[float]] = [[] for _ in runs]
            for turn in range(rounds):
                for i in (*range(turn % len(runs), len(runs)), *range(turn % len(runs))):
                    runs[i]()  # what ran before may still be on its way to sleep
                    self.device.synchronize()
                    start = time.perf_counter()
                    runs[i]()
                    self.device.synchronize()
                    times[i].append((time.perf_counter() - start) / place.launches)
            made.append(times)
        return made


class _Place:
    """A kernel's data at some sizes, as often as it takes that no cache holds it."""

    def __init__(self, device: Device, kernel: LoopKernel, sizes: Sizes, seed: int):
        self.device, self.kernel, self.sizes = device, kernel, sizes
        rng = np.random.default_rng(seed)
        self.data: Data = make_data(kernel, sizes, rng)
        self.reference = expected(kernel, self.data, sizes, rng)
        poison(kernel, self.data)
        self.default: list[np.ndarray] | None = None
        nbytes = sum(array.nbytes for array in self.data.stored)
        copies = min(-(-ROTATED[device.kind] // max(nbytes, 1)), MOST_COPIES)
        if nbytes * copies > device.free_bytes() // 2:
            copies = 1
        self.sets = [self._placed() for _ in range(copies)]
        self.spaces: dict[str, SharedMemory] = {}
        self.launches = self.used = 0  # in one measurement, over so many of the sets

    def _placed(self) -> list[Memory]:
        made = []
        for array in self.data.stored:
            memory = self.device.allocate(max(array.nbytes, 1), "data to tune on")
            self.device.upload(memory, np.ascontiguousarray(array))
            made.append(memory)
        return made

    def space(self, label: str, nbytes: int) -> Memory:
        """A workspace, which all candidates share: one runs at a time. Counters begin as zeros."""
        if label == COUNTERS:
            return self.device.allocate(nbytes, "counters", zero=True)
        return self.spaces.setdefault(label, SharedMemory(self.device)).take(nbytes, "workspace")

    def results(self, loaded: "_Loaded") -> list[np.ndarray]:
        """What the written parameters hold after one run, flat; each starts as it was made."""
        written = [n for n, p in enumerate(self.kernel.params) if p.is_written]
        for number in written:
            self.device.upload(self.sets[0][number], np.ascontiguousarray(self.data.stored[number]))
        loaded.run_once()
        self.device.synchronize()
        found = []
        for number in written:
            if number != self.kernel.records:
                array = np.empty_like(self.data.stored[number])
                self.device.download(self.sets[0][number], array)
                found.append(array.reshape(-1))
        return found


class _Loaded:
    """A candidate at one size: its launches over each set of buffers."""

    def __init__(self, device: Device, module: Module, built: CompiledCandidate, place: _Place):
        self.device, self.module = device, module
        self.spaces = {
            label: place.space(label, evaluate(type.nbytes, place.sizes))
            for label, type in built.launches.workspaces.items()
        }
        count = len(place.kernel.params)
        labels = {label: count + i for i, label in enumerate(self.spaces)}
        self.addresses = np.array(
            [m.address for own in place.sets for m in (*own, *self.spaces.values())], np.uint64
        )
        template = template_with(place.kernel.parts[0])
        traffic = evaluate(template.traffic(place.kernel), place.sizes)
        work = evaluate(sum(map(template.operations, place.kernel.parts)), place.sizes)
        self.one: list[Launch] = []
        for launch in built.launches.launches:
            (variant,) = launch.variants
            grid = tuple(evaluate(d, place.sizes) for d in variant.grid)
            if 0 not in grid:
                buffers = tuple(p if isinstance(p, int) else labels[p] for p in variant.params)
                dims = tuple(evaluate(d, place.sizes) for d in variant.dims)
                kernel = built.kernels[variant.kernel]
                self.one.append(Launch(0, kernel, buffers, dims, grid, traffic, work))
        self.step = count + len(self.spaces)
        self.many: Callable[[], None] | None = None

    def _plan(self, times: int, sets: int) -> LaunchPlan:
        made = [
            replace(launch, buffers=tuple(b + turn % sets * self.step for b in launch.buffers))
            for turn in range(times)
            for launch in self.one
        ]
        return self.module.plan(made)

    def run_once(self) -> None:
        """On the first set of buffers."""
        self._plan(1, 1).run(self.addresses)

    def timed(self, place: _Place) -> Callable[[], None]:
        """A function that runs it `place.launches` times, over sets of buffers in turn.

        The first that is asked for decides how often that is, and over how many sets.
        """
        if not place.launches:
            run = self._made(self._plan(1, 1))
            run()
            self.device.synchronize()
            start = time.perf_counter()
            run()
            self.device.synchronize()
            each = max(time.perf_counter() - start, 1e-7)
            place.used = min(len(place.sets), max(int(MOST_SECONDS / each), 2))
            turns = min(int(LEAST_SECONDS / each), MOST_LAUNCHES) // place.used
            place.launches = place.used * max(turns, 1)
        if self.many is None:
            self.many = self._made(self._plan(place.launches, place.used))
        return self.many

    def _made(self, plan: LaunchPlan) -> Callable[[], None]:
        captured = plan.capture(self.addresses)
        return (lambda: plan.run(self.addresses)) if captured is None else captured
