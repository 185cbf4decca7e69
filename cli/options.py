"""Options that several verbs share, as annotated types."""

from typing import Annotated

import typer

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
    float, typer.Option(min=0.0, help="0 takes the likeliest token; higher is more varied.")
]
TopK = Annotated[int, typer.Option(min=0, help="Draw from the k likeliest tokens; 0: from all.")]
TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="Draw from this share of probability.")]
Seed = Annotated[int | None, typer.Option(help="Makes draws repeatable.")]
Stop = Annotated[list[str] | None, typer.Option(help="End at this text; may be repeated.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
