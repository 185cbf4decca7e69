"""Opening a model from the command line: options to `LLM`, with a progress line meanwhile."""

import os
from typing import Any

from ..api.language_model import LLM
from .progress_line import progress


def open_llm(model: str, *, quiet: bool, **options: Any) -> LLM:
    """`LLM(model, **options)`; options that are None are left at their defaults.

    threads: for the rest of the process, as the switch of that name.
    """
    if (threads := options.pop("threads", None)) is not None:
        os.environ["TILEWRIGHT_THREADS"] = str(threads)
    given = {name: value for name, value in options.items() if value is not None}
    with progress(quiet) as show:
        return LLM(model, progress=show, **given)


def speed(llm: LLM) -> dict[str, float]:
    """Tokens a second and seconds to the first token, of all requests so far."""
    stats = llm.stats
    return {
        "prefill_tokens_per_second": round(stats.prefill_tokens_per_second, 1),
        "decode_tokens_per_second": round(stats.decode_tokens_per_second, 1),
        "first_token_seconds": round(stats.first_token_seconds, 3),
    }


def speed_line(llm: LLM) -> str:
    """The same as one line."""
    figures = speed(llm)
    return (
        f"prefill {figures['prefill_tokens_per_second']:.1f} tokens/s, "
        f"decode {figures['decode_tokens_per_second']:.1f} tokens/s, "
        f"first token after {figures['first_token_seconds']:.2f} s"
    )
