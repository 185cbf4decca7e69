"""Options that several verbs share, as annotated types, and what becomes of them."""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..ir import switches

if TYPE_CHECKING:
    from ..api.language_model import LLM
    from ..runtime.engine.sampling_params import SamplingParams


def _above_zero(value: float) -> float:
    if value <= 0:
        raise typer.BadParameter(f"{value:g} is not above 0")
    return value


Model = Annotated[
    str,
    typer.Argument(help="A folder (Hugging Face, ONNX), a .gguf file, an artifact, or `demo`."),
]
DType = Annotated[
    str, typer.Option(help="How weights are stored: f32, bf16 or f16. Default: the target's own.")
]
Target = Annotated[str, typer.Option(help="auto, cpu, sm_90, ...")]
KVCacheDType = Annotated[
    str, typer.Option(help="How keys and values are stored. Default: as they are computed.")
]
Records = Annotated[
    str | None,
    typer.Option(help="The file of tuning records; `none`: default schedules. Default: your own."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", help="An argument of a module: 'x=f32[batch, 128]', or 'scale=2.5'."
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", help="The sizes that a named dim may have: batch=1..8."),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Read a .pt2 file, which may run code that it holds.")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")]
Temperature = Annotated[
    float,
    typer.Option(min=0.0, max=100.0, help="0 takes the likeliest token; higher is more varied."),
]
TopK = Annotated[int, typer.Option(min=0, help="Draw from the k likeliest tokens; 0: from all.")]
TopP = Annotated[
    float,
    typer.Option(
        min=0.0, max=1.0, help="Draw from this share of probability; 0 leaves the likeliest token."
    ),
]
MinP = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, help="Draw from tokens at least so likely, beside the best."),
]
PresencePenalty = Annotated[
    float, typer.Option(min=-2.0, max=2.0, help="Subtracted from the logits of tokens generated.")
]
FrequencyPenalty = Annotated[
    float, typer.Option(min=-2.0, max=2.0, help="The same, times how often each was generated.")
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        callback=_above_zero, max=100.0, help="Above 1 makes tokens of prompt and text unlikely."
    ),
]
System = Annotated[str, typer.Option(help="A system message to begin with.")]
MaxModelLen = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a sequence. Default: all the model allows.")
]
KVCacheBytes = Annotated[
    int | None, typer.Option(min=1, help="Memory for keys and values. Default: by what is free.")
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=switches.MAX_INT, help="CPU threads. Default: the cores it may use."),
]
Seed = Annotated[
    int | None, typer.Option(min=-(2**63), max=2**63 - 1, help="Makes draws repeatable.")
]
Stop = Annotated[list[str] | None, typer.Option(help="End at this text; may be repeated.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def sampling_params(chosen: Mapping[str, Any]) -> "SamplingParams":
    """The sampling parameters among a verb's parsed options."""
    from ..runtime.engine.sampling_params import SamplingParams

    known = [f.name for f in fields(SamplingParams)]
    return SamplingParams(**{name: chosen[name] for name in known if name in chosen})


def open_model(chosen: Mapping[str, Any]) -> "LLM":
    """The model of a verb's parsed options, those that `LLM` takes and that are not None.

    A progress line shows meanwhile. threads: for the rest of the process, as the switch.
    """
    from ..api.language_model import LLM
    from .progress_line import progress

    if chosen.get("threads") is not None:
        os.environ["TILEWRIGHT_THREADS"] = str(chosen["threads"])
    taken = ("dtype", "target", "max_model_len", "kv_cache_bytes", "use_cache")
    given = {name: chosen[name] for name in taken if chosen.get(name) is not None}
    with progress(chosen["quiet"]) as show:
        return LLM(chosen["model"], progress=show, **given)


def speed(llm: "LLM") -> dict[str, float]:
    """Tokens a second and seconds to the first token, of all requests so far."""
    return {
        "prefill_tokens_per_second": round(llm.stats.prefill_tokens_per_second, 1),
        "decode_tokens_per_second": round(llm.stats.decode_tokens_per_second, 1),
        "first_token_seconds": round(llm.stats.first_token_seconds, 3),
    }


def same_as(verb: Callable[..., None], *, without: str) -> Callable[[Callable], Callable]:
    """Decorator of a verb that takes the options of another one, but for one of them."""
    signature = inspect.signature(verb)
    kept = [p for p in signature.parameters.values() if p.name != without]

    def decorate(function: Callable) -> Callable:
        function.__signature__ = signature.replace(parameters=kept)  # what typer reads
        return function

    return decorate
