"""Fit the tuner's model to measured schedules, and say how well it then chooses.

    python benchmarks/fit_model.py FILE [FILE ...]

A FILE is what tune_samples.py wrote, or results/h200_kernels.json. Prints the coefficients for
autotune/model.py, and for each kernel and size how far the schedule that the model chooses is off
the best of those measured.
"""

import json
import sys
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from gpu_rows import NARROW, WIDE, product

from tilewright.autotune.kernel_facts import KernelFacts, LaunchWork
from tilewright.autotune.model import FITTED, Coefficients, running
from tilewright.autotune.record import schedule_from_json
from tilewright.autotune.work import works
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16, f32

TARGET = get_target("sm_90")
STEPS = (0.5, 0.8, 0.93, 0.98, 1.02, 1.07, 1.25, 2.0)
ABSOLUTE = 0.1  # weight of the time itself beside that of what is faster than what

Group = list[tuple[list[LaunchWork], float, str]]  # launches, microseconds, the schedule


def rows_groups(data: dict) -> dict[str, Group]:
    """Of results/h200_kernels.json: products of few rows."""
    groups: dict[str, Group] = {}
    for key, dtype, named in (("rows_f32", f32, WIDE), ("rows_bf16", bf16, NARROW)):
        for line in data[key]["us"]:
            kernel = product(line["n"], line["k"], dtype).kernel
            facts = KernelFacts(kernel, {"t": line["m"]}, TARGET)
            made = [(works(facts, named[n]), us, n) for n, us in line.items() if n in named]
            name = f"{key} {line['n']}x{line['k']} {line['m']}"
            groups[name] = [item for item in made if item[0] is not None]
    return groups


def sample_groups(rows: list[dict]) -> dict[str, Group]:
    """Of what tune_samples.py wrote."""
    from gpu_lab import Shape, llama_kernels

    kernels, groups = llama_kernels(Shape()), {}
    for row in rows:
        for sizes, times in zip(row["sizes"], row["us"]):
            facts = KernelFacts(kernels[row["kernel"]].kernel, sizes, TARGET)
            made = []
            for data, us in zip(row["schedules"], times):
                schedule = schedule_from_json(data)
                made.append((works(facts, schedule), us, str(schedule)))
            groups[f"{row['kernel']} {sizes}"] = [item for item in made if item[0] is not None]
    return groups


def modelled(group: Group, fitted: Coefficients) -> np.ndarray:
    """Microseconds by the model."""
    return np.array(
        [sum(fitted.launch + running(w, TARGET, fitted) for w in ws) * 1e6 for ws, *_ in group]
    )


def loss(groups: dict[str, Group], fitted: Coefficients) -> float:
    """Mean squared error of logarithms: around a group's own mean, and a little of the mean."""
    total = []
    for group in groups.values():
        off = np.log(modelled(group, fitted) / np.array([us for _, us, _ in group]))
        # what is far from the best matters little
        us = np.array([us for _, us, _ in group])
        weight = (us.min() / us) ** 2
        mean = np.average(off, weights=weight)
        total.append(np.average((off - mean) ** 2, weights=weight) + ABSOLUTE * mean**2)
    return float(np.mean(total))


def fit(groups: dict[str, Group], start: Coefficients) -> Coefficients:
    """One coefficient after the other, until none gets better."""
    best, least, improved = start, loss(groups, start), True
    while improved:
        improved = False
        for name, value in asdict(best).items():
            for step in STEPS:
                other = replace(best, **{name: value * step})
                cost = loss(groups, other)
                if cost < least * 0.9995:
                    best, least, improved = other, cost, True
    return best


def off_the_best(group: Group, fitted: Coefficients) -> float:
    """How much longer the model's choice takes than the best that was measured."""
    us = np.array([us for _, us, _ in group])
    return float(us[int(modelled(group, fitted).argmin())] / us.min())


def main() -> None:
    """Fit, and print."""
    groups: dict[str, Group] = {}
    for file in sys.argv[1:]:
        data = json.loads(Path(file).read_text())
        groups |= rows_groups(data) if isinstance(data, dict) else sample_groups(data)
    groups = {name: group for name, group in groups.items() if len(group) > 1}
    fitted = fit(groups, FITTED["gpu"])
    chosen = defaultdict(list)
    for name, group in groups.items():
        before, after = (off_the_best(group, c) for c in (FITTED["gpu"], fitted))
        chosen["before"].append(before)
        chosen["after"].append(after)
        print(f"{name:50} of {len(group):3}: {before:.2f} -> {after:.2f}")
    for name, values in chosen.items():
        within = np.mean(np.array(values) <= 1.15)
        print(f"{name}: within 15% on {within:.0%} of {len(values)}, worst {max(values):.2f}")
    print("loss", loss(groups, FITTED["gpu"]), "->", loss(groups, fitted))
    print({name: float(f"{value:.3g}") for name, value in asdict(fitted).items()})


if __name__ == "__main__":
    main()
