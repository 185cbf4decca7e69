"""Counts and times of an engine's steps."""

from dataclasses import dataclass


@dataclass
class Stats:
    """Totals since the engine began. A step with any prefill counts as a prefill step."""

    steps: int = 0
    prefill_tokens: int = 0  # computed in prefill steps, decode tokens among them not counted
    prefill_seconds: float = 0.0
    decode_tokens: int = 0  # of pure decode steps
    decode_seconds: float = 0.0
    mixed_decode_tokens: int = 0  # decoded beside prefill, in prefill steps
    generated_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    first_token_seconds: float = 0.0  # of the last request: from its arrival

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens a second in prefill steps; 0 when there were none."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens a second in pure decode steps; 0 when there were none."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0

    def count(self, prefill: int, decode: int, seconds: float) -> None:
        """Add one step of so many prefill and decode tokens."""
        self.steps += 1
        if prefill:
            self.prefill_tokens += prefill
            self.mixed_decode_tokens += decode
            self.prefill_seconds += seconds
        else:
            self.decode_tokens += decode
            self.decode_seconds += seconds
