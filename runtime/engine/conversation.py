"""Conversations as chat templates take them: plain data, texts joined, control tokens marked."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from ...ir.errors import RequestError, listed

Messages = Sequence[Mapping[str, Any]]


class TemplateOptions(TypedDict, total=False):
    """What `LLM.chat` takes for its template, under the names of vLLM and transformers.

    chat_template: a name of one of the model's, or a text. sanitize_control_tokens: what looks like
    a control token in a message stays text. chat_template_kwargs: whatever else a template reads.
    """

    chat_template: str | None
    add_generation_prompt: bool
    continue_final_message: bool
    tools: Sequence[Mapping[str, Any]] | None
    sanitize_control_tokens: bool
    chat_template_kwargs: Mapping[str, Any] | None


def read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as `Tokenizer.encode_chat` takes them; RequestError for what is none."""
    known = TemplateOptions.__annotations__
    unknown = [name for name in given if name not in known]
    if unknown:
        raise RequestError(
            f"chat has no option {', '.join(unknown)}",
            facts=f"for the template it takes {', '.join(known)}",
            fix="give what the template reads in chat_template_kwargs",
        )
    options = dict(given)
    variables = options.pop("chat_template_kwargs", None) or {}
    if not isinstance(variables, Mapping) or "messages" in variables:
        raise RequestError(
            "chat_template_kwargs is not understood",
            facts=f"it is of type {type(variables).__name__}: {variables!r}"[:200],
            fix='give a dict of what the template takes besides the messages: {"tools": [...]}',
        )
    flags = ("add_generation_prompt", "continue_final_message", "sanitize_control_tokens")
    merged = {**variables, **options}
    wrong = [f"{n} is {merged[n]!r}" for n in flags if not isinstance(merged.get(n, True), bool)]
    if wrong or not all(isinstance(name, str) for name in merged):
        raise RequestError(
            "the template's options are not understood",
            facts="\n".join(wrong) or "a name in chat_template_kwargs is no text",
            fix="give True or False" if wrong else "give a dict of names and values",
        )
    return merged


MAX_DATA_DEPTH = 100  # of lists and dicts in each other: what holds itself is deeper than any
MAX_DATA_VALUES = 1 << 20
# a message's reasoning, under the names that APIs use; templates read the first, some the second
_REASONING = ("reasoning_content", "thinking", "reasoning")
# around what a caller's text has of control tokens: no characters, by the Unicode standard
START, END = "\ufdd0", "\ufdd1"
_CUT = "\ufdd2"  # after the text that an answer continues


