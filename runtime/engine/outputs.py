"""What a request gives back, in the shape that callers of vLLM know."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...ir.errors import TilewrightError


@dataclass(frozen=True)
class Logprob:
    """The log-probability of a token, and the token's text."""

    logprob: float
    rank: int | None  # 1 is the likeliest; None: below those that were asked for
    decoded_token: str | None


@dataclass(frozen=True)
class CompletionOutput:
    """One completion. finish_reason: stop, length, abort or error (see `error`)."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None  # None unless logprobs were asked for
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    error: TilewrightError | None = None

    def finished(self) -> bool:
        """Whether generation has ended."""
        return self.finish_reason is not None


@dataclass(frozen=True)
class RequestOutput:
    """A prompt and its completions, best read as `.outputs[0].text`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = True
    # None unless asked for; else an item a token of the prompt, of which the first is None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
