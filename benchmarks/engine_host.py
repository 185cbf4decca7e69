"""What the engine's own work costs a step: on a stand-in for a device that takes a known time.

    python benchmarks/engine_host.py --before FOLDER --after FOLDER --out FILE [--device-ms 0,6]

Each tree runs in a process of its own, in turn. The stand-in chooses tokens without computing any;
a step takes `device-ms` from when the one before is done. What is reported is the time of a step
beyond that: with 0 all the work of the host, else what of it is not hidden behind the device.

A FOLDER is one that holds the tree under the name `tilewright` (a link will do).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# The other side: decode steps of so many sequences, greedy or sampled, on a stand-in.
WORKER = """
import json, sys, time
import numpy as np

from tilewright.runtime.engine.batch import BatchSizes, make_batch, sizes_of
from tilewright.runtime.engine.engine import Engine, EngineConfig
from tilewright.runtime.engine.runner import SEQ_BUCKETS, WIDTH_BUCKETS, StepResult, round_up
from tilewright.runtime.engine.sampling_params import SamplingParams

class StandIn:
    page_size, vocab_size, samples, overlaps = 16, 128256, True, True

    def __init__(self, seqs, seconds):
        self.num_pages, self.seconds, self.free_at = seqs * 48, seconds, 0.0
        self.staging = {}

    def reserve(self, *sizes):
        pass

    def run(self, work):
        least = sizes_of(work, self.page_size)
        seqs = round_up(least.seqs, SEQ_BUCKETS)
        tokens = seqs if least.tokens == least.seqs else least.tokens
        sizes = BatchSizes(tokens, seqs, round_up(least.width, WIDTH_BUCKETS), seqs)
        batch = make_batch(work, self.page_size, sizes, samples=True)
        staging = self.staging.setdefault(sizes, {n: a.copy() for n, a in batch.arrays.items()})
        for name, array in batch.arrays.items():
            staging[name][...] = array
        done = self.free_at = max(time.perf_counter(), self.free_at) + self.seconds
        chosen = np.full(sizes.rows, 5, np.int32)

        def tokens():
            while time.perf_counter() < done:
                pass
            return chosen

        return StepResult(batch, tokens, None)

def measure(seqs, temperature, seconds, steps=100):
    config = EngineConfig(4096, max_num_seqs=seqs, max_num_batched_tokens=seqs * 512)
    engine = Engine(StandIn(seqs, seconds), config)
    params = SamplingParams(temperature=temperature, max_tokens=steps + 60, ignore_eos=True)
    for number in range(seqs):
        engine.add([7] * (300 + number % 16), params)
    for _ in range(8):  # all prompts are computed
        engine.step()
    start = time.perf_counter()
    for _ in range(steps):
        engine.step()
    return (time.perf_counter() - start) / steps - seconds

for line in sys.stdin:
    print(measure(*json.loads(line)), flush=True)
"""


def start(folder: Path) -> subprocess.Popen:
    """One tree in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env=os.environ | {"PYTHONPATH": str(folder.absolute())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tempfile.gettempdir(),
    )


def ask(process: subprocess.Popen, *question: float) -> float:
    """Seconds that it measured."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    """Measure both trees in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device-ms", default="0,6")
    parser.add_argument("--seqs", default="1,32,128,256,512")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    trees = {"before": start(given.before), "after": start(given.after)}
    rows = []
    for seqs in map(int, given.seqs.split(",")):
        for temperature in (0.0, 0.8):
            for device_ms in map(float, given.device_ms.split(",")):
                question = (seqs, temperature, device_ms / 1e3)
                times: dict[str, list[float]] = {name: [] for name in trees}
                for _ in range(given.rounds):
                    for name, tree in trees.items():
                        times[name].append(ask(tree, *question) * 1e6)
                found = {name: statistics.median(t) for name, t in times.items()}
                rows.append(
                    {"seqs": seqs, "temperature": temperature, "device_ms": device_ms, **found}
                )
                print(
                    f"{seqs:4} sequences, temperature {temperature}, device {device_ms:g} ms:"
                    f" {found['before']:7.0f} -> {found['after']:7.0f} us a step",
                    flush=True,
                )
    for tree in trees.values():
        tree.kill()
    from cpu_lab import save

    save(given.out, rows=rows)


if __name__ == "__main__":
    main()
