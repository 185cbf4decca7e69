"""LLM: prompts in, completions out, over an engine.

Several threads may use one LLM: their requests share steps. Forked processes may use it too, except
on a GPU: they begin without requests, as those that ran are the parent's.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from numbers import Integral
from typing import Any, Self, Unpack

from ...ir.errors import RequestError, TilewrightError, joined
from ...ir.fork_lock import ForkLock
from ...ir.progress import Progress, unwatched
from .conversation import Messages, TemplateOptions, read_options
from .engine import Engine
from .outputs import CompletionOutput, Logprob, RequestOutput
from .sampling_params import SamplingParams
from .sequence import Sequence
from .stats import Stats
from .stream import TextDeltas
from .tokenizer import Tokenizer
from .watch import Watch, progress_bar

Prompt = str | Seq[int] | Mapping[str, Any]
Request = tuple[str | None, list[int]]  # its text, if it was one, and its tokens
UseTqdm = bool | Callable[..., Any]


class EngineLLM:
    """Generates text. `default_params` is what calls without SamplingParams use.

    `memory` tells where the memory went, when whoever built this made a plan of it.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None = None,
        default_params: SamplingParams | None = None,
        memory: Any = None,
    ):
        self._engine: Engine | None = engine
        self.memory = memory
        self.stats: Stats = engine.stats  # of all requests so far: tokens a second and the like
        self.tokenizer = tokenizer or engine.tokenizer
        self.default_params = default_params or SamplingParams()
        self._lock = ForkLock()
        self._ids = itertools.count()  # of requests; safe to draw from in several threads
        self._dropped: deque[Sequence] = deque()  # of streams that were garbage: see TextDeltas

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        progress: Progress = unwatched,
    ) -> list[RequestOutput]:
        """Complete prompts, all of them together; results in their order.

        A prompt is text, a list of token numbers, or {"prompt": text} or {"prompt_token_ids": ...}.
        RequestError names every prompt that cannot be served, before any runs. `use_tqdm` shows a
        bar on a terminal once it takes a second; a function is called in place of `tqdm` for
        another bar. `progress` hears of prompt tokens, then of finished prompts.
        """
        many = _as_list(prompts)
        params = self._params(sampling_params, len(many))
        requests = self._read_all("prompt", many, params, self._read)
        return self._complete(requests, params, use_tqdm, progress)

    def chat(
        self,
        messages: Messages | Seq[Messages],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        progress: Progress = unwatched,
        **template: Unpack[TemplateOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them.

        A message is {"role": ..., "content": text, or parts of type "text"}. Further options are
        for the model's chat template: see `TemplateOptions`. The text of a control token in a
        message becomes that token, unless `sanitize_control_tokens` is set.
        """
        is_one = not isinstance(messages, (list, tuple)) or not messages
        many: Any = [messages] if is_one or isinstance(messages[0], Mapping) else messages
        params = self._params(sampling_params, len(many))
        options = read_options(template)
        requests = self._read_all(
            "conversation", many, params, lambda m, _: self._read_chat(m, options)
        )
        return self._complete(requests, params, use_tqdm, progress)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        progress: Progress = unwatched,
    ) -> TextDeltas:
        """Complete one prompt; iterate over the result to get the text piece by piece.

        `progress` hears of the prompt's tokens until the first piece comes.
        """
        return self._stream(self._read(prompt), sampling_params, progress)

    def stream_chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        progress: Progress = unwatched,
        **template: Unpack[TemplateOptions],
    ) -> TextDeltas:
        """Answer one conversation piece by piece; options as in `chat`."""
        request = self._read_chat(messages, read_options(template))
        return self._stream(request, sampling_params, progress)

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Give back weights, pages and temporary memory; what still runs ends as aborted.

        RequestError at any later use. Closing twice is closing once.
        """
        with self._lock:
            if self._engine is not None:
                self._engine.abort_all()
                self._engine = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RequestError(
            "a model cannot be copied or pickled",
            where=repr(self),
            facts="its kernels and weights are loaded into this process",
            fix="threads may share it; in another process make it again: it is in the cache",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._engine is None:
            return "<LLM, closed>"
        pool = self._engine.pool
        return f"<LLM, context of {self._engine.config.context_len}, {pool.num_pages} pages>"

    @property
    def engine(self) -> Engine:
        """What schedules and runs. RequestError once the model is closed."""
        if self._engine is None:
            raise RequestError(
                "the model is closed",
                facts="close() gave its memory back",
                fix="make it again: LLM(...)",
            )
        return self._engine

    # ---- requests ----------------------------------------------------------------------------

    def _read_all(
        self,
        kind: str,
        many: Seq[Any],
        params: Seq[SamplingParams],
        read: Callable[[Any, str], Request],
    ) -> list[Request]:
        """Each read and checked. RequestError names all that cannot be served."""
        requests: list[Request] = []
        problems: list[TilewrightError] = []
        for index, (one, its_params) in enumerate(zip(many, params)):
            where = f"{kind} {index} of {len(many)}"
            try:
                request = read(one, where)
                self.engine.check(request[1], its_params)
                requests.append(request)
            except RequestError as error:
                problems.append(
                    RequestError(
                        error.what, where=error.where or where, facts=error.facts, fix=error.fix
                    )
                )
        if problems:
            raise joined(problems, f"{len(problems)} of {len(many)} {kind}s cannot be served")
        return requests

    def _read(self, prompt: Prompt, where: str = "") -> Request:
        if isinstance(prompt, Mapping):
            if prompt.keys() == {"prompt_token_ids"}:
                return None, _token_numbers(prompt["prompt_token_ids"], where)
            if prompt.keys() != {"prompt"} or not isinstance(prompt["prompt"], str):
                raise RequestError(
                    "the prompt's dict is not understood",
                    where=where,
                    facts=f"it has the keys {', '.join(map(str, prompt))}"
                    + (f"; prompt is {_shown(prompt['prompt'])}" if "prompt" in prompt else ""),
                    fix='use {"prompt": text} or {"prompt_token_ids": list of numbers}',
                )
            prompt = prompt["prompt"]
        if isinstance(prompt, str):
            limit = self.engine.config.context_len
            return prompt, self._require_tokenizer().encode(prompt, max_tokens=limit)
        return None, _token_numbers(prompt, where)

    def _read_chat(self, messages: Messages, options: Mapping[str, Any]) -> Request:
        limit = self.engine.config.context_len
        return self._require_tokenizer().encode_chat(messages, max_tokens=limit, **options)

    def _require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                "a text prompt needs a tokenizer, and this model came without one",
                fix="pass lists of token numbers, or load the model with its tokenizer",
            )
        return self.tokenizer

    def _params(self, given: Any, count: int) -> list[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or self.default_params] * count
        is_list = isinstance(given, (list, tuple))
        if not is_list or not all(isinstance(one, SamplingParams) for one in given):
            raise RequestError(
                "sampling parameters are given as SamplingParams",
                facts=f"got {_shown(given)}",
                fix="write SamplingParams(max_tokens=64, temperature=0), or a list, one a prompt",
            )
        if len(given) != count:
            raise RequestError(
                "as many SamplingParams as prompts are needed, or one for all",
                facts=f"there are {count} prompts and {len(given)} SamplingParams",
            )
        return list(given)

    def _add(self, prompt: Seq[int], params: SamplingParams) -> list[Sequence]:
        sequences = []
        for index in range(params.n):
            sequences.append(self.engine.add(prompt, params))
            if params.seed is not None:
                # or all n would be the same; as an i64, which wraps
                sequences[-1].seed = (params.seed + index + 2**63) % 2**64 - 2**63
        return sequences

    def _complete(
        self,
        requests: Seq[Request],
        params: Seq[SamplingParams],
        use_tqdm: UseTqdm,
        progress: Progress,
    ) -> list[RequestOutput]:
        groups: list[list[Sequence]] = []
        try:
            with self._lock:
                for (_, tokens), one in zip(requests, params):
                    groups.append(self._add(tokens, one))
            with progress_bar(use_tqdm, len(groups), self.stats) as bar:
                watch = Watch(groups, (bar, progress))
                pending = [s for group in groups for s in group]
                while pending:
                    with self._lock:
                        self._step()
                    pending = [s for s in pending if not s.is_finished]
                    watch.after_step(is_last=not pending)
        finally:  # after an error or Ctrl-C nothing of this call stays in the engine
            self.abort([s for group in groups for s in group])
        return [
            self._output(text, tokens, group) for (text, tokens), group in zip(requests, groups)
        ]

    def abort(self, sequences: Seq[Sequence]) -> None:
        """End sequences now."""
        with self._lock:
            for sequence in sequences:
                if not sequence.is_finished:  # else the engine may be gone
                    self.engine.abort(sequence)

    def drop(self, sequence: Sequence) -> None:
        """End a sequence at the next step: the collector may come in the middle of one."""
        self._dropped.append(sequence)

    def advance(self, sequence: Sequence) -> None:
        """Make a step, unless the sequence is finished."""
        with self._lock:
            if not sequence.is_finished:
                self._step()

    def _step(self) -> None:
        while self._dropped:
            self.engine.abort(self._dropped.popleft())
        if self.engine.has_work:  # another thread's step may have finished it all
            self.engine.step()

    def _stream(
        self,
        request: Request,
        params: SamplingParams | None,
        progress: Progress,
    ) -> TextDeltas:
        (params,) = self._params(params, 1)
        if params.n != 1:
            raise RequestError("a stream has one completion", facts=f"n is {params.n}")
        self._require_tokenizer()
        with self._lock:
            (sequence,) = self._add(request[1], params)
        return TextDeltas(self, sequence, progress)

    # ---- results -----------------------------------------------------------------------------

    def _output(self, text: str | None, tokens: list[int], group: Seq[Sequence]) -> RequestOutput:
        completions = [self.completion(s, index) for index, s in enumerate(group)]
        scores = None
        if (count := group[0].params.prompt_logprobs) is not None:
            scores = [None, *(self._logprobs(one, count) for one in group[0].prompt_logprobs)]
        return RequestOutput(
            str(next(self._ids)), text, tokens, completions, prompt_logprobs=scores
        )

    def completion(self, sequence: Sequence, index: int = 0) -> CompletionOutput:
        """What a sequence has come to so far."""
        count = sequence.params.logprobs
        return CompletionOutput(
            index,
            sequence.text.text if sequence.text is not None else "",
            tuple(sequence.output),
            sequence.cumulative_logprob if count is not None else None,
            None if count is None else [self._logprobs(one, count) for one in sequence.logprobs],
            sequence.finish_reason,
            sequence.stop_reason,
            sequence.error,
        )

    def _logprobs(self, one: Mapping[int, float], count: int) -> dict[int, Logprob]:
        decode = self.tokenizer.decode if self.tokenizer is not None else None
        return {
            token: Logprob(
                value,
                rank if rank <= count else None,
                decode([token], skip_special_tokens=False) if decode else None,
            )
            for rank, (token, value) in enumerate(one.items(), 1)
        }


def _as_list(prompts: Prompt | Seq[Prompt]) -> list[Prompt]:
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    given: Any = prompts.tolist() if hasattr(prompts, "tolist") else prompts  # an array
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise _no_prompt(given, "prompts")
    many: Any = list(given)
    if many and all(_is_number(p) for p in many):
        return [many]  # one prompt of token numbers
    return many


def _token_numbers(prompt: Any, where: str) -> list[int]:
    given = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(given, (list, tuple)) or not all(map(_is_number, given)):
        raise _no_prompt(given, where)
    return [int(token) for token in given]


def _is_number(token: Any) -> bool:
    return isinstance(token, Integral) and not isinstance(token, bool)


def _no_prompt(given: Any, where: str) -> RequestError:
    return RequestError(
        "a prompt is neither text nor token numbers",
        where=where,
        facts=f"it is {_shown(given)}",
        fix="pass a string, a list of whole numbers, or a list of such prompts",
    )


def _shown(value: Any) -> str:
    """A value in a message: its type, and what it looks like if that is short."""
    text = repr(value)
    return f"of type {type(value).__name__}: {text if len(text) <= 80 else text[:77] + '...'}"