def read_messages(messages: Any, *, keeps_parts: bool) -> list[dict[str, Any]]:
    """The messages as plain dicts, as transformers passes them to a template.

    Keys without a value are left out. Content in parts (`{"type": "text", "text": ...}`) becomes
    one text, a line a part, unless the template loops over parts (`keeps_parts`). RequestError
    names every message that is none.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise RequestError(
            "a conversation is a list of messages",
            facts=f"it is {messages!r}"[:200],
            fix="pass [{'role': 'user', 'content': 'Hello'}]",
        )
    if not messages:
        raise RequestError("the conversation is empty", fix="pass at least one message")
    given = plain_data(list(messages), "the messages")
    problems = [
        f"message {index}: {problem}"
        for index, message in enumerate(given)
        for problem in _problems(message)
    ]
    if problems:
        first = problems[0].partition(":")[0]
        raise RequestError(
            f"{first} is not a message" if len(problems) == 1 else "these are not messages",
            facts=listed([problem[:200] for problem in problems]),
            fix="messages look like {'role': 'user', 'content': 'Hello'}",
        )
    return [_normal(message, keeps_parts) for message in given]


def _problems(message: Any) -> Iterable[str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        yield f"it is {message!r}"
        return
    content = message.get("content")
    if content is not None and not isinstance(content, (str, list)):
        yield f"its content is {content!r}, must be text or a list of parts"
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind != "text":
            yield f"part {number} of its content is of type {kind!r}; the model reads text alone"
        elif not isinstance(part, str) and not (
            isinstance(part, dict) and isinstance(part.get("text"), str)
        ):
            yield f"part {number} of its content is {part!r}, which has no text"


def _normal(message: dict[str, Any], keeps_parts: bool) -> dict[str, Any]:
    message = {key: value for key, value in message.items() if value is not None}
    content = message.get("content")
    if isinstance(content, list):
        texts = [part if isinstance(part, str) else part["text"] for part in content]
        parts = [{"type": "text", "text": text} for text in texts]
        message["content"] = parts if keeps_parts else "\n".join(texts)
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def plain_data(value: Any, what: str) -> Any:
    """A copy made of dicts, lists, texts and numbers alone, which is all a template may see.

    RequestError names the type of what is none of these, and data that is too deep or too large.
    """
    left = MAX_DATA_VALUES

    def copy(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if depth > MAX_DATA_DEPTH or left < 0:
            raise RequestError(
                f"{what} hold too much",
                facts=f"more than {MAX_DATA_VALUES:,} values, or lists and dicts more than"
                f" {MAX_DATA_DEPTH} deep in each other",
                fix="check whether something in them holds itself",
            )
        if value is None or type(value) in (str, bool, int, float):
            return value
        # enums and the like: without what they add
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, np.generic):
            return copy(value.item(), depth + 1)
        if isinstance(value, Mapping):
            return {copy(k, depth + 1): copy(v, depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [copy(v, depth + 1) for v in value]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return {f.name: copy(getattr(value, f.name), depth + 1) for f in fields}
        if callable(getattr(value, "model_dump", None)):  # what the OpenAI client returns
            return copy(value.model_dump(), depth + 1)
        raise RequestError(
            f"{what} hold something that is no data",
            facts=f"it is of type {type(value).__name__}",
            fix="use dicts, lists, texts and numbers; a function as a tool becomes data by"
            " transformers.utils.get_json_schema",
        )

    return copy(value, 0)


# ---- continuing the last message ---------------------------------------------------------------


def mark_end(messages: list[dict[str, Any]]) -> str:
    """Put a mark behind the last message's text. -> the text. RequestError when it has none."""
    content = messages[-1].get("content")
    if isinstance(content, list) and content:
        said = content[-1]["text"]
        content[-1]["text"] += _CUT + " "
    elif isinstance(content, str):
        said = content
        messages[-1]["content"] += _CUT + " "
    else:
        raise RequestError(
            "there is no message to continue",
            facts="continue_final_message is set, and the last message has no text",
        )
    return said


def cut_at_end(text: str, said: str) -> str:
    """The rendered text up to the mark; the template may have trimmed what stands before it."""
    before, mark, after = text.rpartition(_CUT)
    if not mark or said.strip() not in text:
        raise RequestError(
            "the last message cannot be continued",
            facts="the chat template leaves it out, or changes it",
            fix="leave out continue_final_message",
        )
    return before if after.startswith(" ") else before.rstrip()


# ---- control tokens in a caller's text ---------------------------------------------------------


def mark_tokens(value: Any, tokens: Sequence[str]) -> Any:
    """The data with every occurrence of a token, in its texts, between START and END."""
    # the longest first: a token may be part of another
    known = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)"
    pattern = re.compile(known)

    def mark(value: Any) -> Any:
        if isinstance(value, str):
            value = value.replace(START, "").replace(END, "")  # nobody forges a mark
            return pattern.sub(f"{START}\\g<0>{END}", value)
        if isinstance(value, dict):
            return {mark(key): mark(v) for key, v in value.items()}
        return [mark(v) for v in value] if isinstance(value, list) else value

    return mark(value)


def split_marked(text: str) -> list[tuple[str, bool]]:
    """Pieces of a rendered text, and whether each is a token that was marked in a caller's."""
    pieces = re.split(f"{START}([^{START}{END}]*){END}|[{START}{END}]", text)
    return [(p, number % 2 == 1) for number, p in enumerate(pieces) if p]
