"""Two trees of this project in turn on this CPU: decode and prefill of SmolLM2-135M.

Each tree runs in a process of its own and answers when asked, so that both meet the same state of
the machine; the ratio of each pair says more than either time. Prints a table and writes JSON.

    python benchmarks/cpu_pairs.py --before FOLDER --after FOLDER --out FILE

A FOLDER is one that holds the tree under the name `tilewright` (a link will do).
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from cpu_lab import save

# The other side: loads the model, then times what each line of its input names.
WORKER = """
import sys, time
import numpy as np

import tilewright
from tilewright.api.demo_model import demo_path

llm = tilewright.LLM(str(demo_path()), dtype=sys.argv[1])
prompt = np.random.default_rng(0).integers(10, 40000, 512).tolist()

def seconds(tokens, count):
    params = tilewright.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    start = time.perf_counter()
    llm.generate({"prompt_token_ids": prompt[:tokens]}, params)
    return time.perf_counter() - start

measures = {
    "decode": lambda: (seconds(16, 49) - seconds(16, 1)) / 48,
    "prefill": lambda: seconds(512, 1),
}
measures["decode"](), measures["prefill"]()
print("ready", flush=True)
for line in sys.stdin:
    print(measures[line.strip()](), flush=True)
"""


class Tree:
    """One tree in a process of its own."""

    def __init__(self, folder: Path, cache: str, dtype: str):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, dtype],
            env=os.environ | {"PYTHONPATH": str(folder.absolute()), "XDG_CACHE_HOME": cache},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n", f"{folder} does not run"

    def seconds(self, measure: str) -> float:
        """One measurement."""
        self.process.stdin.write(measure + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def main() -> None:
    """Measure both trees in turn, the first one first in every other pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--dtypes", default="bfloat16,float32")
    args = parser.parse_args()
    rows = {}
    print(f"{'':20} {'before ms':>10} {'after ms':>10} {'after/before':>13} {'quartiles':>15}")
    for dtype in args.dtypes.split(","):
        with tempfile.TemporaryDirectory() as cache:
            folders = {"before": args.before, "after": args.after}
            trees = {n: Tree(f, f"{cache}/{n}", dtype) for n, f in folders.items()}
            for measure in ("decode", "prefill"):
                pairs = []
                for i in range(args.pairs):
                    order = list(trees) if i % 2 == 0 else list(trees)[::-1]
                    pairs.append({name: trees[name].seconds(measure) for name in order})
                ratios = [pair["after"] / pair["before"] for pair in pairs]
                low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75]).tolist()
                ms = {n: statistics.median(p[n] for p in pairs) * 1e3 for n in trees}
                name = f"{measure} {dtype}"
                rows[name] = {"median_ms": ms, "ratio": middle, "pairs": pairs}
                print(
                    f"{name:20} {ms['before']:10.2f} {ms['after']:10.2f} {middle:13.3f}"
                    f" {low:7.3f} {high:7.3f}",
                    flush=True,
                )
            for tree in trees.values():
                tree.process.communicate()
    save(args.out, threads=len(os.sched_getaffinity(0)), rows=rows)


if __name__ == "__main__":
    main()
