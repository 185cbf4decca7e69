"""SamplingParams: how tokens are chosen and when a request ends, under vLLM's names."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from ...ir.errors import RequestError

MAX_TEXTS = 16  # stop strings a request may have
MAX_STOP_CHARS = 1024  # of one: each new token is compared with all their beginnings
MAX_CHOICES = 128  # n
MAX_LOGPROBS = 20
_MAY_BE_NONE = ("max_tokens", "seed", "logprobs", "prompt_logprobs")


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one request. RequestError names a value out of range or a name unknown here.

    temperature 0 is greedy: the likeliest token. top_k 0 or -1 and top_p 1 cut nothing, top_p 0
    leaves the likeliest. A logit_bias of minus infinity forbids a token. seed None lets the engine
    choose. stop strings and stop_token_ids end a sequence, as do the model's own end tokens unless
    ignore_eos. max_tokens None is as many as the context holds. logprobs k gives
    the log-probabilities of the k likeliest tokens and of the chosen one, prompt_logprobs k the
    same at each token of the prompt but the first, at the cost of a row of logits for each.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Any = None  # a string or several; kept as a tuple
    stop_token_ids: Any = None  # numbers; kept as a tuple
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Any = None  # numbers; kept as a tuple, or None for all

    def __new__(cls, *args: Any, **named: Any):
        known = [f.name for f in fields(cls)]
        unknown = [name for name in named if name not in known]
        if unknown:
            raise RequestError(
                f"sampling parameter {', '.join(unknown)} is not supported",
                facts=f"supported: {', '.join(known)}",
                fix="leave it out",
            )
        return super().__new__(cls)

    def __post_init__(self):
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731  # frozen
        put("stop", _as_tuple(self.stop))
        put("stop_token_ids", _as_tuple(self.stop_token_ids))
        if self.top_k == -1:
            put("top_k", 0)
        if self.allowed_token_ids is not None:
            put("allowed_token_ids", _as_tuple(self.allowed_token_ids))
        problems = list(self._problems())
        if problems:
            shown = [p if len(p) <= 200 else f"{p[:120]}...{p[-77:]}" for p in problems[:20]]
            raise RequestError("bad sampling parameters", facts="\n".join(shown))
        for f in fields(self):  # plain numbers, whatever they came as
            value = getattr(self, f.name)
            if isinstance(f.default, float):
                put(f.name, float(value))
            elif _is_integer(value):
                put(f.name, int(value))
        for name in ("stop_token_ids", "allowed_token_ids"):
            if getattr(self, name):
                put(name, tuple(map(int, getattr(self, name))))
        if self.logit_bias is not None:
            put("logit_bias", {int(k): float(v) for k, v in self.logit_bias.items()})

    def _problems(self):
        yield from _integers(
            self,
            n=(1, MAX_CHOICES),
            top_k=(0, None),
            min_tokens=(0, None),
            max_tokens=(1, None),
            seed=(-(2**63), 2**63 - 1),
            logprobs=(0, MAX_LOGPROBS),
            prompt_logprobs=(0, MAX_LOGPROBS),
        )
        yield from _reals(
            self,
            temperature=(0.0, 100.0),
            top_p=(0.0, 1.0),
            min_p=(0.0, 1.0),
            presence_penalty=(-2.0, 2.0),
            frequency_penalty=(-2.0, 2.0),
            repetition_penalty=(0.0, 100.0),
        )
        if self.repetition_penalty == 0:
            yield "repetition_penalty is 0, must be above 0"
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                yield f"{name} is {getattr(self, name)!r}, must be True or False"
        if len(self.stop) > MAX_TEXTS:
            yield f"stop has {len(self.stop)} strings, at most {MAX_TEXTS} are allowed"
        for text in self.stop:
            if not isinstance(text, str) or not text:
                yield f"stop has {text!r}, must be strings that are not empty"
            elif len(text) > MAX_STOP_CHARS:
                yield f"stop has a string of {len(text)} characters, at most {MAX_STOP_CHARS}"
        for token in (*self.stop_token_ids, *(self.allowed_token_ids or ())):
            if not _is_integer(token) or token < 0:
                yield f"{token!r} is not a token's number"
        yield from _biases(self.logit_bias)
        if self.allowed_token_ids == ():
            yield "allowed_token_ids is empty: no token could be chosen"
        if not _is_ordered(self.min_tokens, self.max_tokens):
            yield f"min_tokens is {self.min_tokens}, above max_tokens {self.max_tokens}"

    @cached_property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, so that nothing is drawn."""
        return self.temperature == 0

    @cached_property
    def is_plain(self) -> bool:
        """Whether the op `sample` is all it takes to choose, of logits that are not changed."""
        return self.min_p == 0 and not self.changes_logits

    @cached_property
    def only_lowers(self) -> bool:
        """Whether the likeliest token is taken of logits none of which became larger."""
        return (
            self.is_greedy
            and self.presence_penalty >= 0
            and self.frequency_penalty >= 0
            and self.repetition_penalty >= 1
            and all(bias <= 0 for bias in (self.logit_bias or {}).values())
        )

    @cached_property
    def changes_logits(self) -> bool:
        """Whether penalties, biases or a list of allowed tokens alter the logits."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or bool(self.logit_bias)
            or self.allowed_token_ids is not None
        )


def _as_tuple(value: Any) -> tuple:
    """Of one value or several; None is none."""
    if value is None:
        return ()
    is_many = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    return tuple(value) if is_many else (value,)


def _biases(given: Any):
    if given is not None and not isinstance(given, Mapping):
        yield f"logit_bias is {given!r}, must be a dict from tokens to numbers"
        return
    for token, bias in (given or {}).items():
        # JSON has no keys but strings
        is_text = isinstance(token, str) and token.isdecimal() and len(token) < 20
        if not (is_text or (_is_integer(token) and token >= 0)):
            yield f"logit_bias has {token!r}, which is not a token's number"
        if not (_is_finite(bias) or (isinstance(bias, float) and bias == -math.inf)):
            yield f"logit_bias of {token!r} is {bias!r}, must be a number"


def _is_ordered(low: Any, high: Any) -> bool:
    """Whether low <= high, where both are numbers at all."""
    return not (_is_integer(low) and _is_integer(high)) or low <= high


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _integers(params: SamplingParams, **ranges: tuple[int, int | None]):
    for name, (low, high) in ranges.items():
        value = getattr(params, name)
        if value is None and name in _MAY_BE_NONE:
            continue
        top = "" if high is None else f" to {high}"
        if not _is_integer(value) or value < low or (high is not None and value > high):
            yield f"{name} is {value!r}, must be a whole number from {low}{top}"


def _reals(params: SamplingParams, **ranges: tuple[float, float]):
    for name, (low, high) in ranges.items():
        value = getattr(params, name)
        if not _is_finite(value) or not low <= value <= high:
            yield f"{name} is {value!r}, must be a number from {low:g} to {high:g}"
