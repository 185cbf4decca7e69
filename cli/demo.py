"""`tilewright demo`: the whole path once, on the packaged model, with the figures it comes to."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .console import human_bytes, labelled, print_json

if TYPE_CHECKING:
    from ..api.language_model import LLM

QUESTION = "What is the capital of France?"


def demo(
    question: Annotated[str, typer.Argument(help="What to ask.")] = QUESTION,
    max_tokens: options.MaxTokens = 64,
    dtype: options.DType = "auto",
    target: options.Target = "auto",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compile even where the cache has the result.")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Compile SmolLM2-135M-Instruct from its unmodified checkpoint and ask it a question."""
    from ..runtime.engine.sampling_params import SamplingParams

    chosen = {**locals(), "model": "demo", "use_cache": not fresh}
    start = time.perf_counter()
    llm = options.open_model(chosen)
    ready = time.perf_counter() - start
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    (result,) = llm.chat([{"role": "user", "content": question}], params, use_tqdm=False)
    answer = result.outputs[0]
    figures = {"question": question, "answer": answer.text.strip(), **figures_of(llm, ready)}
    if as_json:
        print_json(figures)
    else:
        print(render(figures))


def figures_of(llm: "LLM", ready_seconds: float) -> dict:
    """What the demonstration shows besides the answer, as plain data."""
    from ..ir.steps import launches

    program = llm.program
    return {
        "model": llm.facts["architecture"],
        "layers": llm.facts["num_layers"],
        "target": program.target,
        "weights_dtype": llm.facts["dtype"],
        "weight_bytes": llm.weight_bytes,
        "was_cached": llm.was_cached,
        "ready_seconds": round(ready_seconds, 2),
        "build_seconds": dict(llm.facts["seconds"]),
        "launches": sum(1 for _ in launches(program.steps)),
        "distinct_kernels": len(program.kernels),
        "kernels_per_layer": round(llm.kernels_per_layer, 2),
        "fallback_ops": llm.facts["fallback_ops"],
        **options.speed(llm),
    }


def render(figures: dict) -> str:
    """Question, answer, and a line a figure."""
    stages = ", ".join(f"{stage} {t:.1f} s" for stage, t in figures["build_seconds"].items())
    built = f"{sum(figures['build_seconds'].values()):.1f} s ({stages})"
    if figures["was_cached"]:
        built += ", in an earlier run"
    rows = [
        ("model", f"{figures['model']}, {figures['layers']} layers"),
        (
            "weights",
            f"{figures['weights_dtype']}, {human_bytes(figures['weight_bytes'])}",
        ),
        ("target", figures["target"]),
        ("compile time", built),
        ("ready after", f"{figures['ready_seconds']:.1f} s"),
        ("first token after", f"{figures['first_token_seconds']:.2f} s"),
        ("prefill", f"{figures['prefill_tokens_per_second']:.1f} tokens/s"),
        ("decode", f"{figures['decode_tokens_per_second']:.1f} tokens/s"),
        ("kernels per layer", f"{figures['kernels_per_layer']:g}"),
        (
            "kernels",
            f"{figures['distinct_kernels']} distinct, {figures['launches']} launches a step",
        ),
        ("fallback ops", str(figures["fallback_ops"])),
    ]
    table = labelled([(f"  {label}", value) for label, value in rows])
    return f"> {figures['question']}\n{figures['answer']}\n\n{table}"
