"""`verify` for language models: logits of the engine beside those of transformers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..frontend.onnx.lm_folder import find_onnx
from ..ir.layout import INPUT_IDS, POSITION_IDS
from ..ir.progress import Progress, unwatched
from ..ir.types import DType, f32
from ..passes.differential import difference
from ..runtime.engine.runner import ProgramRunner, StepResult
from ..runtime.engine.sampling_params import SamplingParams
from ..runtime.engine.scheduler import Work
from .bisect import Suspect, bisect
from .build_model import capture, pipeline_of
from .compile_model import require_onnx
from .language_model import LLM
from .machine import resolve_target
from .request import Request, parse_dtype
from .verify_module import BOUNDS, Case, Difference, Verdict

LENGTHS = (1, 5, 33)  # of the prompts that are made
NEW_TOKENS = 8

Rows = dict[int, np.ndarray]  # place -> logits of the token after it


class Recorder:
    """A runner that keeps the logits of every place of every sequence that goes through it."""

    def __init__(self, runner: ProgramRunner):
        self._runner, self.overlaps = runner, False  # logits are there until the next step
        self.rows: dict[tuple[int, ...], Rows] = {}  # by prompt
        self.tokens: dict[tuple[int, ...], list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, work: Sequence[Work]) -> StepResult:
        """As `ProgramRunner.run`."""
        result = self._runner.run(work)
        logits, batch = np.array(result.logits()), result.batch
        places = [(s, len(s.tokens) - 1) for s in batch.wanting]
        for row, (sequence, place) in enumerate([*places, *batch.scored]):
            self.rows.setdefault(sequence.prompt, {})[place] = logits[row]
            self.tokens[sequence.prompt] = sequence.tokens
        return result


def verify_language_model(
    path: str | Path,
    *,
    dtype: str = "auto",
    target: str = "auto",
    kv_cache_dtype: str = "auto",
    prompts: Sequence[Sequence[int]] | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    find: bool = False,
    progress: Progress = unwatched,
) -> Verdict:
    """Generate after some prompts, and compare the logits of all their tokens with a framework's.

    Each prompt (token numbers; random ones unless given) runs alone, and then all run together,
    greedily. transformers, or for a model in ONNX another runtime, computes in float32, on the CPU,
    of the same tokens at once, with weights rounded as the program stores them. A difference is
    relative to the largest logit.
    """
    wanted = parse_dtype(dtype, "dtype"), parse_dtype(kv_cache_dtype, "kv_cache_dtype")
    request = Request(path, None, wanted[0], resolve_target(target), wanted[1])
    assert request.path is not None, "a path was given"
    reference, logits_of = _reference(request.path, request.stored)
    bounds = [BOUNDS[each.name] for each in (request.computed, request.kv_dtype) if each]
    bound = tolerance if tolerance is not None else max(bounds)
    cases = []
    options: Any = {"dtype": dtype, "target": target, "kv_cache_dtype": kv_cache_dtype}
    with LLM(path, progress=progress, **options) as llm:
        room = min(llm.facts["context_len"] - NEW_TOKENS, 512)
        made = _prompts(llm.facts["vocab_size"], room, seed) if prompts is None else prompts
        for together in [*([p] for p in made), made]:
            recorder = Recorder(llm.engine.runner)
            llm.engine.runner = recorder  # type: ignore[assignment]
            params = SamplingParams(
                temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, prompt_logprobs=0
            )
            llm.generate([{"prompt_token_ids": list(p)} for p in together], params)
            llm.engine.runner = recorder._runner
            results = []
            for prompt, rows in recorder.rows.items():
                tokens = recorder.tokens[prompt]
                theirs = logits_of(tokens)
                places = sorted(rows)
                ours = np.stack([rows[place] for place in places]).astype(np.float64)
                error = difference(ours, theirs[places].astype(np.float64))
                name = f"logits of {len(prompt)} + {len(places) - len(prompt) + 1} tokens"
                results.append(Difference(name, error, bound))
            what = "together" if len(together) > 1 else "alone"
            cases.append(Case(f"{len(together)} prompts, {what}", tuple(results)))
        used = llm.program.target
    verdict = Verdict(reference, used, tuple(cases))
    if not find or verdict.is_right:
        return verdict
    return replace(verdict, suspect=_suspect(request, made[-1], progress))


def _prompts(vocab_size: int, room: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    lengths = dict.fromkeys(max(1, min(length, room)) for length in LENGTHS)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


def _reference(path: Path, stored: DType) -> tuple[str, Callable[[Sequence[int]], np.ndarray]]:
    """What the program is compared with, and its logits [n, V] of n tokens."""
    found = find_onnx(path)
    if found is not None:
        require_onnx()
        from ..frontend.onnx.lm_capture import logits_elsewhere

        return logits_elsewhere(found, stored)
    import torch

    from ..frontend.checkpoint import load_eager
    from ..frontend.dtypes import TO_TORCH

    eager = load_eager(path)
    with torch.no_grad():
        for parameter in eager.parameters():
            if parameter.dim() > 1 and stored != f32:
                # as the program stores them; they are computed with in float32 all the same
                parameter.copy_(parameter.to(TO_TORCH[stored]))

    def logits_of(tokens: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return eager(torch.tensor([list(tokens)]), use_cache=False).logits[0].numpy()

    return "transformers, float32", logits_of


def _suspect(request: Request, prompt: Sequence[int], progress: Progress) -> Suspect | None:
    captured = capture(request, progress)
    arguments = {
        INPUT_IDS: np.array([prompt], np.int64),
        POSITION_IDS: np.arange(len(prompt), dtype=np.int64)[None],
    }
    return bisect(captured.graph, captured.weights, pipeline_of(request), request.target, arguments)
