"""How long the launches of a schedule take, from what they do: ranks schedules without a device.

The form is that of a roofline (Williams, Waterman and Patterson, 2009) whose roofs are lowered by
what keeps a device from them: programs that leave cores idle in the last wave, too few bytes under
way to hide the way to memory (Little's law), tiles too small for the matrix unit, and turns that
wait. The numbers were fitted to measurements by benchmarks/fit_model.py.
"""

from dataclasses import dataclass
from math import hypot

from ..codegen.templates.template import Schedule
from ..ir.target import Target
from .kernel_facts import KernelFacts, LaunchWork, is_legal
from .work import works

LANES = 128  # of a GPU core that make an operation each at a time


@dataclass(frozen=True)
class Coefficients:
    """Of one kind of device. Rates are shares of the target's own."""

    launch: float  # seconds
    turn: float  # seconds that a turn of a program waits, however little it moves
    latency: float  # seconds from asking memory to having
    memory: float  # share of the bandwidth that is reached at best
    cache: float  # bandwidth of the cache over that of memory
    products: float  # share of the rate of matrix units that is reached at best
    copied: float  # the same where operands come as whole tiles
    plain: float  # share of that of other arithmetic
    tiles: float  # the same of tiles of products without a matrix unit
    side: float  # rows of a tile with which matrix units reach half of their rate
    hiding: float  # how well programs of a core and stages of a program hide each other's waits
    program: float  # seconds that a program takes besides
    load: float  # seconds from one read of a thread to its next
    sum: float  # seconds that joining a sum of all threads takes, more the more warps they are


FITTED = {
    "gpu": Coefficients(
        launch=9.7e-7, turn=3.6e-7, latency=4e-7, memory=0.85, cache=4.1, products=0.95,
        copied=1.1, plain=0.81, tiles=0.3, side=32.0, hiding=0.16, program=7.5e-7, load=6.2e-9,
        sum=3.5e-8,
    ),
    "cpu": Coefficients(
        launch=3e-6, turn=1e-6, latency=1e-7, memory=0.8, cache=3.0, products=0.7,
        copied=0.7, plain=0.5, tiles=0.5, side=0.0, hiding=1.0, program=2e-7, load=0.0, sum=0.0,
    ),
}  # fmt: skip


def seconds(
    facts: KernelFacts, schedule: Schedule, coefficients: Coefficients | None = None
) -> float | None:
    """Of one run of the kernel; None where the schedule does not fit it or the target."""
    launches = works(facts, schedule)
    if launches is None or not all(is_legal(work, facts.target) for work in launches):
        return None
    fitted = coefficients or FITTED["gpu" if facts.target.is_gpu else "cpu"]
    return sum(fitted.launch + running(work, facts.target, fitted) for work in launches)


def running(work: LaunchWork, target: Target, fitted: Coefficients) -> float:
    """Of one launch once it runs: the slowest of its roofs, and what nothing hides."""
    together = resident(work, target)
    places = target.num_cores * together
    waves = -(-work.programs // places)
    # the share of cores with work, and, in the last wave, of those that still have some
    busy = min(work.programs / target.num_cores, 1.0)
    filled = work.programs / (waves * places) if waves > 1 else 1.0
    filled = 1.0 if waves > 8 else filled ** (1 / waves)
    flying = min(work.programs, places) * work.ahead
    needed = target.bandwidth * fitted.latency
    share = min(flying / needed, 1.0) if work.ahead and target.is_gpu else 1.0
    bandwidth = target.bandwidth * fitted.memory * max(share, 1e-3)
    memory = work.moved / bandwidth
    cache = work.read / (target.bandwidth * fitted.cache * max(busy, 1e-3))
    rate = target.rate_of(*work.operands)
    if work.side and rate > target.rate_of():
        best = fitted.copied if work.is_copied else fitted.products
        rate *= best * work.side / (work.side + fitted.side)
    else:
        rate *= fitted.tiles if work.side else fitted.plain
    arithmetic = work.operations / (rate * busy * filled)
    moving = (memory**4 + cache**4) ** 0.25  # no roof is sharp: where two are equal neither is met
    longer, shorter = max(moving, arithmetic), min(moving, arithmetic)
    # what of the shorter is not hidden: programs and stages wait for what is under way
    roof = longer + shorter / (together + work.stages - 1) ** fitted.hiding
    # what a program takes from its start to its end, one thing after the other
    chain = fitted.program + work.steps * fitted.turn / max(work.stages - 1, 1)
    chain += work.sums * fitted.sum * (work.threads / target.warp_size) ** 0.5
    if not work.side and target.is_gpu:
        lanes = target.rate / (target.num_cores * LANES)
        share = max(work.programs * work.threads, 1)  # of all threads of all programs
        chain += work.operations / (share * lanes * fitted.plain)
        chain += work.read / (share * work.width) * fitted.load
    return float(hypot(roof, waves * chain))


def resident(work: LaunchWork, target: Target) -> int:
    """Programs that one core holds at a time: occupancy."""
    if not target.is_gpu:
        return 1
    threads = max(target.registers // max(work.registers, 1) // work.threads, 1)
    shared = max(target.shared_bytes // work.shared, 1) if work.shared else 32
    return max(min(threads, shared, 2048 // work.threads, 32), 1)
