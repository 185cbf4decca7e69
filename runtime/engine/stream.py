"""TextDeltas: one completion, piece by piece."""

from collections.abc import Iterator
from typing import Any

from ...ir.progress import Progress, unwatched
from .outputs import CompletionOutput
from .sequence import Sequence


class TextDeltas:
    """The pieces of one completion as they become certain; joined, they are its text.

    `output` is the completion so far. Closing it, or dropping it, frees its pages. `llm` is the
    `EngineLLM` whose engine computes them; several threads may ask it.
    """

    def __init__(self, llm: Any, sequence: Sequence, progress: Progress = unwatched):
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
