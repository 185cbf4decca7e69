"""Tunes kernels of models that are there by shape only: the records that ship for a GPU.

    python benchmarks/tune_models.py records.sqlite --seconds 600 --workers 14 --export sm_90.jsonl

The shape of Llama-3.1-8B without data, two layers of it: all of them have the same kernels. Prints
the report; `--export` writes the records as lines, as autotune/shipped/ has them. With `--list` it
tunes nothing and lists the tasks.
"""

import argparse
from pathlib import Path

from gpu_decode import config

from tilewright.api.machine import resolve_target
from tilewright.api.request import Request
from tilewright.api.tune_model import export_lines, tasks_of_request, tune_tasks
from tilewright.autotune.bench import Budget
from tilewright.frontend.checkpoint import empty_module
from tilewright.ir.types import bf16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--export", type=Path)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    target = resolve_target(args.target)
    module = empty_module(config(2), bf16, "the benchmark")
    tasks = tasks_of_request(Request(module, target=target, records="none"))
    if args.list:
        for key, task in tasks.items():
            print(f"{task.kernel.template} {key.bucket} x {task.count}: {task.default}")
        return
    budget = Budget(args.seconds, args.workers)
    try:
        print(tune_tasks(tasks, target, args.records, budget, resume=args.resume))
    finally:  # what was found before an error or Ctrl-C as well
        if args.export is not None:
            lines = export_lines(args.records)
            args.export.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
