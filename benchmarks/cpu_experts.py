"""Decoding with a mixture of experts on this CPU: what a step reads, over the read bandwidth.

A step has to read the experts that its token chooses and all other weights but the embedding. Reads
of 1 GiB by as many threads take turns with the steps. Random bf16 weights; prints a row a shape.

    python benchmarks/cpu_experts.py --out benchmarks/results/cpu_experts.json

On a machine that does other work give it one core (`taskset -c 0`): processor time counts then, for
both, which waiting for the core does not change.
"""

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from cpu_lab import save
from cpu_llm import make_reader
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import tilewright

COMMON = {"vocab_size": 32000, "tie_word_embeddings": False, "max_position_embeddings": 512}
SHAPES = {
    "tiny": {
        "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 32, "moe_intermediate_size": 128,
        "num_experts": 16, "num_experts_per_tok": 2,
    },
    "1B-A0.3B": {
        "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 64, "moe_intermediate_size": 512,
        "num_experts": 32, "num_experts_per_tok": 8,
    },
}  # fmt: skip


def random_model(shape: dict[str, Any]) -> Qwen3MoeForCausalLM:
    """A model with random bf16 weights."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**COMMON, **shape)).bfloat16()
    real = model.to_empty(device="cpu").eval()
    for parameter in real.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    rotary = real.model.rotary_emb
    rotary.inv_freq = rotary.compute_default_rope_parameters(real.config)[0]
    return real


def bytes_of_a_step(model: Qwen3MoeForCausalLM) -> int:
    """What one token has to read: the chosen experts, and all weights that are not looked up."""
    total = 0
    for name, parameter in model.named_parameters():
        share = 1.0
        if ".experts." in name:
            share = model.config.num_experts_per_tok / model.config.num_experts
        elif "embed_tokens" in name:
            share = 0.0
        total += int(parameter.nbytes * share)
    return total


def measure(model: Qwen3MoeForCausalLM, tokens: int, rounds: int, threads: int) -> dict[str, Any]:
    """Seconds a step and bandwidth, in turn."""
    llm = tilewright.LLM(model, dtype="bfloat16", target="cpu", use_cache=False, max_model_len=256)
    options = tilewright.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    clock = time.process_time if threads == 1 else time.perf_counter
    read = make_reader(threads, clock)

    def decode_tokens() -> float:
        """Seconds a step: a prompt of one token is a step like all that follow."""
        start = clock()
        llm.generate({"prompt_token_ids": [3]}, options)
        return (clock() - start) / tokens

    decode_tokens()
    needed, found = bytes_of_a_step(model), []
    for _ in range(rounds):
        before = read()
        decode = decode_tokens()
        bandwidth = (before + read()) / 2
        share = needed / decode / bandwidth
        found.append({"decode_s": decode, "bandwidth": bandwidth, "share": share})
    return {
        "weight_bytes": sum(p.nbytes for p in model.parameters()),
        "bytes_a_step": needed,
        "decode_s": statistics.median(r["decode_s"] for r in found),
        "share_of_bandwidth": statistics.median(r["share"] for r in found),
        "rounds": found,
    }


def main() -> None:
    """Measure each shape and report medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    rows = {}
    for name in args.shapes.split(","):
        model = random_model(SHAPES[name])
        rows[name] = row = measure(model, args.tokens, args.rounds, threads)
        print(
            f"{name:10} {row['weight_bytes'] / 1e9:.2f} GB of weights, a step has to read"
            f" {row['bytes_a_step'] / 1e9:.3f} GB: {row['decode_s'] * 1e3:.2f} ms,"
            f" {row['share_of_bandwidth']:.0%} of read bandwidth",
            flush=True,
        )
    save(args.out, threads=threads, rows=rows)


if __name__ == "__main__":
    main()
