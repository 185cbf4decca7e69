"""SmolLM2-135M on this CPU against transformers eager and torch.compile, in one process.

Prints a table and writes JSON: decode tokens/s at batch 1 with its share of the read bandwidth
measured around it, and prefill of 512 tokens. All systems take turns in each round.

    python benchmarks/cpu_llm.py --out benchmarks/results/cpu_llm.json [--torch-compile]
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from cpu_lab import save

from tilewright.api.demo_model import demo_path
from tilewright.frontend.checkpoint import open_checkpoint


def make_reader(threads: int, clock=time.perf_counter):
    """A function that reads 1 GiB with `threads` threads and returns bytes/s: decode's floor."""
    source = r"""
    #include <cstdint>
    extern "C" int64_t read_all(const int64_t* p, int64_t n, int threads) {
      int64_t total = 0;
      #pragma omp parallel for simd num_threads(threads) reduction(+ : total) schedule(static)
      for (int64_t i = 0; i < n; ++i) total += p[i];
      return total;
    }"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "read.cpp"
        path.write_text(source)
        library = path.with_suffix(".so")
        flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
        subprocess.run(["g++", *flags, path, "-o", library], check=True)
        function = ctypes.CDLL(str(library)).read_all
    data = np.ones(1 << 27, np.int64)

    def read() -> float:
        start = clock()
        function(ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(data.size), threads)
        return data.nbytes / (clock() - start)

    read()
    return read


class Ours:
    """Our program at one dtype."""

    def __init__(self, dtype: str, prompt: list[int]):
        import tilewright

        start = time.perf_counter()
        self.llm = tilewright.LLM(str(demo_path()), dtype=dtype)
        self.ready = time.perf_counter() - start
        self.prompt = prompt
        self.params = tilewright.SamplingParams
        self.weight_bytes = self.llm.weight_bytes

    def _generate(self, prompt_ids: list[int], count: int) -> float:
        params = self.params(temperature=0.0, max_tokens=count, ignore_eos=True)
        begin = time.perf_counter()
        self.llm.generate({"prompt_token_ids": prompt_ids}, params)
        return time.perf_counter() - begin

    def prefill(self) -> float:
        """Seconds for the whole prompt and its first token."""
        return self._generate(self.prompt, 1)

    def decode(self, tokens: int) -> float:
        """Seconds a token after a short prompt."""
        first = self._generate(self.prompt[:16], 1)
        return (self._generate(self.prompt[:16], tokens + 1) - first) / tokens


class Transformers:
    """The same of transformers: eager, or with its forward compiled and a static cache."""

    def __init__(self, folder: str, dtype, prompt: list[int], compiled: bool = False):
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        self.ids = torch.tensor([prompt])
        self.compiled = compiled
        self.step = torch.compile(self.model.forward) if compiled else self.model.forward
        self.weight_bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())
        start = time.perf_counter()
        self.prefill()
        self.decode(4)
        self.ready = time.perf_counter() - start

    def prefill(self) -> float:
        """Seconds for the whole prompt (always eager: compiling it once more takes minutes)."""
        import torch

        begin = time.perf_counter()
        with torch.no_grad():
            self.model(self.ids, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - begin

    def decode(self, tokens: int) -> float:
        """Seconds a token after a short prompt."""
        import torch
        from transformers import DynamicCache, StaticCache

        if self.compiled:
            cache = StaticCache(config=self.model.config, max_cache_len=256)
        else:
            cache = DynamicCache(config=self.model.config)
        with torch.no_grad():
            out = self.model(self.ids[:, :16], past_key_values=cache, use_cache=True)
            for i in range(tokens + 2):
                if i == 2:  # the first steps compile
                    begin = time.perf_counter()
                token = out.logits[:, -1:].argmax(-1)
                at = {"cache_position": torch.tensor([16 + i])} if self.compiled else {}
                out = self.step(token, past_key_values=cache, use_cache=True, **at)
        return (time.perf_counter() - begin) / tokens


def saved_as_folder(folder: str | Path) -> None:
    """Write the demonstration model as a float32 Hugging Face folder, for other systems to load."""
    import torch

    checkpoint = open_checkpoint(demo_path())
    module = checkpoint.module
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(checkpoint.arrays[name].load()))
    module.save_pretrained(str(folder))
    loaded = checkpoint.tokenizer.load()
    loaded.tokenizer.save(str(Path(folder) / "tokenizer.json"))


def main() -> None:
    """Measure all systems in turn, round by round, and report medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch-compile", action="store_true", help="also torch.compile (minutes)")
    args = parser.parse_args()

    import torch

    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    prompt = np.random.default_rng(0).integers(10, 40000, 512).tolist()
    systems: dict[str, Ours | Transformers] = {
        f"tilewright {dtype}": Ours(dtype, prompt) for dtype in ("bfloat16", "float32")
    }
    with tempfile.TemporaryDirectory() as folder:
        saved_as_folder(folder)
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            systems[f"transformers eager {name}"] = Transformers(folder, dtype, prompt)
        if args.torch_compile:
            systems["torch.compile float32"] = Transformers(folder, torch.float32, prompt, True)
    read = make_reader(threads)
    rounds: dict[str, list[dict]] = {name: [] for name in systems}
    for _ in range(args.rounds):
        for name, system in systems.items():
            before = read()
            decode = system.decode(args.tokens)
            bandwidth = (before + read()) / 2
            rounds[name].append(
                {
                    "decode_s": decode,
                    "bandwidth": bandwidth,
                    "share": system.weight_bytes / decode / bandwidth,
                    "prefill_s": system.prefill(),
                }
            )
    rows = {}
    for name, system in systems.items():
        middle = {key: statistics.median(r[key] for r in rounds[name]) for key in rounds[name][0]}
        rows[name] = {
            "decode_tokens_per_s": 1 / middle["decode_s"],
            "share_of_bandwidth": middle["share"],
            "prefill_tokens_per_s": len(prompt) / middle["prefill_s"],
            "best_prefill_tokens_per_s": len(prompt) / min(r["prefill_s"] for r in rounds[name]),
            "best_decode_tokens_per_s": 1 / min(r["decode_s"] for r in rounds[name]),
            "ready_s": system.ready,
            "rounds": rounds[name],
        }
    bandwidth = statistics.median(r["bandwidth"] for all_ in rounds.values() for r in all_)
    save(args.out, threads=threads, read_bandwidth_gb_s=bandwidth / 1e9, rows=rows)
    print(f"read bandwidth, {threads} threads: {bandwidth / 1e9:.1f} GB/s, load {os.getloadavg()}")
    print(f"{'':28} {'decode tok/s':>13} {'of bandwidth':>13} {'prefill tok/s':>14} {'best':>7}")
    for name, row in rows.items():
        print(
            f"{name:28} {row['decode_tokens_per_s']:13.1f} {row['share_of_bandwidth']:13.0%}"
            f" {row['prefill_tokens_per_s']:14.1f} {row['best_prefill_tokens_per_s']:7.1f}"
        )


if __name__ == "__main__":
    main()
