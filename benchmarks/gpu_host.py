"""What the host costs on a GPU: engine steps beside the device's, and calls of compiled modules.

    python benchmarks/gpu_host.py [--layers 8] [--seqs 1,32,128,256,512] [--context 128]

A Llama of 8B's width with random weights. `device` is one replay of a captured decode step by
events, `engine` a step of the engine, host work included; with steps that overlap and without, and
the tokens of both are compared. Then calls of modules, ours and eager, with all they wait for.
"""

import argparse
import time

import gpu_decode as decode
import gpu_lab as lab
import numpy as np
import torch

import tilewright
from tilewright import passes
from tilewright.codegen.build import build
from tilewright.frontend.checkpoint import empty_module
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16
from tilewright.passes.pipelines import language_model
from tilewright.runtime.cuda import CudaDevice
from tilewright.runtime.engine.engine import Engine, EngineConfig
from tilewright.runtime.engine.runner import ProgramRunner
from tilewright.runtime.engine.sampling_params import SamplingParams
from tilewright.runtime.executable import Executable

STEPS = 64


def executable(layers: int, device: CudaDevice, pages: int) -> Executable:
    """The program that samples, with random weights."""
    captured = capture_causal_lm(
        empty_module(decode.config(layers), bf16, "the benchmark"), dtype=bf16
    )
    pipeline = language_model(bf16, page_size=decode.PAGE_SIZE, max_tokens=8192, stacks=True)
    result = passes.run(captured.graph, pipeline)
    program = build(result.graph, get_target(device.target), kv=result.kv)
    weights = decode.weights_of(program, decode.random_model(layers))
    return Executable(program, weights, device, sizes={"pages": pages})


def engine_ms(exe: Executable, device: CudaDevice, seqs: int, context: int, overlaps: bool):
    """(ms a decode step of the engine, ms of the device's, tokens)."""
    runner = ProgramRunner(exe)
    runner.overlaps &= overlaps
    config = EngineConfig(4096, max_num_seqs=seqs, max_num_batched_tokens=4096)
    engine = Engine(runner, config)
    rng = np.random.default_rng(0)
    params = SamplingParams(temperature=0.0, max_tokens=STEPS + 200, ignore_eos=True)
    given = [engine.add(rng.integers(0, 128000, context).tolist(), params) for _ in range(seqs)]
    while min(s.num_output for s in given) < 8:
        engine.step()
    device.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        engine.step()
    took = (time.perf_counter() - start) / STEPS * 1e3
    tokens = [s.output[: STEPS + 8] for s in given]
    step = max((n for n in runner._prepared if n.tokens == n.seqs), key=lambda n: n.tokens)
    on_device = lab.median_us(device, runner._prepared[step].start, 30) / 1000
    engine.abort_all()
    return took, on_device, tokens


def call_us(call, repeats: int = 300) -> float:
    """Microseconds of a call, with all it waits for."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1e6


def calls() -> None:
    """Modules of one launch, of a large result, and of many launches."""
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    cases = {
        "gelu, 4 KB": (torch.nn.GELU(), (1024,)),
        "gelu, 128 MB": (torch.nn.GELU(), (8192, 4096)),
        "MLP 256-512-256, 16 rows": (
            torch.nn.Sequential(
                torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)
            ),
            (16, 256),
        ),
        "6 encoder layers, 1 x 32": (
            torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
            (1, 32, 256),
        ),
    }
    with torch.no_grad():
        for name, (module, shape) in cases.items():
            module = module.eval().cuda()
            x = torch.randn(shape, device="cuda")
            compiled = tilewright.compile(module, target="sm_90")
            error = (compiled(x) - module(x)).abs().max().item()
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                module(x)
            print(
                f"{name:26} error {error:.1e}: ours {call_us(lambda c=compiled, x=x: c(x)):6.1f} us"
                f" a call, eager {call_us(lambda m=module, x=x: m(x)):6.1f}"
                f" ({call_us(captured.replay):.1f} as a graph)",
                flush=True,
            )
            others = [torch.randn(shape, device="cuda") for _ in range(12)]
            number = iter(range(10**9))
            changing = call_us(lambda c=compiled, o=others, n=number: c(o[next(n) % 12]))
            print(f"{'':26} and with inputs elsewhere each time {changing:6.1f}", flush=True)


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seqs", default="1,32,128,256,512")
    parser.add_argument("--context", type=int, default=128)
    given = parser.parse_args()
    calls()
    sizes = [int(n) for n in given.seqs.split(",")]
    device = CudaDevice()
    pages = max(sizes) * (-(-(given.context + 400) // decode.PAGE_SIZE) + 1)
    exe = executable(given.layers, device, pages)
    for seqs in sizes:
        apart, _, expected = engine_ms(exe, device, seqs, given.context, False)
        took, on_device, tokens = engine_ms(exe, device, seqs, given.context, True)
        print(
            f"{seqs:4} sequences: device {on_device:.3f} ms, engine {took:.3f}, one step after the"
            f" other {apart:.3f}; same tokens: {tokens == expected}",
            flush=True,
        )


if __name__ == "__main__":
    main()
