"""Page pool and scheduler under random use, their books checked after every step."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from tilewright.ir.errors import OutOfPages
from tilewright.runtime.engine.batch import make_batch, sizes_of
from tilewright.runtime.engine.pages import PagePool
from tilewright.runtime.engine.sampling_params import SamplingParams
from tilewright.runtime.engine.scheduler import Scheduler
from tilewright.runtime.engine.sequence import Sequence, Status


class PoolMachine(RuleBasedStateMachine):
    """Owners allocate, share and free; the pool and a plain model of it must agree."""

    owners = Bundle("owners")

    def __init__(self):
        super().__init__()
        self.pool = PagePool(20)
        self.held: list[list[int]] = []

    @rule(target=owners, count=st.integers(0, 25))
    def allocate(self, count):
        free = self.pool.num_free
        pages = self.pool.allocate(count)
        if count > free:
            assert pages is None
            assert self.pool.num_free == free
            return multiple()
        assert len(pages) == count
        self.held.append(pages)
        return pages

    @rule(target=owners, pages=owners)
    def share(self, pages):
        self.pool.share(pages)
        self.held.append(list(pages))
        assert all(self.pool._counts[page] > 1 for page in pages)
        return self.held[-1]

    @rule(pages=consumes(owners))
    def free(self, pages):
        self.pool.free(pages)
        self.held.remove(pages)

    @invariant()
    def books_agree(self):
        self.pool.check_integrity(self.held)
        assert self.pool.num_used == len({p for pages in self.held for p in pages})


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestPool = PoolMachine.TestCase


def test_integrity_check_sees_each_kind_of_damage():
    pool = PagePool(4)
    pages = pool.allocate(2)
    pool.check_integrity([pages])
    with pytest.raises(AssertionError, match="neither free nor held"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="both free and held"):
        pool.check_integrity([pages, [3]])
    with pytest.raises(AssertionError, match="lists a page twice"):
        pool.check_integrity([[0, 0], [1]])
    with pytest.raises(AssertionError, match=r"\(count, owners found\)"):
        pool.check_integrity([pages, pages])
    pool.free(pages)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(pages)
    with pytest.raises(AssertionError, match="is free"):
        pool.share([0])


class SchedulerMachine(RuleBasedStateMachine):
    """Sequences arrive, run, end and are aborted at random."""

    sequences = Bundle("sequences")
    overlaps = False  # whether a step's tokens are known only after the next one is scheduled

    def __init__(self):
        super().__init__()
        self.pool = PagePool(12)
        self.scheduler = Scheduler(self.pool, 4, max_num_seqs=4, max_num_batched_tokens=9)
        self.count = 0
        self.wanted: dict[Sequence, int] = {}
        self.awaiting: list[Sequence] = []

    @rule(
        target=sequences,
        prompt=st.integers(1, 45),
        output=st.integers(1, 12),
        spare=st.integers(0, 2),
    )
    def add(self, prompt, output, spare):
        self.count += 1
        sequence = Sequence(self.count, (0,) * prompt, SamplingParams(), 0)
        self.scheduler.add(sequence)
        self.wanted[sequence] = output
        sequence.max_length = prompt + output + spare  # known beforehand only without any
        return sequence

    @rule(prompt=st.integers(49, 200))
    def add_too_long(self, prompt):
        with pytest.raises(OutOfPages, match="too small for one sequence"):
            self.scheduler.add(Sequence(0, (0,) * prompt, SamplingParams(), 0))

    @rule(sequence=consumes(sequences))
    def abort(self, sequence):
        if not sequence.is_finished:
            self.scheduler.finish(sequence, "abort")
        assert not sequence.pages

    @rule(steps=st.integers(1, 8))
    def step(self, steps):
        for _ in range(steps):
            oldest = self.scheduler.running[0] if self.scheduler.running else None
            work = self.scheduler.schedule()
            self._check_work(work)
            if oldest is not None and not (oldest.is_finished or oldest.is_complete):
                assert any(w.sequence is oldest for w in work), "the oldest always moves on"
            launched = [item.sequence for item in work if item.wants_token]
            for item in work:
                item.sequence.num_computed += item.count
            for sequence in launched:
                sequence.num_awaited += 1
            if self.overlaps:
                launched, self.awaiting = self.awaiting, launched
            self._arrive(launched)
            self.scheduler.check_integrity()

    def _arrive(self, sequences):
        for sequence in sequences:
            sequence.num_awaited -= 1
            sequence.tokens.append(1)
            if sequence.num_output >= self.wanted[sequence] and not sequence.is_finished:
                self.scheduler.finish(sequence, "length")

    def _check_work(self, work):
        scheduler = self.scheduler
        assert sum(w.count for w in work) <= scheduler.max_num_batched_tokens
        assert len({w.sequence for w in work}) == len(work) <= scheduler.max_num_seqs
        if scheduler.has_work and not scheduler.failed and not self.awaiting:
            assert work, "work is waiting and nothing runs"
        for item in work:
            assert item.sequence.status is Status.RUNNING
            assert 1 <= item.count <= item.sequence.num_pending
            room = len(item.sequence.pages) * scheduler.page_size
            assert room >= item.sequence.num_computed + item.count
        if work:
            sizes = sizes_of(work, scheduler.page_size)
            batch = make_batch(work, scheduler.page_size)
            assert len(batch.wanting) == sum(w.wants_token for w in work) <= sizes.rows
        for failed in scheduler.failed:
            assert isinstance(failed.error, OutOfPages)
            assert failed.num_ahead > 48
        scheduler.failed.clear()

    @invariant()
    def books_agree(self):
        self.scheduler.check_integrity()

    def teardown(self):
        for _ in range(5000):
            if not self.scheduler.has_work:
                break
            self.step(1)
        assert not self.scheduler.has_work, "everything comes to an end"
        assert self.pool.num_free == 12


SchedulerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=25)
TestScheduler = SchedulerMachine.TestCase


class OverlappingMachine(SchedulerMachine):
    """The same where steps are launched before the tokens of the one before are known."""

    overlaps = True


OverlappingMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=25)
TestOverlapping = OverlappingMachine.TestCase
