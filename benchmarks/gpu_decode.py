"""Decode and prefill of a Llama shape on one GPU, and transformers in the same process.

    python benchmarks/gpu_decode.py OUT [--layers 32] [--contexts 128,1024] [--batches 1,8,32]
        [--prefill 2048] [--peer eager,compiled]

Weights are random, shared between both. A decode step is one replay of a captured graph, timed
with events (`device_ms`), and as the engine sees it, inputs and tokens copied (`step_ms`). Both
models' logits are compared first. Floors: bytes of all weights but the embedding table over the
copy bandwidth, which is measured here too.
"""

import argparse
import re
import statistics
import time
from pathlib import Path

import gpu_lab as lab
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from tilewright import passes
from tilewright.codegen.build import build
from tilewright.frontend.checkpoint import empty_module
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16
from tilewright.passes.pipelines import language_model
from tilewright.runtime.cuda import CudaDevice
from tilewright.runtime.cuda_module import CudaPlan
from tilewright.runtime.executable import Executable
from tilewright.runtime.fixed_run import FixedRun

PAGE_SIZE = 16


def config(layers: int) -> LlamaConfig:
    """The shape of Llama-3.1-8B."""
    return LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        attn_implementation="sdpa",
    )


def compile_program(layers: int, target: str, results: dict):
    """Capture a model without data and compile it."""
    start = time.time()
    model = empty_module(config(layers), bf16, "the benchmark")
    captured = capture_causal_lm(model, dtype=bf16)
    captured_at = time.time()
    pipeline = language_model(
        bf16, page_size=PAGE_SIZE, max_tokens=8192, samples=False, stacks=True
    )
    result = passes.run(captured.graph, pipeline)
    passed_at = time.time()
    program = build(result.graph, get_target(target), kv=result.kv)
    results["seconds"] = {
        "capture": captured_at - start,
        "passes": passed_at - captured_at,
        "kernels": time.time() - passed_at,
    }
    results["distinct_kernels"] = len(program.kernels)
    print(results["seconds"], len(program.kernels), "kernels", flush=True)
    return program


def random_model(layers: int) -> LlamaForCausalLM:
    """The model with random bf16 weights on the GPU."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config(layers)).eval()
    torch.set_default_dtype(default)
    return model


def weights_of(program, model) -> dict[str, torch.Tensor]:
    """Our weights from the model's: the same memory, but for what was concatenated."""
    have = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    weights = {}
    for buffer in program.weights:
        name = re.sub(r":\w+$", "", buffer.name)
        parts = re.match(r"(.*)\{(.*)\}(.*)", name)
        if parts is None:
            tensor = have[name].detach()
        else:
            before, middle, after = parts.groups()
            tensor = torch.cat([have[before + m + after].detach() for m in middle.split(",")])
        tensor = tensor.to(lab.TORCH[buffer.type.dtype.name]).contiguous()
        weights[buffer.name] = tensor.reshape(buffer.type.shape)
    return weights


# ---- batches -------------------------------------------------------------------------------


