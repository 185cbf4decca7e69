"""Text to tokens and back, and chat messages to text, without transformers."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..ir.errors import ArtifactError, RequestError

Messages = Sequence[Mapping[str, Any]]


class _Refused(Exception):  # not an error of ours: the template's own words
    """A template called raise_exception."""


# a template that calls a method on a missing field, or ranges too far, ends in the last five
TEMPLATE_ERRORS = (
    _Refused,
    jinja2.TemplateError,
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    OverflowError,
)


class Tokenizer:
    """A `tokenizer.json` with its chat template and the names of special tokens.

    special_tokens: bos_token, eos_token and the like, as chat templates call them.
    """

    def __init__(
        self,
        json_text: str,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ):
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(json_text)
        except Exception as error:  # the library raises bare Exception
            raise ArtifactError(
                "the tokenizer cannot be read",
                where="tokenizer.json",
                facts=str(error),
                fix="the file must be of the tokenizers library; a newer one may need an update",
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.json_text, self.chat_template = json_text, chat_template
        self.special_tokens = dict(special_tokens or {})

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Tokens of `text`; with the model's own tokens around it when add_special_tokens.

        RequestError when it has half a character: Python gives bytes that are not UTF-8 so.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                "the text has something that is no character",
                facts=f"character {error.start} of {len(text)} is {text[error.start]!r}",
                fix="give the text as UTF-8",
            ) from None
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `tokens`. Bytes that are no character become U+FFFD."""
        return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def token_id(self, token: str) -> int | None:
        """The number of a token by its text, None when there is none."""
        return self._tokenizer.token_to_id(token)

    def token_text(self, token: int) -> str | None:
        """A token's own text, None when there is no such token."""
        return self._tokenizer.id_to_token(token)

    def render_chat(
        self, messages: Messages, *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt for a conversation: messages of `role` and `content`.

        RequestError when there is no template, or when it refuses the messages.
        """
        if self.chat_template is None:
            raise RequestError(
                "this model has no chat template",
                fix="write the prompt out and use generate, or use an instruction-tuned model",
            )
        _check_messages(messages)
        try:
            return self._template.render(
                messages=[dict(m) for m in messages],
                add_generation_prompt=add_generation_prompt,
                **{**self.special_tokens, **variables},
            )
        except TEMPLATE_ERRORS as error:
            raise RequestError(
                "the chat template refused the messages", facts=str(error)
            ) from error

    @cached_property
    def _template(self):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(self.chat_template or "")
        except TEMPLATE_ERRORS as error:
            raise ArtifactError(
                "the chat template cannot be read", where="chat template", facts=str(error)
            ) from error


def _refuse(message: str) -> None:
    raise _Refused(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any):
    # Jinja's own filter escapes for HTML, which a prompt must not have
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the reply for training: here, its body."""

    tags = {"generation"}  # the name and kind that Jinja looks for

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _check_messages(messages: Messages) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise RequestError(
            "a conversation is a list of messages",
            facts=f"it is {messages!r}"[:200],
            fix="pass [{'role': 'user', 'content': 'Hello'}]",
        )
    if not messages:
        raise RequestError("the conversation is empty", fix="pass at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                f"message {index} is not a message",
                facts=f"it is {message!r}",
                fix="messages look like {'role': 'user', 'content': 'Hello'}",
            )
