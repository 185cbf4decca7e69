"""The search of one task: which schedules are tried, in which order, and which of them wins.

What is tried depends on times only through winners of the tie band, which a fixed order of the
schedules decides: so two runs try the same and find the same. Where there are few schedules all are
tried. Of many, those that the model ranks first, then (with optuna) what a Bayesian search suggests
from the times so far, then the winner's neighbours until none is faster.
"""

import importlib.util
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from ..codegen.templates.template import Schedule
from ..ir.progress import Progress, unwatched
from .domain import Candidates
from .measure import TIE, Timing, fastest, is_decided, settled
from .task import Task, TaskOutcome, Tried

FIRST = 24  # schedules tried by rank; all where there are no more
SUGGESTED = 24  # that a Bayesian search may add
NEIGHBOURS = 8  # of the leader that are tried
BATCH = 4  # schedules that are compiled, and then measured, at a time
CLOSE = 1.15  # times the least up to which a schedule takes part in the final
ROUNDS = 5  # of a first measurement
FINALISTS = 11  # besides the default: the fastest so far
FINAL_ROUNDS, MOST_ROUNDS = 10, 60  # of the final, a step and in all


FAILED = Timing(100.0, 0.0)  # what a Bayesian search is told of those that do not run


class Trial(Protocol):
    """What a search asks of a device, or of something that stands in for one."""

    def ready(self, schedules: Sequence[Schedule]) -> list[str | None]:
        """Compile and check: for each why it cannot win, or None. The first ever is the default."""
        ...

    def seconds(self, schedules: Sequence[Schedule], rounds: int) -> list[np.ndarray]:
        """Measure in turn: [schedule, round], an array a size."""
        ...


