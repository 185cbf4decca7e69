"""SmolLM2-135M on this CPU against transformers eager and torch.compile, in one process.

Prints a table and writes JSON: decode tokens/s at batch 1 with its share of the read bandwidth
measured in the same run, prefill of 512 tokens, compile times, memory.

    python benchmarks/cpu_llm.py --out benchmarks/results/cpu_llm.json [--torch-compile]
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np


def median_seconds(run, repeats: int) -> float:
    """Median wall time of `run()`."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def read_bandwidth(threads: int) -> float:
    """Bytes/s at which `threads` threads read 1 GiB that no cache holds: the floor of decode."""
    source = r"""
    #include <cstdint>
    #include <immintrin.h>
    extern "C" int64_t read_all(const int64_t* p, int64_t n, int threads) {
      int64_t total = 0;
      #pragma omp parallel for simd num_threads(threads) reduction(+ : total) schedule(static)
      for (int64_t i = 0; i < n; ++i) total += p[i];
      return total;
    }"""
    import ctypes

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "read.cpp"
        path.write_text(source)
        library = path.with_suffix(".so")
        subprocess.run(
            ["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", path, "-o", library],
            check=True,
        )
        function = ctypes.CDLL(str(library)).read_all
        data = np.ones(1 << 27, np.int64)
        args = (ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(data.size), threads)
        function(*args)
        return data.nbytes / min(median_seconds(lambda: function(*args), 3) for _ in range(3))


def measure_ours(model: str, dtype: str, prompt: list[int], tokens: int) -> dict:
    """Prefill and decode rates of our program, and what compiling took."""
    import tilewright

    start = time.perf_counter()
    llm = tilewright.LLM(model, dtype=dtype)
    ready = time.perf_counter() - start

    def generate(prompt_ids: list[int], count: int) -> float:
        params = tilewright.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        begin = time.perf_counter()
        llm.generate({"prompt_token_ids": prompt_ids}, params)
        return time.perf_counter() - begin

    generate(prompt, 2)
    prefill = min(generate(prompt, 1) for _ in range(5))
    short = prompt[:16]
    decode = []
    for _ in range(3):
        one, many = generate(short, 1), generate(short, tokens + 1)
        decode.append((many - one) / tokens)
    return {
        "ready_s": ready,
        "prefill_tokens_per_s": len(prompt) / prefill,
        "decode_tokens_per_s": 1 / statistics.median(decode),
        "weight_bytes": llm.weight_bytes,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def measure_transformers(
    folder: str, dtype, prompt: list[int], tokens: int, compiled: bool
) -> dict:
    """The same of transformers, eager or with its forward compiled and a static cache."""
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    ids = torch.tensor([prompt])

    @torch.no_grad()
    def prefill() -> None:
        model(ids, use_cache=True, logits_to_keep=1)

    prefill()
    prefill_s = median_seconds(prefill, 3)

    @torch.no_grad()
    def decode() -> float:
        if compiled:
            cache = StaticCache(config=model.config, max_cache_len=256)
        else:
            cache = DynamicCache(config=model.config)
        out = step(ids[:, :16], past_key_values=cache, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        position = torch.tensor([16])
        step(
            token,
            past_key_values=cache,
            use_cache=True,
            **({"cache_position": position} if compiled else {}),
        )
        begin = time.perf_counter()
        for i in range(tokens):
            extra = {"cache_position": position + 1 + i} if compiled else {}
            out = step(token, past_key_values=cache, use_cache=True, **extra)
            token = out.logits[:, -1:].argmax(-1)
        return (time.perf_counter() - begin) / tokens

    start = time.perf_counter()
    step = torch.compile(model.forward) if compiled else model.forward
    decode()
    ready = time.perf_counter() - start
    return {
        "ready_s": ready if compiled else 0.0,
        "prefill_tokens_per_s": len(prompt) / prefill_s,
        "decode_tokens_per_s": 1 / statistics.median(decode() for _ in range(3)),
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--torch-compile", action="store_true", help="also torch.compile (minutes)")
    args = parser.parse_args()

    import torch

    from tilewright.cli.demo_model import demo_path, saved_as_folder

    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    bandwidth = read_bandwidth(threads)
    rng = np.random.default_rng(0)
    prompt = rng.integers(10, 40000, 512).tolist()
    rows: dict[str, dict] = {}
    for dtype in ("bfloat16", "float32"):
        rows[f"tilewright {dtype}"] = row = measure_ours(
            str(demo_path()), dtype, prompt, args.tokens
        )
        row["share_of_bandwidth"] = row["decode_tokens_per_s"] * row["weight_bytes"] / bandwidth
    with tempfile.TemporaryDirectory() as folder:
        saved_as_folder(folder)
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            rows[f"transformers eager {name}"] = measure_transformers(
                folder, dtype, prompt, args.tokens, compiled=False
            )
        if args.torch_compile:
            rows["torch.compile float32"] = measure_transformers(
                folder, torch.float32, prompt, args.tokens, compiled=True
            )
    report = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "cpu": platform.processor() or platform.machine(),
        "threads": threads,
        "read_bandwidth_gb_s": bandwidth / 1e9,
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"read bandwidth, {threads} threads: {bandwidth / 1e9:.1f} GB/s")
    print(f"{'':28} {'decode tok/s':>13} {'of bandwidth':>13} {'prefill tok/s':>14} {'ready s':>8}")
    for name, row in rows.items():
        share = f"{row['share_of_bandwidth']:.0%}" if "share_of_bandwidth" in row else ""
        print(
            f"{name:28} {row['decode_tokens_per_s']:13.1f} {share:>13}"
            f" {row['prefill_tokens_per_s']:14.1f} {row['ready_s']:8.1f}"
        )


if __name__ == "__main__":
    main()
