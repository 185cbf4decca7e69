"""TextStream: tokens in, text out as soon as it is certain, with stop strings found on the way."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # what bytes that are no character (yet) decode to
CONTEXT_TOKENS = 6  # of the prompt's end: they decide whether a piece begins with a space
MAX_UNREAD_TOKENS = 16  # a character has at most 4 bytes; longer runs are no text at all


class TextStream:
    """The text of one sequence.

    characters of `text`
    [0, released)        given out by `take`
    [released, safe)     certain, not given out yet
    [safe, end)          may be the beginning of a stop string: held back
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        include_stop: bool = False,
    ):
        self._decode, self._stop, self._include_stop = decode, stop, include_stop
        self._longest_stop = max(map(len, stop), default=0)
        # tokens since the last point where text was whole: _tokens[:_read] are in `text` already
        self._tokens = self._context(list(prompt[-4 * CONTEXT_TOKENS :]))
        self._read = len(self._tokens)
        self._read_text = decode(self._tokens)
        self._pending: list[int] = []  # pushed, not decoded yet
        self._text = ""
        self._safe = self._released = 0
        self.stopped_by: str | None = None

    @property
    def text(self) -> str:
        """All text so far, what is held back included."""
        self._decode_pending()
        return self._text

    def push(self, token: int, *, can_stop: bool = True) -> None:
        """Add a token. `stopped_by` is set when a stop string is complete; push no more then."""
        if self._stop:
            self._decode_one(token, can_stop=can_stop)
        else:  # nothing hangs on the text: it is decoded when somebody asks for it
            self._pending.append(token)

    def finish(self) -> None:
        """No more tokens: what was held back is certain now, broken characters included."""
        self._decode_pending()
        if self.stopped_by is None:
            self._append(self._new(self._decode(self._tokens)), can_stop=False)
            self._read = len(self._tokens)
            self._read_text = self._decode(self._tokens)
        self._safe = len(self._text)

    def take(self) -> str:
        """The text that became certain since the last call."""
        self._decode_pending()
        delta = self._text[self._released : self._safe]
        self._released = self._safe
        return delta

    def _decode_pending(self) -> None:
        pending, self._pending = self._pending, []
        if len(pending) > 1:  # all at once, but for a character that is not complete
            text = self._decode(self._tokens + pending)
            if not text.endswith(REPLACEMENT):
                self._tokens += pending
                self._advance(text, can_stop=True)
                return
        for token in pending:
            self._decode_one(token, can_stop=True)

    def _decode_one(self, token: int, *, can_stop: bool) -> None:
        self._tokens.append(token)
        text = self._decode(self._tokens)
        is_whole = not text.endswith(REPLACEMENT) and len(text) > len(self._read_text)
        if is_whole or len(self._tokens) - self._read > MAX_UNREAD_TOKENS:
            self._advance(text, can_stop=can_stop)

    def _advance(self, text: str, *, can_stop: bool) -> None:
        """`text` is that of all `_tokens`, and whole."""
        self._append(self._new(text), can_stop=can_stop)
        # the tokens just read are context for the next ones
        self._tokens = self._context(self._tokens[self._read :])
        self._read = len(self._tokens)
        self._read_text = self._decode(self._tokens)

    def _context(self, tokens: list[int]) -> list[int]:
        """The last few tokens: more where fewer would begin inside a character."""
        start = max(0, len(tokens) - CONTEXT_TOKENS)
        while start > 0 and self._decode(tokens[start:]).startswith(REPLACEMENT):
            start -= 1
        return tokens[start:]

    def _new(self, text: str) -> str:
        # a character cut off at the end of what was read is whole only now
        return text[len(self._read_text.rstrip(REPLACEMENT)) :]

    def _append(self, new: str, *, can_stop: bool) -> None:
        begin = max(0, len(self._text) - self._longest_stop + 1)
        if not can_stop:
            begin = len(self._text) + len(new)
        self._text += new
        found = [(at, s) for s in self._stop if (at := self._text.find(s, begin)) >= 0]
        if found:
            at, stop = min(found)
            self._text = self._text[: at + len(stop) if self._include_stop else at]
            self.stopped_by = stop
            self._safe = len(self._text)
        else:
            self._safe = len(self._text) - self._num_held()

    def _num_held(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest_stop - 1, len(self._text)), 0, -1):
            if any(s.startswith(self._text[-length:]) for s in self._stop):
                return length
        return 0
