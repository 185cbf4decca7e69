"""What runs in the next step: decode steps and prefill chunks together, under a token budget.

First come, first served. A sequence that needs a page when none is free takes the pages of the
youngest running one, which computes its keys and values again later. Pages are free at once, though
a step that writes into them may be running: whatever uses them next runs after it.
"""

from collections import deque
from collections.abc import Sequence as Seq

from ...ir.errors import OutOfPages
from .pages import PagePool
from .sequence import Sequence, Status


class Work:
    """The next `count` pending tokens of a sequence, as it is when this is made."""

    __slots__ = ("count", "sequence", "wants_token")

    def __init__(self, sequence: Sequence, count: int):
        self.sequence, self.count = sequence, count
        # whether this reaches the end of what there is, so that a token can be chosen
        self.wants_token = count == sequence.num_pending

    @property
    def scored(self) -> Seq[int]:
        """Places of the prompt whose logits tell how likely the token after them was."""
        sequence = self.sequence
        if sequence.params.prompt_logprobs is None:
            return ()
        end = min(sequence.num_computed + self.count, len(sequence.prompt) - 1)
        return range(max(sequence.num_computed, len(sequence.prompt_logprobs)), end)


class Scheduler:
    """Sequences that wait and run, and the pages they hold."""

    def __init__(
        self, pool: PagePool, page_size: int, *, max_num_seqs: int, max_num_batched_tokens: int
    ):
        assert max_num_seqs > 0, "a step needs room for a sequence"
        assert max_num_batched_tokens >= max_num_seqs, "each running sequence needs a token a step"
        self.pool, self.page_size = pool, page_size
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.num_preemptions = 0
        self._spare_rows = 0
        self.failed: list[Sequence] = []  # finished with an error; whoever reports them empties it

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait. OutOfPages when the whole pool could not hold it and one token."""
        needed = self._pages_for(sequence.length)
        if needed > self.pool.num_pages:
            raise self._too_long(sequence, needed)
        self.waiting.append(sequence)

    def schedule(self) -> list[Work]:
        """Choose work and give it pages. Empty only when there is none, or all of it failed.

        A sequence that alone needs more than the pool is finished with OutOfPages as its error.
        """
        budget = self.max_num_batched_tokens
        # a step has memory for max_num_seqs rows of logits: one for each sequence, and of what is
        # left one for each token of a prompt that is scored
        self._spare_rows = self.max_num_seqs - len(self.running)
        plan: dict[Sequence, int] = {}
        preempted = False
        # decode steps first, so that no prefill can starve them; each group oldest first
        pending = [(s.num_pending, s) for s in self.running if not s.is_complete]
        decodes = [each for each in pending if each[0] == 1]
        for number, sequence in decodes + [each for each in pending if each[0] > 1]:
            if sequence.status is not Status.RUNNING or budget == 0:
                continue  # preempted for an older one just now, or no room in this step
            count = 1 if number == 1 else self._count(sequence, budget)
            while not self._grow(sequence, sequence.num_computed + count):
                preempted = True
                victim = self.running[-1]
                if victim is sequence and len(self.running) == 1:
                    needed = self._pages_for(sequence.num_computed + count)
                    if needed > self.pool.num_pages:
                        self._fail(sequence, needed)
                        break
                self._preempt(victim)
                budget += plan.pop(victim, 0)
                if victim is sequence:
                    break
            if sequence.status is Status.RUNNING:
                plan[sequence] = count
                budget -= count
        if not preempted:
            self._admit(plan, budget)
        return [Work(sequence, count) for sequence, count in plan.items()]

    def _count(self, sequence: Sequence, budget: int) -> int:
        """How many of the sequence's tokens this step computes."""
        count = min(sequence.num_pending, budget)
        if sequence.params.prompt_logprobs is not None and Work(sequence, count).scored:
            # a row for each of the tokens
            count = min(count, 1 + self._spare_rows)
            self._spare_rows -= count - 1
        return count

    def _admit(self, plan: dict[Sequence, int], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            # only when all its known tokens fit, so that a chunk is not begun in vain, and some
            # pages are left for those that run, so that it is not preempted at once
            spare = min(len(self.running), self.pool.num_pages // 32 + 1)
            assert not sequence.num_awaited, "what waits is known"
            if self._pages_for(sequence.length) + spare > self.pool.num_free:
                return
            if self._spare_rows == 0:
                return
            self._spare_rows -= 1
            count = self._count(sequence, budget)
            self.waiting.popleft()
            sequence.status = Status.RUNNING
            self.running.append(sequence)
            has_grown = self._grow(sequence, count)
            assert has_grown, "pages that are free can be had"
            plan[sequence] = count
            budget -= count

    def finish(self, sequence: Sequence, reason: str) -> None:
        """Take a sequence out, wherever it is, and free its pages."""
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        self._release(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason

    def check_integrity(self) -> None:
        """AssertionError when pages, queues and states disagree."""
        sequences = [*self.running, *self.waiting]
        self.pool.check_integrity(s.pages for s in sequences)
        assert len(set(map(id, sequences))) == len(sequences), "a sequence is in two places"
        assert len(self.running) <= self.max_num_seqs, "more sequences run than may"
        for sequence in self.running:
            assert sequence.status is Status.RUNNING, f"sequence {sequence.id}: {sequence.status}"
            room = len(sequence.pages) * self.page_size
            assert sequence.num_computed <= room, f"sequence {sequence.id} outgrew its pages"
            assert sequence.num_pending > 0, f"sequence {sequence.id} has nothing to compute"
            row = sequence.page_row[: len(sequence.pages)].tolist()
            assert row == sequence.pages, f"sequence {sequence.id}: its row"
        for sequence in self.waiting:
            assert sequence.status is Status.WAITING, f"sequence {sequence.id}: {sequence.status}"
            assert not sequence.pages, f"sequence {sequence.id} waits and holds pages"
            assert sequence.num_computed == 0, f"sequence {sequence.id} waits, computed in part"

    # ---- pages -------------------------------------------------------------------------------

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Have pages for `tokens` tokens; False, and nothing changed, when too few are free."""
        if tokens > len(sequence.pages) * self.page_size:
            pages = self.pool.allocate(self._pages_for(tokens) - len(sequence.pages))
            if pages is None:
                return False
            sequence.add_pages(pages)
        return True

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self._release(victim)
        victim.status = Status.WAITING
        self.num_preemptions += 1
        self.waiting.appendleft(victim)

    def _release(self, sequence: Sequence) -> None:
        self.pool.free(sequence.drop_pages())

    def _fail(self, sequence: Sequence, needed: int) -> None:
        sequence.error = self._too_long(sequence, needed)
        self.finish(sequence, "error")
        self.failed.append(sequence)

    def _too_long(self, sequence: Sequence, needed: int) -> OutOfPages:
        return OutOfPages(
            "the KV pool is too small for one sequence",
            where=f"sequence {sequence.id}, {sequence.length} tokens",
            facts=f"needed: {needed} pages of {self.page_size} tokens; the pool has"
            f" {self.pool.num_pages}",
            fix="give the pool more memory, or shorten the prompt or max_tokens",
        )
