"""How long the launches of a schedule take, from what they do: ranks schedules without a device.

The form is that of a roofline (Williams, Waterman and Patterson, 2009) whose roofs are lowered by
what keeps a device from them: programs that leave cores idle in the last wave, too few bytes under
way to hide the way to memory (Little's law), tiles too small for the matrix unit, and turns that
wait. The numbers were fitted to measurements by benchmarks/fit_model.py.
"""

from dataclasses import dataclass

from ..codegen.templates.template import Schedule
from ..ir.target import Target
from .work import KernelFacts, LaunchWork, is_legal, works


@dataclass(frozen=True)
class Coefficients:
    """Of one kind of device. Rates are shares of the target's own."""

    launch: float  # seconds
    turn: float  # seconds that a turn of a program waits, however little it moves
    latency: float  # seconds from asking memory to having
    memory: float  # share of the bandwidth that is reached at best
    cache: float  # bandwidth of the cache over that of memory
    products: float  # share of the rate of matrix units that is reached at best
    plain: float  # share of that of other arithmetic
    side: float  # rows of a tile with which matrix units reach half of their rate
    hiding: float  # how well programs of a core and stages of a program hide each other's waits
    program: float  # seconds that a program takes besides, its neighbours on a core sharing them


FITTED = {
    "gpu": Coefficients(1.3e-6, 2.5e-7, 8e-7, 0.95, 2.5, 0.85, 0.5, 32.0, 1.0, 1.5e-6),
    "cpu": Coefficients(3e-6, 1e-6, 1e-7, 0.8, 3.0, 0.7, 0.5, 0.0, 1.0, 2e-7),
}


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
    if work.side and rate > target.rate:
        rate *= fitted.products * work.side / (work.side + fitted.side)
    else:
        rate *= fitted.plain
    arithmetic = work.operations / (rate * busy * filled)
    moving = (memory**4 + cache**4) ** 0.25  # no roof is sharp: where two are equal neither is met
    longer, shorter = max(moving, arithmetic), min(moving, arithmetic)
    # what of the shorter is not hidden: programs and stages wait for what is under way
    roof = longer + shorter / (together + work.stages - 1) ** fitted.hiding
    waits = waves * (fitted.program + work.steps * fitted.turn / max(together, 1))
    return roof + waits


def resident(work: LaunchWork, target: Target) -> int:
    """Programs that one core holds at a time: occupancy."""
    if not target.is_gpu:
        return 1
    threads = max(target.registers // max(work.registers, 1) // work.threads, 1)
    shared = max(target.shared_bytes // work.shared, 1) if work.shared else 32
    return max(min(threads, shared, 2048 // work.threads, 32), 1)
