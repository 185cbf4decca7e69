"""Decode and prefill of a mixture of experts on one GPU, and transformers in the same process.

    python benchmarks/gpu_experts.py OUT [--layers 4] [--context 128] [--batches 1,8,64]
        [--prefill 2048] [--peer eager] [--profile 8]

The shape of Qwen3-30B-A3B with fewer layers and random weights. A decode step is one replay of a
captured graph. Floors: bytes of the weights but the embedding table, of experts those that a batch
chooses when all are as likely, over the copy bandwidth, which is measured here too.
"""

import argparse
import time
from pathlib import Path

import gpu_decode as decode
import gpu_lab as lab
import numpy as np
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from tilewright import passes
from tilewright.codegen.build import build
from tilewright.frontend.checkpoint import empty_module
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16
from tilewright.passes.pipelines import language_model
from tilewright.runtime.cuda import CudaDevice
from tilewright.runtime.executable import Executable

EXPERTS, CHOSEN = 128, 8


def config(layers: int) -> Qwen3MoeConfig:
    """The shape of Qwen3-30B-A3B."""
    return Qwen3MoeConfig(
        hidden_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        moe_intermediate_size=768,
        norm_topk_prob=True,
        vocab_size=151936,
        max_position_embeddings=40960,
        attn_implementation="sdpa",
    )


def compile_program(layers: int, target: str):
    """Capture a model without data and compile it."""
    start = time.time()
    captured = capture_causal_lm(empty_module(config(layers), bf16, "the benchmark"), dtype=bf16)
    pipeline = language_model(bf16, page_size=decode.PAGE_SIZE, max_tokens=8192, samples=False)
    result = passes.run(captured.graph, pipeline)
    program = build(result.graph, get_target(target), kv=result.kv)
    print(f"{time.time() - start:.1f} s, {len(program.kernels)} kernels", flush=True)
    return program


def random_weights(program) -> dict[str, torch.Tensor]:
    """Random weights of the size that keeps activations near 1."""
    weights = {}
    for buffer in program.weights:
        shape, dtype = buffer.type.shape, lab.TORCH[buffer.type.dtype.name]
        weights[buffer.name] = torch.randn(shape, dtype=dtype, device="cuda") * 0.02
    return weights


def floor_bytes(program, batch: int) -> float:
    """Bytes of weights that a decode step must read."""
    share = 1 - (1 - CHOSEN / EXPERTS) ** batch
    total = 0.0
    for buffer in program.weights:
        if "embed" not in buffer.name:
            is_expert = len(buffer.type.shape) == 3
            total += buffer.type.nbytes * (share if is_expert else 1)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--prefill", default="2048")
    parser.add_argument("--peer", default="eager", help="none, or some of: eager,compiled")
    parser.add_argument("--profile", default="8", help="batches whose launches are costed by kind")
    given = parser.parse_args()
    batches = [int(b) for b in given.batches.split(",")]
    profiled = [int(b) for b in given.profile.split(",") if b]
    device = CudaDevice(0)
    program = compile_program(given.layers, device.target)
    exe = Executable(program, random_weights(program), device, sizes={"pages": 8192})
    bandwidth = decode.copy_bandwidth()
    results: dict = {"layers": given.layers, "copy_TBps": bandwidth / 1e12}
    path = given.out / "gpu_experts.json"
    rng = np.random.default_rng(0)
    for batch in batches:
        width = -(-given.context // decode.PAGE_SIZE)
        tokens = rng.integers(0, 151936, batch)
        step = decode.batch_of([1] * batch, [given.context] * batch, tokens, width)
        row = decode.time_steps(exe, device, step)
        row["floor_ms"] = floor_bytes(program, batch) / bandwidth * 1000
        row["of_floor"] = row["floor_ms"] / row["device_ms"]
        row["launches"] = decode.launches_of(exe, step)
        if batch in profiled:
            row["costs"] = decode.costs(exe, device, step)
            for kind, count, us in row["costs"]:
                print(f"   {us:8.2f} us x {count:3} {kind}", flush=True)
        results.setdefault("decode", {})[batch] = row
        print(f"batch {batch}: { {k: v for k, v in row.items() if k != 'costs'} }", flush=True)
        lab.save(path, results)
    for tokens in (int(t) for t in given.prefill.split(",") if t):
        ids = rng.integers(0, 151936, tokens)
        step = decode.batch_of([tokens], [tokens], ids, -(-tokens // decode.PAGE_SIZE))
        row = decode.time_steps(exe, device, step, 5)
        results.setdefault("prefill", {})[tokens] = row
        print(f"prefill {tokens}: {row}", flush=True)
    lab.save(path, results)
    if given.peer == "none":
        return
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3MoeForCausalLM(config(given.layers)).eval()
    for kind in given.peer.split(","):
        for batch in batches:
            ms = decode.peer_decode(model, kind, batch, given.context)
            results.setdefault("peer", {})[f"{kind}, batch {batch}"] = ms
            print(f"transformers {kind}, batch {batch}: {ms:.3f} ms", flush=True)
            lab.save(path, results)


if __name__ == "__main__":
    main()
