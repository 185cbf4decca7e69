"""A sequence: one prompt and what has been generated for it so far."""

import time
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from ...ir.errors import TilewrightError
from .detokenizer import TextStream
from .sampling_params import SamplingParams


class Status(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """Tokens, the pages that hold their keys and values, and how far those are computed.

    tokens of one sequence
    [0, num_computed)         keys and values are in the pages, once all that was launched is done
    [num_computed, num_ahead) to be computed; the last of them gives the next token
    [0, length)               known
    [length, num_ahead)       chosen by steps that were launched, and not read yet
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    ends: frozenset[int] = frozenset()  # tokens that end it
    arrival: float = field(default_factory=time.perf_counter)
    tokens: list[int] = field(default_factory=list)  # prompt and output
    pages: list[int] = field(default_factory=list)
    page_row: np.ndarray = field(init=False)  # the same, i32, and room for more
    num_computed: int = 0
    num_awaited: int = 0  # tokens that are chosen already, and not known here yet
    source: int = -1  # the row of the step launched last that chooses a token of this
    max_length: int = 2**62  # at which it ends
    status: Status = Status.WAITING
    finish_reason: str | None = None  # stop | length | abort | error
    stop_reason: int | str | None = None  # the stop token or string, None for an end-of-text token
    error: TilewrightError | None = None
    cumulative_logprob: float = 0.0
    logprobs: list[dict[int, float]] = field(default_factory=list)
    # of prompt[1], prompt[2], ..., as far as they are computed; empty unless they were asked for
    prompt_logprobs: list[dict[int, float]] = field(default_factory=list)
    text: TextStream | None = None
    first_token_seconds: float | None = None  # from arrival

    def __post_init__(self):
        self.tokens = list(self.prompt)
        self.page_row = np.array(self.pages, np.int32)

    def add_pages(self, pages: list[int]) -> None:
        """Pages for the tokens that follow those of the pages so far."""
        begin, self.pages = len(self.pages), self.pages + pages
        if len(self.pages) > len(self.page_row):
            self.widen_row(len(self.pages))
        self.page_row[begin : len(self.pages)] = pages

    def widen_row(self, width: int) -> None:
        """Make `page_row` hold at least so many pages: twice as many, as it may grow."""
        row = np.zeros(2 * width, np.int32)
        row[: len(self.page_row)] = self.page_row
        self.page_row = row

    def drop_pages(self) -> list[int]:
        """Forget the pages, and with them what was computed. -> the pages."""
        pages, self.pages, self.num_computed = self.pages, [], 0
        self.page_row = np.array([], np.int32)
        return pages

    @property
    def length(self) -> int:
        """Known tokens so far, prompt and output."""
        return len(self.tokens)

    @property
    def num_ahead(self) -> int:
        """Tokens so far, those among them that are not known yet."""
        return len(self.tokens) + self.num_awaited

    @property
    def is_complete(self) -> bool:
        """Whether what is awaited takes it to its end, so that there is nothing to compute."""
        awaited = self.num_awaited
        return awaited > 0 and len(self.tokens) + awaited >= self.max_length

    @property
    def output(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[len(self.prompt) :]

    @property
    def num_output(self) -> int:
        """How many tokens have been generated."""
        return len(self.tokens) - len(self.prompt)

    @property
    def num_pending(self) -> int:
        """Tokens without keys and values: more than one means prefill."""
        return len(self.tokens) + self.num_awaited - self.num_computed

    @property
    def is_finished(self) -> bool:
        return self.status is Status.FINISHED
