"""Times of schedules of a Llama-8B layer's kernels on one GPU: what the tuner's model is fitted to.

    python benchmarks/tune_samples.py OUT [--seconds 240] [--each 24] [--kernels qkv,o,...]

Of each bucket of each kernel: the default schedule, those that the model ranks first, and others
drawn from all that are legal. Prints how far the model's first is off the best of them.
"""

import argparse
import json
import os
import random
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from gpu_lab import Shape, llama_kernels

from tilewright.autotune import model
from tilewright.autotune.domain import Candidates
from tilewright.autotune.measure import settled
from tilewright.autotune.record import schedule_from_json, schedule_to_json
from tilewright.autotune.search import DeviceTrial, Tools
from tilewright.autotune.task import Task
from tilewright.codegen.templates import choices
from tilewright.ir.target import get_target
from tilewright.runtime.cuda import CudaDevice

TARGET = get_target("sm_90")
ROUNDS = 5


def sampled(task: Task, each: int, seed: int) -> list:
    """The default, then half of them by rank, half drawn."""
    ranked = Candidates(task).ordered(1 << 16)
    first, rest = ranked[: each // 2], ranked[each // 2 :]
    return first + random.Random(seed).sample(rest, min(each - len(first), len(rest)))


def measured(task: Task, tools: Tools, each: int, seed: int) -> dict:
    """A row of the results."""
    trial, schedules = DeviceTrial(task, tools, seed), sampled(task, each, seed)
    reasons = trial.ready(schedules)
    good = [s for s, reason in zip(schedules, reasons) if reason is None]
    timings = [settled(r) for r in trial.seconds(good, ROUNDS)] if good else []
    return {
        "sizes": trial.sizes,
        "schedules": [schedule_to_json(s) for s in good],
        "us": [[t.seconds * 1e6 for t in row] for row in timings],
        "failed": [[str(s), reason] for s, reason in zip(schedules, reasons) if reason is not None],
    }


def report(task: Task, row: dict) -> str:
    """The best, the default and what the model would choose, at the larger size."""
    if not row["us"]:
        return f"nothing runs: {row['failed'][:2]}"
    us, facts = np.array(row["us"][0]), Candidates(task).facts[0]
    made = [schedule_from_json(s) for s in row["schedules"]]
    costs = [model.seconds(facts, s) or 1.0 for s in made]
    chosen = us[int(np.argmin(costs))]
    return (
        f"floor {facts.floor * 1e6:8.2f}  best {us.min():8.2f}  default {us[0]:8.2f}  "
        f"model's {chosen:8.2f} ({chosen / us.min():.2f})  {made[int(us.argmin())]}"
    )


def main() -> None:
    """Measure until the time is over; the file is written after each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--each", type=int, default=24)
    parser.add_argument("--kernels", default="o,gated,down,qkv,attention,argmax,rope")
    args = parser.parse_args()
    end, rows = time.monotonic() + args.seconds, []
    kernels = llama_kernels(Shape())
    with closing(Tools(CudaDevice(), os.cpu_count() or 1)) as tools:
        for name in args.kernels.split(","):
            size, buckets = choices(kernels[name].kernel, TARGET)
            for lo, hi, default in buckets:
                if time.monotonic() > end:
                    return
                task = Task(kernels[name].kernel, TARGET, size, lo, hi, default)
                row = measured(task, tools, args.each, len(rows))
                rows.append({"kernel": name, "lo": lo, "hi": hi, **row})
                args.out.write_text(json.dumps(rows, indent=1))
                print(f"{name:9} {lo:6}..{hi or '':5}", report(task, row), flush=True)
                for text, reason in row["failed"][:3]:
                    print("   ", text, reason[:200])


if __name__ == "__main__":
    main()