@dataclass
class Search:
    """One task on one trial. `progress` hears how many schedules were tried, of how many known."""

    task: Task
    trial: Trial
    until: float  # time.monotonic() at which no more is begun
    seed: int = 0
    progress: Progress = unwatched
    times: dict[Schedule, Timing] = field(default_factory=dict)  # over the default's
    reasons: dict[Schedule, str] = field(default_factory=dict)
    order: dict[Schedule, int] = field(default_factory=dict)  # in which ties are broken

    def __post_init__(self):
        self.candidates = Candidates(self.task)
        self.default_seconds: list[float] = []

    def run(self) -> TaskOutcome:
        """The outcome; the default is tried first, and wins where nothing is clearly faster."""
        ranked = self.candidates.ordered(1 << 16)
        self.order = {schedule: number for number, schedule in enumerate(ranked)}
        self.attempt(ranked[:1])
        default = self.task.default
        if default not in self.times:
            return self.outcome(default)
        few = len(ranked) <= FIRST
        self.attempt(ranked[1 : len(ranked) if few else FIRST])
        if not few:
            self.suggested()
            self.climb()
        return self.outcome(self.final())

    # ---- trying ----

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def attempt(self, schedules: Iterable[Schedule]) -> None:
        """Compile, check and measure those that are new, a batch at a time, until time is over."""
        new = [s for s in dict.fromkeys(schedules) if s not in self.times | self.reasons]
        for start in range(0, len(new), BATCH):
            if self.is_over and self.times:
                return
            batch = new[start : start + BATCH]
            for schedule in batch:
                self.order.setdefault(schedule, len(self.order))
            good = []
            for schedule, reason in zip(batch, self.trial.ready(batch)):
                if reason is None:
                    good.append(schedule)
                else:
                    self.reasons[schedule] = reason
            if good:
                self.note(good, ROUNDS)
            self.progress("tune", len(self.times) + len(self.reasons), len(self.order))

    def note(self, schedules: Sequence[Schedule], rounds: int) -> None:
        """Measure beside the default."""
        default = self.task.default
        together = [default, *(s for s in schedules if s != default)]
        made = [settled(r) for r in self.trial.seconds(together, rounds)]
        self.default_seconds = [timings[0].seconds for timings in made]
        for number, schedule in enumerate(together):
            self.times[schedule] = _over([timings[number] for timings in made], made)

    def ordered(self) -> list[Schedule]:
        """What was measured, in the order that breaks ties."""
        return sorted(self.times, key=lambda s: self.order[s])

    def leader(self) -> Schedule:
        """The winner so far."""
        known = self.ordered()
        return known[fastest([self.times[s] for s in known])]

    # ---- beyond those ranked first ----

    def suggested(self) -> None:
        """What a Bayesian search (tree-structured Parzen estimators) makes of the times so far."""
        if importlib.util.find_spec("optuna") is None:
            return
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        start = self.leader()
        values = {n: v for n, v in self.candidates.space(start).items() if len(v) > 1}
        spaces = {n: optuna.distributions.CategoricalDistribution(v) for n, v in values.items()}
        sampler = optuna.samplers.TPESampler(seed=self.seed, n_startup_trials=0)
        study = optuna.create_study(sampler=sampler)

        def tell(schedule: Schedule) -> None:
            # rounded to the tie band, so that noise suggests nothing
            known = self.times.get(schedule, FAILED).seconds
            cost = round(math.log(known) / math.log(TIE))
            params = {n: getattr(schedule, n) for n in values}
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=spaces, value=float(cost))
            )

        for schedule in self.ordered():
            if type(schedule) is type(start):
                tell(schedule)
        for _ in range(SUGGESTED // BATCH):
            if self.is_over:
                return
            asked: list[Schedule] = []
            for _ in range(8 * BATCH):  # many are of what is known, or of what fits nowhere
                params = study.ask(spaces).params
                schedule = replace(start, **params)  # type: ignore[type-var]
                is_new = schedule not in self.times | self.reasons and schedule not in asked
                if is_new and self.candidates.cost(schedule) is not None:
                    asked.append(schedule)
                if len(asked) == BATCH:
                    break
            self.attempt(asked)
            for schedule in asked:
                tell(schedule)

    def climb(self) -> None:
        """The leader's neighbours, until it stays the leader."""
        leader = None
        while not self.is_over and leader != self.leader():
            leader = self.leader()
            self.attempt(self.candidates.neighbours(leader)[:NEIGHBOURS])

    # ---- deciding ----

    def final(self) -> Schedule:
        """The winner among those that are close, measured until more rounds would not change it."""
        least = min(timing.seconds for timing in self.times.values())
        close = [s for s in self.times if self.times[s].seconds <= CLOSE * least]
        first = sorted(close, key=lambda s: self.times[s].seconds)[:FINALISTS]
        together = sorted({self.task.default, *first}, key=lambda s: self.order[s])
        rounds: list[np.ndarray] | None = None
        while True:
            more = self.trial.seconds(together, FINAL_ROUNDS)
            rounds = [np.hstack(pair) for pair in zip(rounds, more)] if rounds else more
            made = [settled(r) for r in rounds]
            timings = [_over([t[i] for t in made], made) for i in range(len(together))]
            self.default_seconds = [t[0].seconds for t in made]
            self.times |= dict(zip(together, timings))
            if is_decided(timings) or rounds[0].shape[1] >= MOST_ROUNDS or self.is_over:
                return together[fastest(timings)]

    def outcome(self, winner: Schedule) -> TaskOutcome:
        """What became of the task; seconds are those at the larger size."""
        facts = self.candidates.facts[0]
        base = self.default_seconds[0] if self.default_seconds else None
        tried = [
            Tried(s, None if base is None else base * self.times[s].seconds) for s in self.ordered()
        ] + [Tried(s, None, reason) for s, reason in self.reasons.items()]
        return TaskOutcome(
            self.task,
            winner,
            None if base is None else base * self.times[winner].seconds,
            base,
            facts.floor,
            tuple(tried),
            was_cut=self.is_over,
        )


def _over(own: Sequence[Timing], made: Sequence[Sequence[Timing]]) -> Timing:
    """Of one schedule at several sizes, over what the default takes there: the mean."""
    ratios = [t.seconds / timings[0].seconds for t, timings in zip(own, made)]
    errors = [t.error / timings[0].seconds for t, timings in zip(own, made)]
    return Timing(sum(ratios) / len(ratios), sum(errors) / len(errors))
