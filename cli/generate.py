"""`tilewright generate`: complete prompts."""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ir.errors import OptionError
from . import options
from .console import decoded, print_json, read_input

if TYPE_CHECKING:
    from ..api.language_model import LLM
    from ..runtime.engine.outputs import CompletionOutput, Logprob, RequestOutput
    from ..runtime.engine.sampling_params import SamplingParams


def generate(
    model: options.Model,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; - reads one from standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A file with a prompt on each line.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put each prompt to the model as a user's message.")
    ] = False,
    system: Annotated[
        str, typer.Option(help="A system message before each prompt; implies --chat.")
    ] = "",
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    n: Annotated[
        int, typer.Option("--n", "-n", min=1, max=128, help="Completions of each prompt.")
    ] = 1,
    logprobs: Annotated[
        int | None,
        typer.Option(
            min=0, max=20, help="With --json: log-probabilities of so many tokens at each place."
        ),
    ] = None,
    prompt_logprobs: Annotated[
        int | None,
        typer.Option(min=0, max=20, help="With --json: the same at each token of the prompt."),
    ] = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    dtype: options.DType = "auto",
    target: options.Target = "auto",
    max_model_len: options.MaxModelLen = None,
    kv_cache_bytes: options.KVCacheBytes = None,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Complete prompts. One prompt is written out as it comes; several are computed together."""
    chosen = locals()
    for name in ("logprobs", "prompt_logprobs"):
        if chosen[name] is not None and not as_json:
            option = f"--{name.replace('_', '-')}"
            raise OptionError(f"{option} is shown with --json only", fix="add --json")
    texts = read_prompts(prompts or [], file)
    asked = [messages_of(text, system) if chat or system else text for text in texts]
    params, llm = options.sampling_params(chosen), options.open_model(chosen)
    if as_json:
        results = _complete(llm, asked, params, quiet)
        data = [as_data(result) for result in results]
        print_json({"model": model, "results": data, "stats": options.speed(llm)})
        _raise_failed(results)
        return
    if len(texts) == 1 and n == 1:
        stream_answer(llm, asked[0], params, quiet)
    else:
        results = _complete(llm, asked, params, quiet)
        for text, result in zip(texts, results):
            print(f"--- {text}")
            for output in result.outputs:
                print(f"{output.text.strip()}\n")
        _raise_failed(results)
    if not quiet:
        prefill, decode, first = options.speed(llm).values()
        print(
            f"prefill {prefill:.1f} tokens/s, decode {decode:.1f} tokens/s, "
            f"first token after {first:.2f} s",
            file=sys.stderr,
        )


def read_prompts(given: list[str], file: Path | None) -> list[str]:
    """Prompts of the command line and of a file. OptionError when there is none."""
    texts = [read_input().rstrip("\n") if text == "-" else text for text in given]
    if file is not None:
        if not file.is_file():
            raise OptionError(f"{file} is not a file", fix="--file names a file of prompts")
        with decoded(str(file)):
            lines = file.read_text(encoding="utf-8").splitlines()
        texts += [line for line in lines if line.strip()]
    if not texts:
        raise OptionError("no prompt", fix="give one after the model, or --file, or - for a pipe")
    return texts


def messages_of(text: str, system: str = "") -> list[dict]:
    """A conversation of one question, after a system message if there is one."""
    start = [{"role": "system", "content": system}] if system else []
    return [*start, {"role": "user", "content": text}]


def _complete(
    llm: "LLM", asked: list, params: "SamplingParams", quiet: bool
) -> "list[RequestOutput]":
    from .progress_line import progress

    with progress(quiet) as show:
        ask = llm.generate if isinstance(asked[0], str) else llm.chat
        return ask(asked, params, use_tqdm=False, progress=show)


def _raise_failed(results: "list[RequestOutput]") -> None:
    """The first error of a prompt, once what the others gave is printed."""
    for result in results:
        for output in result.outputs:
            if output.error is not None:
                raise output.error


def stream_answer(
    llm: "LLM",
    asked: "str | list",
    params: "SamplingParams",
    quiet: bool,
    parts: list[str] | None = None,
) -> None:
    """Write what follows a prompt, or messages, as it comes; its pieces go to `parts` as well."""
    from .progress_line import progress

    parts = [] if parts is None else parts
    with progress(quiet) as show:  # until there is something to read
        ask = llm.stream if isinstance(asked, str) else llm.stream_chat
        stream = ask(asked, params, progress=show)
        parts += itertools.islice(stream, 1)
    with stream:
        print("".join(parts), end="", flush=True)
        for delta in stream:
            parts.append(delta)
            print(delta, end="", flush=True)
    print()


def as_data(result: "RequestOutput") -> dict:
    """One prompt's results as plain data; those of the first completion stand outside as well."""
    outputs = [_completion(output) for output in result.outputs]
    several = {"outputs": outputs} if len(outputs) > 1 else {}
    scores = result.prompt_logprobs
    return {
        "prompt": result.prompt,
        "prompt_tokens": len(result.prompt_token_ids),
        **({} if scores is None else {"prompt_logprobs": _places(scores)}),
        **outputs[0],
        **several,
    }


def _completion(output: "CompletionOutput") -> dict:
    data = {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "error": None if output.error is None else str(output.error),
    }
    if output.logprobs is not None:
        data["logprobs"] = _places(output.logprobs)
    return data


def _places(logprobs: "Sequence[dict[int, Logprob] | None]") -> list[list[dict] | None]:
    """A list of tokens a place; None for a place that has none, such as a prompt's first."""
    return [
        None
        if place is None
        else [{"token_id": token, **asdict(value)} for token, value in place.items()]
        for place in logprobs
    ]
