"""Options that several verbs share, as annotated types."""

from typing import Annotated

import typer

from ..ir import switches


def _above_zero(value: float) -> float:
    if value <= 0:
        raise typer.BadParameter(f"{value:g} is not above 0")
    return value


Model = Annotated[
    str,
    typer.Argument(help="A Hugging Face folder, a .gguf file, an artifact, or `demo`."),
]
DType = Annotated[
    str, typer.Option(help="How weights are stored: f32, bf16 or f16. Default: the target's own.")
]
Target = Annotated[str, typer.Option(help="auto, cpu, sm_90, ...")]
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
