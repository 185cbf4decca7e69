"""Dense causal attention of this machine's device beside torch's scaled_dot_product_attention.

    python benchmarks/attention.py OUT [quick]

q, k and v lie as projections leave them, [B, S, heads * D], and so does the result. Both take turns
in one process with the same threads; on a GPU torch runs FlashAttention-2. Rates count the products
of the lower triangle, 2 B H S^2 D; the error is that of some rows against float64.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from pathlib import Path

import ml_dtypes
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tilewright
from tilewright.api.machine import cpu_name
from tilewright.runtime.fixed_run import FixedRun

IS_GPU = torch.cuda.is_available()
# batch, heads, KV heads, tokens, head size, dtype
CPU = [
    (b, h, g, s, d, dtype)
    for dtype in (torch.float32, torch.bfloat16)
    for b, h, g, s, d in (
        (1, 8, 8, 512, 64),
        (4, 8, 8, 512, 64),
        (1, 32, 8, 1024, 64),
        (1, 16, 16, 1024, 128),
        (1, 8, 8, 2048, 128),
        (1, 8, 8, 4096, 64),
    )
]
GPU = [
    (b, h, g, s, d, torch.bfloat16)
    for b, h, g, s, d in (
        (4, 32, 32, 4096, 128),
        (2, 32, 32, 16384, 128),
        (8, 16, 16, 8192, 128),
        (4, 32, 8, 4096, 128),
        (1, 32, 8, 8192, 128),
        (4, 32, 32, 4096, 64),
        (2, 16, 16, 16384, 64),
    )
]


class Attention(nn.Module):
    """Causal attention of heads side by side."""

    def __init__(self, heads: int, kv_heads: int):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads

    def forward(self, q, k, v):
        heads = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (x.unflatten(-1, (n, -1)).transpose(1, 2) for x, n in zip((q, k, v), heads))
        grouped = self.heads != self.kv_heads
        out = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=grouped
        )
        return out.transpose(1, 2).flatten(2)


def measure(case, rounds: int) -> dict:
    """Rates of both in GFLOP/s, medians over turns, and the error of some rows."""
    batch, heads, kv_heads, tokens, size, dtype = case
    module = Attention(heads, kv_heads).eval()
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(batch, tokens, n * size, dtype=dtype) for n in (heads, kv_heads, kv_heads)
    )
    executable = tilewright.compile(module, (q, k, v)).variants[0].executable
    prepared = FixedRun(executable, [tuple(x.shape) for x in (q, k, v)])
    arrays = {n: as_array(x) for n, x in zip(executable.program.inputs, (q, k, v), strict=True)}
    prepared.run(arrays)
    executable.device.synchronize()
    error = error_of(torch.from_numpy(prepared.output(0).astype("f4")), q, k, v, heads, kv_heads)
    given = [x.cuda() for x in (q, k, v)] if IS_GPU else [q, k, v]
    finish = torch.cuda.synchronize if IS_GPU else lambda: None

    def theirs() -> None:
        with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION) if IS_GPU else nullcontext():
            module(*given)

    flop = 2 * batch * heads * tokens * tokens * size
    ours_s, theirs_s = [], []
    for _ in range(rounds + 1):  # the first is a warm-up
        ours_s.append(seconds(prepared.start, executable.device.synchronize))
        theirs_s.append(seconds(theirs, finish))
    ratio = statistics.median(b / a for a, b in zip(ours_s[1:], theirs_s[1:]))
    rates = [flop / statistics.median(times[1:]) / 1e9 for times in (ours_s, theirs_s)]
    return {"ours": rates[0], "torch": rates[1], "ratio": ratio, "error": error}


def seconds(run: Callable[[], None], finish: Callable[[], None]) -> float:
    """Of one run: the mean of five on a GPU, of as many as a tenth of a second holds on a CPU."""
    start, count = time.perf_counter(), 0
    while count < (5 if IS_GPU else 1) or (not IS_GPU and time.perf_counter() - start < 0.1):
        run()
        count += 1
    finish()
    return (time.perf_counter() - start) / count


def as_array(x: torch.Tensor):
    """As NumPy has it."""
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def error_of(out, q, k, v, heads: int, kv_heads: int) -> float:
    """The largest, relative to the largest result, of the last 64 tokens in the last head."""
    size, tokens = q.shape[-1] // heads, q.shape[1]
    q = q[-1, -64:, -size:].double()
    k, v = (x[-1, :, -size:].double() for x in (k, v))
    last = min(64, tokens)
    seen = torch.arange(tokens)[None] <= torch.arange(tokens - last, tokens)[:, None]
    scores = (q @ k.T * size**-0.5).masked_fill(~seen, float("-inf"))
    want = scores.softmax(-1) @ v
    return float((out[-1, -64:, -size:] - want).abs().max() / want.abs().max())


def main() -> None:
    """Measure every case of this machine's device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("quick", nargs="?")
    args = parser.parse_args()
    cases = GPU if IS_GPU else CPU
    results = {}
    for case in cases[::3] if args.quick else cases:
        batch, heads, kv_heads, tokens, size, dtype = case
        name = f"b{batch} h{heads}/{kv_heads} s{tokens} d{size} {str(dtype)[6:]}"
        results[name] = found = measure(case, 3 if args.quick else 7)
        print(
            f"{name:34} {found['ours']:9.0f} GFLOP/s, torch {found['torch']:9.0f}:"
            f" {found['ratio']:.2f}, error {found['error']:.1e}",
            flush=True,
        )
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if IS_GPU else cpu_name()
    report = {
        "device": device,
        "date": date.today().isoformat(),
        "threads": torch.get_num_threads(),
    }
    (args.out / "attention.json").write_text(json.dumps(report | {"cases": results}, indent=1))


if __name__ == "__main__":
    main()
