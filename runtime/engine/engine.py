"""The engine: schedule, launch, read, append; many sequences in one step.

A request that cannot be served fails alone. An engine is used by one thread at a time; `LLM` takes
care of that.
"""

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from ...ir.errors import RequestError, TilewrightError, joined
from ...ir.fork_lock import tell_after_fork
from .detokenizer import TextStream
from .pages import PagePool
from .runner import ProgramRunner, StepResult
from .sampler import choose, log_probabilities, not_numbers
from .sampling_params import SamplingParams
from .scheduler import Scheduler
from .sequence import Sequence, Status
from .stats import Stats
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class EngineConfig:
    """Limits of an engine and facts about its model."""

    context_len: int  # tokens of one sequence, prompt and output
    eos_token_ids: frozenset[int] = frozenset()
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 1024
    seed: int = 0


@dataclass(frozen=True)
class Flight:
    """A step that was launched."""

    result: StepResult
    sequences: list[Sequence]
    own: set[int]  # rows whose tokens the engine chooses
    can_wait: bool  # whether another step can begin before this is read
    prefill: int  # tokens
    decode: int
    begin: float  # time.perf_counter()


class Engine:
    """Serves sequences with a runner: `add`, then `step` while `has_work`.

    One step computes on the device while the tokens of the one before are read here: a sequence
    that ends with a token is found to end when the next one is being computed, and that is dropped.
    Only what is known beforehand, `max_length`, ends it in time.
    """

    def __init__(
        self,
        runner: ProgramRunner,
        config: EngineConfig,
        tokenizer: Tokenizer | None = None,
    ):
        pool_tokens = runner.num_pages * runner.page_size
        # a context that the pool cannot hold could only end in OutOfPages
        context_len = min(config.context_len, pool_tokens)
        # ends that are no tokens of the model: files say -1 for none, and count padding
        ends = frozenset(t for t in config.eos_token_ids if 0 <= t < runner.vocab_size)
        self.config = replace(config, context_len=context_len, eos_token_ids=ends)
        self.model_context_len = config.context_len
        self.runner, self.tokenizer = runner, tokenizer
        self._begin()
        runner.reserve(
            self.scheduler.max_num_batched_tokens, config.max_num_seqs, self.config.context_len
        )
        self.stats = Stats()
        self._next_id = 0
        tell_after_fork(self)

    def _begin(self) -> None:
        """No sequences, and all pages free."""
        config, runner = self.config, self.runner
        self.pool = PagePool(runner.num_pages)
        self.scheduler = Scheduler(
            self.pool,
            runner.page_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_num_seqs),
        )
        self._live: set[Sequence] = set()  # those that are not finished
        self._flight: Flight | None = None  # a step that was launched, and not read yet
        self._read_at = 0.0  # when the last one was

    def after_fork(self) -> None:
        """In a forked process: what ran is the parent's to finish, and here it ends as aborted.

        Queues and pages begin anew, as another thread may have been in the middle of a step.
        """
        for sequence in self._live:
            sequence.drop_pages()
            sequence.status, sequence.finish_reason = Status.FINISHED, "abort"
        self._begin()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, prompt: Seq[int], params: SamplingParams) -> Sequence:
        """Take a request in. RequestError when it can never be served; nothing is kept then."""
        self.check(prompt, params)
        self._next_id += 1
        seed = params.seed
        if seed is None:
            seed = np.random.SeedSequence([self.config.seed, self._next_id]).generate_state(1)[0]
        ends = frozenset() if params.ignore_eos else self.config.eos_token_ids
        ends |= frozenset(params.stop_token_ids)
        sequence = Sequence(self._next_id, tuple(map(int, prompt)), params, int(seed), ends)
        sequence.text = self._text_stream(sequence)
        sequence.max_length = self.config.context_len
        if params.max_tokens is not None:
            sequence.max_length = min(len(prompt) + params.max_tokens, sequence.max_length)
        self.scheduler.add(sequence)
        self._live.add(sequence)
        return sequence

    def check(self, prompt: Seq[int], params: SamplingParams) -> None:
        """RequestError for all in which the prompt and its parameters do not fit the model."""
        problems = list(self._problems(prompt, params))
        if problems:
            raise joined(problems, "the request cannot be served")

    def _problems(self, prompt: Seq[int], params: SamplingParams) -> Iterator[TilewrightError]:
        if not len(prompt):
            yield RequestError(
                "the prompt is empty",
                facts="it has 0 tokens, and the model needs one to begin from",
                fix="pass some text, or the model's begin-of-text token",
            )
        limit, model = self.config.context_len, self.model_context_len
        if len(prompt) >= limit:
            reason = f"the model's context is {model}"
            if limit < model:
                reason += f", the KV pool holds {limit} ({self.pool.num_pages} pages)"
            yield RequestError(
                "the prompt is too long",
                facts=f"it has {len(prompt)} tokens, at most {limit - 1} leave room for an answer:"
                f" {reason}",
                fix="shorten it" + (", or give the KV pool more memory" if limit < model else ""),
            )
        yield from self._check_tokens("the prompt", prompt)
        named = [
            *params.stop_token_ids,
            *(params.allowed_token_ids or ()),
            *(params.logit_bias or ()),
        ]
        yield from self._check_tokens("a sampling parameter", named)
        if params.stop and self.tokenizer is None:
            yield RequestError("stop strings need a tokenizer, and this engine has none")
        if params.allowed_token_ids and params.min_tokens:
            ends = self.config.eos_token_ids | set(params.stop_token_ids)
            if ends.issuperset(params.allowed_token_ids):
                yield RequestError(
                    "no token could be chosen",
                    facts=f"all of allowed_token_ids end the text, and min_tokens is"
                    f" {params.min_tokens}",
                )

    def _check_tokens(self, what: str, tokens: Seq[int]) -> Iterator[RequestError]:
        size = self.runner.vocab_size
        wrong = [token for token in tokens if not 0 <= token < size]
        if wrong:
            yield RequestError(
                f"{what} has tokens that the model does not know",
                facts=f"{wrong[:5]}, and tokens are 0 to {size - 1}",
                fix="use the model's own tokenizer",
            )

    def abort(self, sequence: Sequence) -> None:
        """End a sequence now; its pages are free at once. Nothing happens when it is finished."""
        if not sequence.is_finished:
            self._finish(sequence, "abort")

    def abort_all(self) -> None:
        """End every sequence now."""
        for sequence in list(self._live):
            self.abort(sequence)

    def step(self) -> list[Sequence]:
        """Launch the next step, and read the one before. -> those with a new token, or finished.

        Where the runner does not overlap steps, or tokens have to be chosen here before another
        step can begin, what was launched is read at once.
        """
        changed: list[Sequence] = []
        before, self._flight = self._flight, None
        try:
            self._flight = self._launch(changed)
            if before is not None:
                self._read(before, changed)
            if self._flight is not None and not self._flight.can_wait:
                before, self._flight = self._flight, None
                self._read(before, changed)
        except BaseException as error:
            # what the pages hold after a broken step is not known: all in it must end, and so must
            # those in the step beside it
            for flight in (before, self._flight):
                for sequence in flight.sequences if flight is not None else ():
                    self._fail(sequence, error)
            self._flight = None
            raise
        self.stats.preemptions = self.scheduler.num_preemptions
        return changed

    def _launch(self, changed: list[Sequence]) -> Flight | None:
        """Begin the next step, and note what its sequences have to wait for."""
        begin = time.perf_counter()
        work = self.scheduler.schedule()
        changed += self._failed()
        if not work:
            return None
        tokens = decode = 0
        try:
            result = self.runner.run(work)
            for item in work:
                sequence, count = item.sequence, item.count
                tokens += count
                decode += count == 1 and sequence.num_computed >= len(sequence.prompt)
                sequence.num_computed += count
            own = []
            for row, sequence in enumerate(result.batch.wanting):
                if not self._is_chosen(sequence, result):
                    own.append(row)
                sequence.num_awaited += 1
                sequence.source = row
        except BaseException as error:
            for item in work:
                self._fail(item.sequence, error)
            raise
        can_wait = self.runner.overlaps and not own and not result.batch.scored
        sequences = [w.sequence for w in work]
        return Flight(result, sequences, set(own), can_wait, tokens - decode, decode, begin)

    def _is_chosen(self, sequence: Sequence, result: StepResult) -> bool:
        """Whether the program chooses the next token, and not the engine from logits."""
        params = sequence.params
        may_end = not params.min_tokens or not self._forbidden(sequence)
        is_scored = params.logprobs is None or result.scores is not None
        return self.runner.samples and params.is_plain and may_end and is_scored

    def _forbidden(self, sequence: Sequence) -> frozenset[int]:
        """Tokens that may not come next."""
        is_early = sequence.num_output < sequence.params.min_tokens
        return sequence.ends if is_early else frozenset()

    def _read(self, flight: Flight, changed: list[Sequence]) -> None:
        """Give the sequences of a step their tokens; waits for it."""
        result = flight.result
        self._score_prompts(result, changed)
        wanting = result.batch.wanting
        tokens = result.tokens().tolist() if wanting and self.runner.samples else [0] * len(wanting)
        logits, scores = None, None
        for row, (sequence, token) in enumerate(zip(wanting, tokens)):
            if sequence.is_finished:
                continue  # since the step began: nobody asks for its token
            sequence.num_awaited -= 1
            try:
                if row in flight.own:
                    choice, forbidden = None, self._forbidden(sequence)
                    if result.scores is not None and sequence.params.only_lowers:
                        scores = scores or result.scores()
                        choice = scores.choose(row, sequence, forbidden)
                    if choice is None:
                        if logits is None:  # only fetched when somebody reads them
                            logits = result.logits()
                        choice = choose(logits[row], sequence, forbidden)
                    token = choice.token
                    self._note(sequence, token, choice.top)
                elif token < 0:  # the program found no likeliest
                    raise not_numbers(None if self._flight else result.logits()[row], sequence)
                elif result.scores is not None and sequence.params.logprobs is not None:
                    scores = scores or result.scores()
                    self._note(sequence, token, scores.top(row, sequence.params.logprobs, token))
                self._append(sequence, token)
            except Exception as error:  # noqa: BLE001  # its own fault, nobody else's
                self._fail(sequence, error)
            changed.append(sequence)
        now = time.perf_counter()
        self.stats.count(flight.prefill, flight.decode, now - max(flight.begin, self._read_at))
        self._read_at = now

    def _failed(self) -> list[Sequence]:
        failed, self.scheduler.failed = self.scheduler.failed, []
        for sequence in failed:
            self._close(sequence)
        return failed

    def _score_prompts(self, result: StepResult, changed: list[Sequence]) -> None:
        """Note the log-probabilities of prompts whose sequences asked for them."""
        if not result.batch.scored:
            return
        scores = result.scores() if result.scores is not None else None
        logits = None
        for row, (sequence, place) in enumerate(result.batch.scored, len(result.batch.wanting)):
            if sequence.is_finished:
                continue
            count, token = sequence.params.prompt_logprobs or 0, sequence.prompt[place + 1]
            if scores is not None and np.isfinite(scores.best[row, 0]):
                sequence.prompt_logprobs.append(scores.top(row, count, token))
                continue
            logits = result.logits() if logits is None else logits
            if np.isfinite(logits[row].max()):
                found = log_probabilities(logits[row], count, token)
                sequence.prompt_logprobs.append(found)
            else:
                self._fail(sequence, not_numbers(logits[row], sequence))
                changed.append(sequence)

    def _note(self, sequence: Sequence, token: int, top: dict[int, float] | None) -> None:
        if top is not None:
            sequence.logprobs.append(top)
            sequence.cumulative_logprob += top[token]

    def _append(self, sequence: Sequence, token: int) -> None:
        params, text = sequence.params, sequence.text
        sequence.tokens.append(token)
        self.stats.generated_tokens += 1
        if sequence.first_token_seconds is None:
            sequence.first_token_seconds = time.perf_counter() - sequence.arrival
            self.stats.first_token_seconds = sequence.first_token_seconds
        can_stop = not params.min_tokens or sequence.num_output >= params.min_tokens
        is_end = can_stop and token in sequence.ends
        if text is not None and (not is_end or params.include_stop_str_in_output):
            text.push(token, can_stop=can_stop)
        if is_end:
            is_eos = token in self.config.eos_token_ids and not params.ignore_eos
            sequence.stop_reason = None if is_eos else token
            self._finish(sequence, "stop")
        elif text is not None and text.stopped_by is not None:
            sequence.stop_reason = text.stopped_by
            self._finish(sequence, "stop")
        elif len(sequence.tokens) >= sequence.max_length:
            self._finish(sequence, "length")

    def _fail(self, sequence: Sequence, error: BaseException) -> None:
        if not sequence.is_finished:
            sequence.error = _as_ours(error)
            self._finish(sequence, "error")

    def _finish(self, sequence: Sequence, reason: str) -> None:
        if not sequence.is_finished:
            self.scheduler.finish(sequence, reason)
            self._close(sequence)

    def _close(self, sequence: Sequence) -> None:
        self._live.remove(sequence)
        self.stats.finished += 1
        if sequence.text is not None:
            try:
                sequence.text.finish()
            except TilewrightError as error:  # the tokenizer's: what is written already stands
                sequence.error = sequence.error or error

    def _text_stream(self, sequence: Sequence) -> TextStream | None:
        if self.tokenizer is None:
            return None
        tokenizer, params = self.tokenizer, sequence.params
        skip = params.skip_special_tokens
        return TextStream(
            lambda tokens: tokenizer.decode(tokens, skip_special_tokens=skip),
            sequence.prompt,
            params.stop,
            params.include_stop_str_in_output,
        )

    def check_integrity(self) -> None:
        """AssertionError when pages, queues and records disagree."""
        self.scheduler.check_integrity()
        held = {*self.scheduler.running, *self.scheduler.waiting}
        assert held == self._live, "records of sequences that are not there, or none of some"
        if not held:
            assert self.pool.num_used == 0, f"{self.pool.num_used} pages are held by nobody"


def _as_ours(error: BaseException) -> TilewrightError:
    """What a sequence is told of an error that ended the step it was in."""
    if isinstance(error, TilewrightError):
        return error
    return RequestError(
        "the step that computed this sequence broke off",
        facts=f"{type(error).__name__}: {error}".rstrip(": "),
        fix="send the request again",
    )
