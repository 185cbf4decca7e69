"""`tilewright chat` and `tilewright run`: a conversation in the terminal, or one answer."""

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..ir.errors import RequestError
from . import interruption, options
from .console import decoded
from .generate import messages_of, stream_answer

if TYPE_CHECKING:
    from ..api.language_model import LLM
    from ..runtime.engine.sampling_params import SamplingParams

COMMANDS = {
    "/reset": "begins anew",
    "/help": "shows this",
    "/exit": "ends, as Ctrl-D does",
    "/quit": "the same",
}
HELP = (
    ", ".join(f"{name} {what}" for name, what in COMMANDS.items())
    + '; Ctrl-C stops an answer; lines go on after \\ at their end, or between """ and """'
)
QUOTES = '"""'


def run(
    model: options.Model = "demo",
    prompt: Annotated[str | None, typer.Argument(help="What to ask; none: a conversation.")] = None,
    system: options.System = "",
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    dtype: options.DType = "auto",
    target: options.Target = "auto",
    max_model_len: options.MaxModelLen = None,
    kv_cache_bytes: options.KVCacheBytes = None,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Answer one question, or talk where none is given."""
    chosen = locals()
    params, llm = options.sampling_params(chosen), options.open_model(chosen)
    if prompt is not None:
        stream_answer(llm, messages_of(prompt, system), params, quiet)
        return
    if not quiet:
        print(HELP, file=sys.stderr)
    converse(llm, params, system, quiet)


@options.same_as(run, without="prompt")
def chat(**chosen: Any) -> None:
    """Talk with a model."""
    run(**chosen)


def converse(llm: "LLM", params: "SamplingParams", system: str = "", quiet: bool = True) -> None:
    """Answer what is said on standard input until it ends."""
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    while (said := read_message()) is not None:
        command = re.fullmatch(r"/[a-z]*", said)
        if said in ("/exit", "/quit"):
            return
        if said == "/reset":
            messages = list(start)
        elif said == "/help":
            print(HELP, file=sys.stderr)
        elif command:
            print(f"no command {said}: there are {', '.join(COMMANDS)}", file=sys.stderr)
        elif said:
            asked = [*messages, {"role": "user", "content": said}]
            try:
                answer = answer_to(llm, asked, params, quiet)
            except RequestError as error:  # such as a conversation that became too long
                if not sys.stdin.isatty():
                    raise
                print(f"{error.kind}: {error}\n/reset begins anew", file=sys.stderr)
                continue
            messages = [*asked, {"role": "assistant", "content": answer}]


def answer_to(
    llm: "LLM", messages: list[dict], params: "SamplingParams", quiet: bool = True
) -> str:
    """Write the answer as it comes. Ctrl-C ends it early; what was said until then counts."""
    parts: list[str] = []
    try:
        stream_answer(llm, messages, params, quiet, parts)
    except KeyboardInterrupt:
        interruption.forget()
        print(" ...", flush=True)
    return "".join(parts)


def read_message() -> str | None:
    """What the user says, of one line or several; None at the end of input.

    A line that ends in a backslash goes on in the next one; so do lines from triple quotes to
    triple quotes. Ctrl-C on a terminal forgets what was typed.
    """
    try:
        line = _read_line("> ")
        if line is None:
            return None
        if line.lstrip().startswith(QUOTES):
            return _until_quotes(line.lstrip().removeprefix(QUOTES))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            following = _read_line(". ")
            if following is None:
                break
            lines.append(following)
        return "\n".join(lines).strip()
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        interruption.forget()
        print()
        return ""


def _until_quotes(first: str) -> str:
    lines = [first]
    while not lines[-1].rstrip().endswith(QUOTES):
        following = _read_line(". ")
        if following is None:
            return "\n".join(lines).strip()
        lines.append(following)
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip()


def _read_line(prompt: str) -> str | None:
    """A line of the user's, None at the end of input. The prompt shows on a terminal only."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        _edit_lines()
    try:
        with decoded("a line of standard input"):
            return input(prompt if is_terminal else "")
    except EOFError:
        return None


def _edit_lines() -> None:
    """Give `input` arrow keys and a history, where Python was built with them."""
    try:
        import readline  # noqa: F401  `input` uses it once it is loaded
    except ImportError:
        return
