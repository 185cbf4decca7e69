"""Text to tokens and back, and chat messages to text, without transformers."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ...ir.errors import ArtifactError, RequestError
from . import conversation
from .chat_template import ChatTemplate, TemplateFailed
from .conversation import Messages

Templates = str | Mapping[str, str] | None
SLICE_CHARS = 1 << 16  # of a long text, of which the first slices tell whether it fits


class Tokenizer:
    """A `tokenizer.json` with its chat templates and the names of special tokens.

    chat_template: one, or several by name. special_tokens: bos_token, eos_token and the like, as
    chat templates call them.
    """

    def __init__(
        self,
        json_text: str,
        chat_template: Templates = None,
        special_tokens: Mapping[str, str] | None = None,
    ):
        self._tokenizer = _read(json_text)
        self.json_text = json_text
        named = {"default": chat_template} if isinstance(chat_template, str) else chat_template
        self.chat_templates = dict(named or {})
        self.special_tokens = dict(special_tokens or {})
        texts = [*self.chat_templates.values(), *self.special_tokens.values()]
        if not all(isinstance(text, str) for text in texts):
            raise ArtifactError(
                "the tokenizer's facts are no texts",
                facts=f"chat templates {list(self.chat_templates)}, special tokens"
                f" {self.special_tokens}"[:300],
                fix="compile the model again",
            )
        self._compiled: dict[str, ChatTemplate] = {}

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(
        self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None
    ) -> list[int]:
        """Tokens of `text`; with the model's own tokens around it when add_special_tokens.

        RequestError when it has half a character (Python gives bytes that are not UTF-8 so), when
        the tokenizer cannot read it, and when it is surely longer than max_tokens: a text of
        megabytes is not read to its end then.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                "the text has something that is no character",
                facts=f"character {error.start} of {len(text)} is {text[error.start]!r}",
                fix="give the text as UTF-8",
            ) from None
        if max_tokens is not None:
            self._refuse_long(text, max_tokens)
        return _guarded(self._tokenizer.encode, text, add_special_tokens=add_special_tokens).ids

    def _refuse_long(self, text: str, max_tokens: int) -> None:
        """RequestError when slices of the text alone have twice the tokens that are allowed.

        Slices are cut before white space, where no token ends up across the cut but by chance; the
        factor of two is for what chance there is.
        """
        if len(text) <= max(2 * max_tokens, SLICE_CHARS):
            return  # a token a character is the most there usually is
        count = start = 0
        while start < len(text):
            end = min(start + SLICE_CHARS, len(text))
            space = max(text.rfind(" ", start + 1, end), text.rfind("\n", start + 1, end))
            if end < len(text) and space > start:
                end = space
            piece = text[start:end]
            count += len(_guarded(self._tokenizer.encode, piece, add_special_tokens=False).ids)
            start = end
            if count > 2 * max_tokens:
                raise RequestError(
                    "the prompt is too long",
                    facts=f"the first {end:,} of its {len(text):,} characters are about {count:,}"
                    f" tokens; at most {max_tokens:,} leave room for an answer",
                    fix="shorten it",
                )

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `tokens`. Bytes that are no character become U+FFFD; unknown tokens are left out.

        RequestError when the tokenizer cannot write them.
        """
        return _guarded(self._tokenizer.decode, tokens, skip_special_tokens=skip_special_tokens)

    def token_id(self, token: str) -> int | None:
        """The number of a token by its text, None when there is none."""
        return self._tokenizer.token_to_id(token)

    # ---- chat --------------------------------------------------------------------------------

    def render_chat(
        self,
        messages: Messages,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        sanitize_control_tokens: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation, as transformers renders it: messages of `role`, `content`.

        chat_template names one of the model's, or is a template itself; without it "default" is
        taken, or "tool_use" where there are `tools`. `variables` are what a template takes besides
        (tools, documents, enable_thinking, ...). RequestError when there is no template, or when
        it refuses the messages. sanitize_control_tokens leaves marks in the text, for
        `encode_chat`.
        """
        template = self._template(chat_template, variables.get("tools"))
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "an answer either continues the last message or begins a new one",
                facts="continue_final_message and add_generation_prompt are both set",
                fix="pass add_generation_prompt=False",
            )
        given = conversation.plain_data(variables, "the template's variables")
        _check_list(given, "tools")
        _check_list(given, "documents")
        turns = conversation.read_messages(messages, keeps_parts=template.loops_over_parts)
        if sanitize_control_tokens:
            tokens = self._control_tokens(template)
            given, turns = (
                conversation.mark_tokens(given, tokens),
                conversation.mark_tokens(turns, tokens),
            )
        said = conversation.mark_end(turns) if continue_final_message else ""
        try:
            text = template.render(
                {
                    "tools": None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                    **self.special_tokens,
                    **given,
                    "messages": turns,
                }
            )
        except TemplateFailed as error:
            raise RequestError(
                "the chat template refused the messages", facts=str(error)
            ) from error
        return conversation.cut_at_end(text, said) if continue_final_message else text

    def encode_chat(
        self,
        messages: Messages,
        *,
        sanitize_control_tokens: bool = False,
        max_tokens: int | None = None,
        **options: Any,
    ) -> tuple[str, list[int]]:
        """The prompt for a conversation, and its tokens. Options are `render_chat`'s.

        The text of a control token ("<|im_end|>") in a message becomes that token, as in other
        engines; with sanitize_control_tokens it stays text, and no message can end its own turn.
        """
        text = self.render_chat(
            messages, sanitize_control_tokens=sanitize_control_tokens, **options
        )
        pieces = conversation.split_marked(text) if sanitize_control_tokens else [(text, False)]
        text = "".join(piece for piece, _ in pieces)
        if len(pieces) > 1 and max_tokens is not None:
            self._refuse_long(text, max_tokens)
        tokens: list[int] = []
        for number, (piece, is_text) in enumerate(pieces):
            if is_text:
                tokens += self._text_only(piece)
            elif number:
                tokens += self._inside(self.encode, piece)
            else:  # the template wrote the special tokens itself
                tokens += self.encode(piece, add_special_tokens=False, max_tokens=max_tokens)
        return text, tokens

    def _control_tokens(self, template: ChatTemplate) -> list[str]:
        """Special tokens, and those added ones that the template writes itself."""
        return [
            token.content
            for token in self._tokenizer.get_added_tokens_decoder().values()
            if token.special
            or (
                not token.content.isspace()
                and any(token.content in literal for literal in template.literals)
            )
        ]

    def _text_only(self, piece: str) -> list[int]:
        """Tokens of a control token's text, none of them a control token."""
        encode = self._without_added.encode
        tokens = self._inside(encode, piece)
        if self.token_id(piece) not in tokens:
            return tokens
        # the vocabulary has the word itself: in two parts it is none
        return self._inside(encode, piece[:1]) + self._inside(encode, piece[1:])

    @cached_property
    def _without_added(self) -> "Tokenizer":
        return Tokenizer(json.dumps({**json.loads(self.json_text), "added_tokens": []}))

    def _inside(self, encode: Callable[..., list[int]], piece: str) -> list[int]:
        """Tokens of a piece that does not begin the text, and so gets no space before it."""
        before = encode("\n", add_special_tokens=False)
        tokens = encode("\n" + piece, add_special_tokens=False)
        if tokens[: len(before)] == before:
            return tokens[len(before) :]
        return encode(piece, add_special_tokens=False)

    def _template(self, given: str | None, tools: Any) -> ChatTemplate:
        names = self.chat_templates
        if given is not None and not isinstance(given, str):
            raise RequestError("chat_template is a name or a text", facts=f"it is {given!r}"[:200])
        defaults = ["default"] if tools is None else ["tool_use", "default"]
        chosen = given if given is not None else next((n for n in defaults if n in names), None)
        if chosen is None and names:
            raise RequestError(
                "this model has several chat templates, and none is the default",
                facts=f"they are called {', '.join(names)}",
                fix=f"pass one by its name: chat_template={next(iter(names))!r}",
            )
        if chosen is None:
            raise RequestError(
                "this model has no chat template",
                fix="write the prompt out and use generate, or use an instruction-tuned model",
            )
        text = names.get(chosen, chosen)
        if text not in self._compiled:
            try:
                compiled = ChatTemplate(text)
            except TemplateFailed as error:
                kind = ArtifactError if text in names.values() else RequestError
                raise kind(
                    "the chat template cannot be read", where="chat template", facts=str(error)
                ) from error
            if text not in names.values():
                return compiled  # a caller's own: not kept
            self._compiled[text] = compiled
        return self._compiled[text]


def _check_list(variables: Mapping[str, Any], name: str) -> None:
    values = variables.get(name)
    if values is not None and not (
        isinstance(values, list) and all(isinstance(value, dict) for value in values)
    ):
        raise RequestError(
            f"{name} is a list of dicts", facts=f"it is {values!r}"[:200], fix=f"leave {name} out"
        )


def _read(json_text: str) -> Any:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(json_text)
    except Exception as error:  # the library raises bare Exception
        raise ArtifactError(
            "the tokenizer cannot be read",
            where="tokenizer.json",
            facts=str(error),
            fix="the file must be of the tokenizers library; a newer one may need an update",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _guarded(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The tokenizers library's answer; RequestError for its errors and its panics."""
    try:
        return function(*args, **options)
    except BaseException as error:
        # a panic of the library (a regular expression that takes too long) is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise RequestError(
            "the tokenizer cannot read this text",
            facts=f"{type(error).__name__}: {error}"[:300],
            fix="the model's tokenizer.json may be damaged: check its regular expressions",
        ) from error
