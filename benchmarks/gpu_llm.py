"""Whole language models on one GPU: the same tokens as transformers, and decode speed.

    python benchmarks/gpu_llm.py OUT [--gguf FILE]

Equality is held on the device as it is on the CPU: greedy tokens against transformers eager in
float32, alone and batched; with bfloat16 the logit margin of every first divergence. The model is
SmolLM2-135M-Instruct when its file is given, else its shape with random weights.
"""

import argparse
import json
import statistics
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import tilewright
from tilewright.runtime.fixed_run import FixedRun

LENGTHS = [1, 2, 3, 5, 8, 13, 17, 21, 34, 55, 64, 65, 89, 127, 128, 144, 200, 233, 333, 377, 500]
MIXED = [1, 3, 17, 64, 65, 200, 333, 512]
NEW_TOKENS = 64


def make_model(gguf: str | None, dtype: torch.dtype):
    """SmolLM2 from its file, or its shape with random weights."""
    if gguf is not None:
        from tilewright.frontend.checkpoint import open_checkpoint

        checkpoint = open_checkpoint(gguf)
        model = checkpoint.module
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(checkpoint.arrays[name].load()))
    else:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(
                hidden_size=576,
                intermediate_size=1536,
                num_hidden_layers=30,
                num_attention_heads=9,
                num_key_value_heads=3,
                vocab_size=49152,
                max_position_embeddings=8192,
                rope_theta=100000.0,
                tie_word_embeddings=True,
            )
        )
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    model = model.eval().to(dtype)
    for name, buffer in model.named_buffers():  # rotary frequencies stay float32
        buffer.data = buffers[name]
    model.set_attn_implementation("eager")
    return model.cuda()


def divergence(model, prompt: list[int], tokens: list[int]):
    """(place, logit margin) of the first token that eager would choose otherwise, else None."""
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *tokens[:-1]]], device="cuda")
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 :].float()
    chosen = logits.argmax(-1).tolist()
    for place, (ours, theirs) in enumerate(zip(tokens, chosen)):
        if ours != theirs:
            return place, (logits[place, theirs] - logits[place, ours]).item()
    return None


def generate(llm, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy continuations, all prompts together."""
    params = tilewright.SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    results = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    return [list(r.outputs[0].token_ids) for r in results]


def check(name: str, gguf: str | None, dtype: torch.dtype, results: dict) -> None:
    """Compile, generate alone and together, compare with eager, time a decode step."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model = make_model(gguf, dtype)
    start = time.time()
    llm = tilewright.LLM(model.cpu(), dtype=name, target="auto", max_model_len=1024)
    ready = time.time() - start
    model = model.cuda()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(10, 40000, n).tolist() for n in LENGTHS]
    alone = [generate(llm, [p])[0] for p in prompts]
    together = generate(llm, prompts)
    mixed = [rng.integers(10, 40000, n).tolist() for n in MIXED]
    mixed_alone = [generate(llm, [p])[0] for p in mixed]
    mixed_together = generate(llm, mixed)
    found = [divergence(model, p, t) for p, t in zip(prompts, alone)]
    row = {
        "ready_s": ready,
        "prompts": len(prompts),
        "equal_to_eager": sum(f is None for f in found),
        "first_divergences": [f for f in found if f is not None],
        "batched_equals_alone": sum(a == b for a, b in zip(alone, together)),
        "mixed_batch_equals_alone": sum(a == b for a, b in zip(mixed_alone, mixed_together)),
        **decode_speed(llm),
    }
    row["batched_divergences"] = [
        d
        for p, a, b in zip(prompts + mixed, alone + mixed_alone, together + mixed_together)
        if a != b and (d := divergence(model, p, b)) is not None
    ]
    results[name] = row
    print(name, json.dumps(row), flush=True)


def decode_speed(llm) -> dict:
    """Milliseconds of one captured decode step at batch 1 and 128 tokens of context."""
    from tilewright.runtime.engine.batch import make_batch
    from tilewright.runtime.engine.sampling_params import SamplingParams
    from tilewright.runtime.engine.scheduler import Work
    from tilewright.runtime.engine.sequence import Sequence

    runner = llm.engine.runner
    pages = -(-128 // runner.page_size)
    params = SamplingParams(temperature=0.0)
    sequence = Sequence(0, tuple(range(100, 228)), params, 0, pages=list(range(pages)))
    sequence.num_computed = 127
    batch = make_batch([Work(sequence, 1)], runner.page_size, samples=runner.samples)
    executable = llm.executable
    step = FixedRun(executable, [batch.arrays[n].shape for n in executable.program.inputs])
    times = []
    for _ in range(200):
        begin = time.perf_counter()
        step.run(batch.arrays)
        step.output(1)
        times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    stats = llm.stats
    return {
        "step_ms": seconds * 1e3,
        "tokens_per_s": 1 / seconds,
        "weight_bytes": llm.weight_bytes,
        "achieved_tb_s": llm.weight_bytes / seconds / 1e12,
        "engine_decode_tokens_per_s": stats.decode_tokens_per_second,
        "kernels_per_layer": llm.kernels_per_layer,
    }


def main() -> None:
    """Check both dtypes and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gguf")
    given = parser.parse_args()
    results: dict = {
        "date": date.today().isoformat(),
        "card": torch.cuda.get_device_name(),
        "command": " ".join(["python", *(Path(a).name for a in sys.argv)]),
        "model": "SmolLM2-135M-Instruct" if given.gguf else "random weights, SmolLM2 shape",
    }
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        check(name, given.gguf, dtype, results)
        (given.out / "gpu_llm.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
