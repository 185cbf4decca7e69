"""`tilewright generate`: complete prompts."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ir.errors import OptionError
from . import options
from .console import decoded, print_json, read_input

if TYPE_CHECKING:
    from ..runtime.outputs import RequestOutput
    from ..runtime.sampling import SamplingParams
    from .language_model import LLM


def generate(
    model: options.Model,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts; - reads one from standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A file with a prompt on each line.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put each prompt to the model as a user's message.")
    ] = False,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    dtype: options.DType = "auto",
    target: options.Target = "auto",
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Complete prompts. One prompt is written out as it comes; several are computed together."""
    from .opening import open_llm, sampling, speed, speed_line

    texts = read_prompts(prompts or [], file)
    params = sampling(max_tokens, temperature, top_k, top_p, seed, stop)
    llm = open_llm(model, quiet=quiet, dtype=dtype, target=target)
    if as_json:
        results = _complete(llm, texts, chat, params)
        data = [_as_data(result) for result in results]
        print_json({"model": model, "results": data, "stats": speed(llm)})
        _raise_failed(results)
        return
    if len(texts) == 1:
        _stream(llm, texts[0], chat, params)
    else:
        results = _complete(llm, texts, chat, params)
        for text, result in zip(texts, results):
            print(f"--- {text}\n{result.outputs[0].text.strip()}\n")
        _raise_failed(results)
    if not quiet:
        print(speed_line(llm), file=sys.stderr)


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


def _complete(
    llm: "LLM", texts: list[str], chat: bool, params: "SamplingParams"
) -> "list[RequestOutput]":
    if chat:
        return llm.chat([[{"role": "user", "content": text}] for text in texts], params)
    return llm.generate(texts, params)


def _raise_failed(results: "list[RequestOutput]") -> None:
    """The first error of a prompt, once what the others gave is printed."""
    for result in results:
        error = result.outputs[0].error
        if error is not None:
            raise error


def _stream(llm: "LLM", text: str, chat: bool, params: "SamplingParams") -> None:
    if chat:
        stream = llm.stream_chat([{"role": "user", "content": text}], params)
    else:
        stream = llm.stream(text, params)
    with stream:
        for delta in stream:
            print(delta, end="", flush=True)
    print()


def _as_data(result: "RequestOutput") -> dict:
    (output,) = result.outputs
    return {
        "prompt": result.prompt,
        "prompt_tokens": len(result.prompt_token_ids),
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "error": None if output.error is None else str(output.error),
    }
