"""`tilewright chat`: a conversation in the terminal."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from . import interruption, options

if TYPE_CHECKING:
    from ..runtime.sampling import SamplingParams
    from .language_model import LLM

HELP = "/reset begins anew, /exit or Ctrl-D ends, Ctrl-C stops an answer"


def chat(
    model: options.Model = "demo",
    system: Annotated[str, typer.Option(help="A system message to begin with.")] = "",
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    dtype: options.DType = "auto",
    target: options.Target = "auto",
    quiet: options.Quiet = False,
) -> None:
    """Talk with a model."""
    from .opening import open_llm, sampling

    params = sampling(max_tokens, temperature, top_k, top_p, seed, None)
    llm = open_llm(model, quiet=quiet, dtype=dtype, target=target)
    if not quiet:
        print(HELP, file=sys.stderr)
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    while (said := _read_line()) is not None:
        if said in ("/exit", "/quit"):
            return
        if said == "/reset":
            messages = list(start)
        elif said == "/help":
            print(HELP, file=sys.stderr)
        elif said:
            asked = [*messages, {"role": "user", "content": said}]
            answer = answer_to(llm, asked, params)
            messages = [*asked, {"role": "assistant", "content": answer}]


def answer_to(llm: "LLM", messages: list[dict], params: "SamplingParams") -> str:
    """Write the answer as it comes. Ctrl-C ends it early; what was said until then counts."""
    parts: list[str] = []
    with llm.stream_chat(messages, params) as stream:
        try:
            for delta in stream:
                parts.append(delta)
                print(delta, end="", flush=True)
        except KeyboardInterrupt:
            interruption.forget()
            print(" ...", end="", flush=True)
    print()
    return "".join(parts)


def _read_line() -> str | None:
    """A line of the user's, None at the end of input. The prompt shows on a terminal only."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