def batch_of(lengths: list[int], contexts: list[int], tokens: np.ndarray, width: int) -> dict:
    """Metadata of sequences with `contexts` tokens each, the last `lengths` of them new."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    table = np.arange(len(lengths) * width, dtype=np.int32).reshape(len(lengths), width)
    positions = np.concatenate([np.arange(c - n, c) for n, c in zip(lengths, contexts)])
    owner = np.repeat(np.arange(len(lengths)), lengths)
    slots = table[owner, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
    return {
        "input_ids": tokens.reshape(1, -1).astype(np.int64),
        "position_ids": positions.reshape(1, -1).astype(np.int64),
        "slots": slots.astype(np.int32),
        "page_table": table,
        "query_starts": starts.astype(np.int32),
        "context_lens": np.array(contexts, np.int32),
        "logit_rows": (starts[1:] - 1).astype(np.int32),
        **sampling(len(lengths)),
    }


def sampling(rows: int) -> dict:
    """Parameters of greedy sampling."""
    return {
        "temperature": np.zeros(rows, np.float32),
        "top_k": np.zeros(rows, np.int32),
        "top_p": np.ones(rows, np.float32),
        "seed": np.zeros(rows, np.int64),
        "step": np.zeros(rows, np.int64),
    }


def prepared(exe: Executable, batch: dict) -> FixedRun:
    """The program at the sizes of `batch`, its launches captured."""
    shapes = [batch[name].shape for name in exe.program.inputs]
    return FixedRun(exe, shapes)


def launches_of(exe: Executable, batch: dict) -> int:
    """How many kernels one step launches."""
    bound = exe._bind(tuple(batch[name].shape for name in exe.program.inputs))
    return len(bound.binding.launches)


def compare(exe: Executable, model, tokens: int = 200) -> float:
    """Relative error of our logits against transformers, prefill and one decode step after it."""
    ids = np.random.default_rng(0).integers(0, 128000, tokens + 1)
    width = -(-(tokens + 1) // PAGE_SIZE)
    with torch.no_grad():
        want = model(torch.tensor(ids[None], device="cuda")).logits[0, -2:].float()
    errors = []
    for lengths, contexts, part, row in (
        ([tokens], [tokens], ids[:tokens], 0),
        ([1], [tokens + 1], ids[tokens:], 1),
    ):
        batch = batch_of(lengths, contexts, part, width)
        out = exe(*(batch[name] for name in exe.program.inputs))
        errors.append(lab.relative_error(torch.from_dlpack(out[0])[0].float(), want[row]))
        same = int(out[1].numpy()[0]) == int(want[row].argmax())
        print(
            f"logits of {lengths[0]} new tokens: error {errors[-1]:.2e}, same token: {same}",
            flush=True,
        )
    return max(errors)


def time_steps(exe: Executable, device, batch: dict, repeats: int = 30) -> dict:
    """Times of one step, in milliseconds."""
    step = prepared(exe, batch)
    step.run(batch)
    step.output(1)
    on_device = lab.median_us(device, step.start, repeats) / 1000
    walls = []
    for _ in range(repeats):
        start = time.perf_counter()
        step.run(batch)
        step.output(1)
        walls.append(time.perf_counter() - start)
    return {"device_ms": on_device, "step_ms": statistics.median(walls) * 1000}


def costs(exe: Executable, device, batch: dict) -> list[tuple[str, int, float]]:
    """(where, launches, us each) of a step's launches: what the captured step saves without them.

    So a launch's cost includes what it keeps its neighbours from overlapping. Those that write
    indices stay: what reads by them would read anywhere.
    """
    step = prepared(exe, batch)
    step.run(batch)
    bound = exe._bind(tuple(batch[name].shape for name in exe.program.inputs))
    addresses = bound.addresses.copy()
    addresses[list(exe._input_at)] = step.addresses
    for (at, _), array in zip(exe._outputs, step._outputs):
        addresses[at] = array.address
    launches = bound.plan._launches
    kinds: dict[str, list[int]] = {}
    names = {at: name for name, at in exe._sizes.index.items()}
    written: set[int] = set()
    for number, launch in enumerate(bound.binding.launches):
        first = [exe.program.buffers[names[at]] for at in {*launch.buffers} - written]
        written.update(launch.buffers)
        if any(b.role == "temp" and b.type.dtype.is_integer for b in first):
            continue
        place = exe.program.steps[launch.step]
        label = place.name.partition("_")[2]
        module = (place.loc or "").split(".")[-1]
        kinds.setdefault(f"{launch.kernel.template} {module} {label}".strip(), []).append(number)

    def time_without(skipped: set[int]) -> float:
        kept = [item for number, item in enumerate(launches) if number not in skipped]
        return lab.median_us(device, CudaPlan(device, kept).capture(addresses), 15)

    whole = time_without(set())
    rows = [
        (kind, len(numbers), round((whole - time_without(set(numbers))) / len(numbers), 2))
        for kind, numbers in kinds.items()
    ]
    return sorted(rows, key=lambda row: -row[1] * row[2])


# ---- the peer ------------------------------------------------------------------------------


def peer_decode(model, kind: str, batch: int, context: int) -> float:
    """transformers with a static cache, eager or compiled: milliseconds a decode step."""
    with torch.no_grad():
        cache = StaticCache(config=model.config, max_cache_len=max(1024, context + 8))
        ids = torch.randint(0, 128000, (batch, context - 1), device="cuda")
        where = torch.arange(context - 1, device="cuda")
        model(input_ids=ids, past_key_values=cache, cache_position=where)
        token = torch.randint(0, 128000, (batch, 1), device="cuda")
        at = torch.tensor([context - 1], device="cuda")
        run = model
        if kind == "compiled":
            torch._dynamo.reset()
            run = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        for _ in range(4):
            run(input_ids=token, past_key_values=cache, cache_position=at)
        torch.cuda.synchronize()
        times = []
        for _ in range(20):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run(input_ids=token, past_key_values=cache, cache_position=at)
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes read and written a second by a large device-to-device copy."""
    x = torch.empty(1 << 30, device="cuda", dtype=torch.bfloat16).normal_()
    y = torch.empty_like(x)
    times = []
    for _ in range(12):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        y.copy_(x)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return 2 * x.numel() * 2 / (statistics.median(times) / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--contexts", default="128,1024")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--prefill", default="2048")
    parser.add_argument("--peer", default="compiled", help="none, or some of: eager,compiled")
    parser.add_argument("--profile", default="", help="batches whose launches are costed by kind")
    given = parser.parse_args()
    profiled = [int(b) for b in given.profile.split(",") if b]
    results: dict = {"layers": given.layers, "page_size": PAGE_SIZE}
    path = given.out / "gpu_decode.json"

    device = CudaDevice(0)
    program = compile_program(given.layers, device.target, results)
    model = random_model(given.layers)
    weights = weights_of(program, model)
    read = sum(w.numel() * w.element_size() for n, w in weights.items() if "embed" not in n)
    results["weight_bytes"] = read
    results["copy_TBps"] = copy_bandwidth() / 1e12
    floor = read / copy_bandwidth() * 1000
    results["floor_ms"] = floor
    exe = Executable(program, weights, device, sizes={"pages": 8192})
    results["logits_error"] = compare(exe, model)
    contexts = [int(c) for c in given.contexts.split(",")]
    for batch in (int(b) for b in given.batches.split(",")):
        for context in contexts:
            width = -(-context // PAGE_SIZE)
            step = batch_of([1] * batch, [context] * batch, np.arange(batch), width)
            row = time_steps(exe, device, step)
            row["launches"] = launches_of(exe, step)
            row["launches_per_layer"] = row["launches"] / given.layers
            results.setdefault("decode", {})[f"batch {batch}, context {context}"] = row
            print(f"batch {batch} context {context}: {row}, floor {floor:.2f} ms", flush=True)
            if batch in profiled and context == contexts[-1]:
                row["costs"] = costs(exe, device, step)
                for kind, count, us in row["costs"]:
                    print(f"   {us:8.2f} us x {count:3} {kind}", flush=True)
            lab.save(path, results)
    for tokens in (int(t) for t in given.prefill.split(",") if t):
        step = batch_of([tokens], [tokens], np.arange(tokens), -(-tokens // PAGE_SIZE))
        row = time_steps(exe, device, step, 5)
        results.setdefault("prefill", {})[tokens] = row
        print(f"prefill {tokens}: {row}", flush=True)
    lab.save(path, results)
    for kind in given.peer.split(","):
        if kind == "none":
            continue
        for batch in (1,):
            start = time.time()
            ms = peer_decode(model, kind, batch, contexts[0])
            results.setdefault("peer", {})[f"{kind}, batch {batch}, context {contexts[0]}"] = ms
            print(
                f"transformers {kind} batch {batch}: {ms:.3f} ms ({time.time() - start:.0f} s)",
                flush=True,
            )
            lab.save(path, results)
    ours = results["decode"][f"batch 1, context {contexts[0]}"]["device_ms"]
    print(
        f"decode, batch 1: {ours:.3f} ms, {read / ours / 1e9:.2f} TB/s,"
        f" {floor / ours:.0%} of copy bandwidth, {1000 / ours:.0f} tokens/s"
    )


if __name__ == "__main__":
    main()
