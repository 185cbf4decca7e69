"""How far requests are: by prompt tokens until one is finished, then by finished prompts."""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...ir.progress import Progress, unwatched
from .sequence import Sequence
from .stats import Stats

EVERY = 0.1  # seconds between reports: a decode step may take less than counting does
DELAY = 1.0  # seconds before a bar is shown: short calls show none


class Watch:
    """Tells `listeners` after steps how far `groups` are, one group of sequences a prompt."""

    def __init__(self, groups: Seq[Seq[Sequence]], listeners: Seq[Progress]):
        self._groups = groups
        self._listeners = [listener for listener in listeners if listener is not unwatched]
        self._next = time.monotonic()

    def after_step(self, is_last: bool) -> None:
        """Report, if that was not done just now."""
        if not self._listeners or (time.monotonic() < self._next and not is_last):
            return
        self._next = time.monotonic() + EVERY
        report = self._state()
        for listener in self._listeners:
            listener(*report)

    def _state(self) -> tuple[str, int, int]:
        finished = sum(all(s.is_finished for s in group) for group in self._groups)
        sequences = [s for group in self._groups for s in group]
        tokens = sum(len(s.prompt) for s in sequences)
        computed = sum(min(s.num_computed, len(s.prompt)) for s in sequences)
        if finished == 0 and computed < tokens:
            return "prefill", computed, tokens
        return "prompts", finished, len(self._groups)


@contextmanager
def progress_bar(
    use_tqdm: bool | Callable[..., Any], prompts: int, stats: Stats
) -> Iterator[Progress]:
    """A bar of tqdm's, or of a function that takes what `tqdm` takes; vLLM's `use_tqdm`."""
    if not use_tqdm:
        yield unwatched
        return
    if callable(use_tqdm):
        make = use_tqdm
    else:
        from tqdm import tqdm

        # disable=None: on a terminal only
        make = partial(tqdm, disable=None, delay=DELAY, mininterval=EVERY)
    bar = make(total=prompts, desc="Processed prompts", dynamic_ncols=True)
    shown = 0

    def show(stage: str, done: int, of: int) -> None:
        nonlocal shown
        if stage == "prefill":
            bar.set_postfix_str(f"prefill {done}/{of} tokens", refresh=False)
            bar.update(0)
            return
        speeds = (
            f"prefill {stats.prefill_tokens_per_second:.0f}, "
            f"decode {stats.decode_tokens_per_second:.0f} tokens/s"
        )
        bar.set_postfix_str(speeds, refresh=False)
        bar.update(done - shown)
        shown = done

    try:
        yield show
    finally:
        bar.close()
