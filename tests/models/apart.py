"""Checks of many models: each in a process of its own, and a line of JSON for each."""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]


def described(error: BaseException) -> str:
    """An error as one line of a table."""
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(text)}"[:1500]


def perturb(model: Any) -> Any:
    """Add noise to all parameters: norms that begin as ones and gates as zeros hide faults."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


def rows(
    check: Callable[..., Row], kinds: Iterable[str], stage: str, timeout: float, jobs: int
) -> Iterable[Row]:
    """check(kind, stage) of each, `jobs` at a time; it may crash, and take `timeout` seconds."""
    context = multiprocessing.get_context("fork")  # with all that is imported here
    waiting = list(kinds)
    running: dict[str, tuple[Any, Any, float]] = {}

    def work(kind: str, there: Any) -> None:
        warnings.simplefilter("ignore")
        there.send(check(kind, stage) | {"type": kind})

    while waiting or running:
        while waiting and len(running) < jobs:
            kind = waiting.pop(0)
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(kind, there))
            process.start()
            there.close()
            running[kind] = process, here, time.monotonic() + timeout
        multiprocessing.connection.wait([here for _, here, _ in running.values()], timeout=1)
        for kind, (process, here, end) in list(running.items()):
            if not here.poll() and time.monotonic() < end:
                continue
            row: Row = {"type": kind, "step": "timeout"}
            try:
                if here.poll():
                    row = here.recv()
            except EOFError:
                row["step"] = "crash"
            process.kill()
            process.join()
            del running[kind]
            yield row


def main(doc: str, check: Callable[..., Row], kinds: Iterable[str], stages: Sequence[str]) -> None:
    """Check all types, or those named, and print a line for each."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--only", help="types, separated by commas")
    parser.add_argument("--stage", choices=stages, default=stages[-1])
    parser.add_argument("--out", help="a file for one JSON object a type; those in it are skipped")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    options = parser.parse_args()
    seen = set()
    if options.out and os.path.exists(options.out):
        with open(options.out) as file:
            seen = {json.loads(line)["type"] for line in file}
    chosen = options.only.split(",") if options.only else kinds
    todo = [kind for kind in chosen if kind not in seen]
    for row in rows(check, todo, options.stage, options.timeout, options.jobs):
        print(json.dumps(row)[:400], flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(json.dumps(row) + "\n")
