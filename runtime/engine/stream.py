"""TextDeltas: one completion, piece by piece."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Protocol

from ...ir.progress import Progress, unwatched
from .outputs import CompletionOutput
from .sequence import Sequence


class Owner(Protocol):
    """The `LLM` whose engine computes the completion; safe to ask in several threads."""

    def completion(self, sequence: Sequence) -> CompletionOutput:
        """What a sequence has come to so far."""
        ...

    def advance(self, sequence: Sequence) -> None:
        """Make a step, unless the sequence is finished."""
        ...

    def abort(self, sequences: Seq[Sequence]) -> None:
        """End sequences now."""
        ...

    def drop(self, sequence: Sequence) -> None:
        """End a sequence at the next step: the collector may come in the middle of one."""
        ...


class TextDeltas:
    """The pieces of one completion as they become certain; joined, they are its text.

    `output` is the completion so far. Closing it, or dropping it, frees its pages.
    """

    def __init__(self, llm: Owner, sequence: Sequence, progress: Progress = unwatched):
        self._llm, self._sequence, self._progress = llm, sequence, progress

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        text = self._sequence.text
        assert text is not None, "a stream has a tokenizer"
        while True:
            delta = text.take()
            if delta:
                return delta
            if self._sequence.is_finished:
                if self._sequence.error is not None:
                    raise self._sequence.error
                raise StopIteration
            self._llm.advance(self._sequence)
            if not self._sequence.num_output:
                done, of = self._sequence.num_computed, len(self._sequence.prompt)
                self._progress("prefill", done, of)

    @property
    def output(self) -> CompletionOutput:
        """The completion so far; complete when the iteration has ended."""
        return self._llm.completion(self._sequence)

    def close(self) -> None:
        """End the completion now."""
        self._llm.abort([self._sequence])

    def __enter__(self) -> "TextDeltas":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._sequence.is_finished:
            self._llm.drop(self._sequence)
