"""Embedding lookups: what the check of their indices costs, by running two trees in turn.

    python benchmarks/lookups.py OUT

Prints the time of a kernel on this machine's device: replays without inputs or outputs copied.
"""

import argparse
import json
import statistics
import time
from datetime import date
from pathlib import Path

import torch
from torch import nn

import tilewright
from tilewright.api.machine import cpu_name
from tilewright.runtime.fixed_run import FixedRun

ROUNDS, REPLAYS = 9, 100


class TokensAndPositions(nn.Module):
    """The sum of two lookups."""

    def __init__(self, tokens: int, positions: int, width: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(positions, width)

    def forward(self, ids, at):
        return self.tokens(ids) + self.positions(at)


def cases() -> dict:
    """name -> (module, indices)."""

    def ids(rows: int, count: int) -> torch.Tensor:
        return torch.randint(0, rows, (count,))

    both = TokensAndPositions(30522, 512, 768).bfloat16()
    return {
        "128256 x 4096 bf16, 16384": (nn.Embedding(128256, 4096).bfloat16(), [ids(128256, 16384)]),
        "50257 x 768 f32, 65536": (nn.Embedding(50257, 768), [ids(50257, 65536)]),
        "49152 x 576 bf16, 131072": (nn.Embedding(49152, 576).bfloat16(), [ids(49152, 131072)]),
        "tokens and positions x 768 bf16, 65536": (both, [ids(30522, 65536), ids(512, 65536)]),
    }


def microseconds(module: nn.Module, indices: list[torch.Tensor]) -> float:
    """Median time of a replay; the result is compared with eager's first."""
    compiled = tilewright.compile(module.eval(), tuple(indices))
    with torch.no_grad():
        assert torch.equal(compiled(*indices).cpu(), module(*indices))
    executable = compiled.variants[0].executable
    prepared = FixedRun(executable, [tuple(i.shape) for i in indices])
    names = executable.program.inputs
    prepared.run({name: i.numpy() for name, i in zip(names, indices, strict=True)})
    executable.device.synchronize()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(REPLAYS):
            prepared.start()
        executable.device.synchronize()
        times.append((time.perf_counter() - start) / REPLAYS * 1e6)
    return statistics.median(times)


def main() -> None:
    """Measure all cases of this tree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    results = {}
    for name, (module, indices) in cases().items():
        results[name] = microseconds(module, indices)
        print(f"{name:40} {results[name]:8.2f} us", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu_name()
    report = {"device": device, "date": date.today().isoformat()}
    (args.out / "lookups.json").write_text(json.dumps(report | {"us": results}, indent=1))


if __name__ == "__main__":
    main()
