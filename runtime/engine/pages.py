"""The pool of KV pages: who holds which page, and how many hold it."""

from collections import Counter
from collections.abc import Iterable, Sequence


class PagePool:
    """Pages 0..num_pages-1. A page is free, or held by one or more owners.

    Invariant, held by `check_integrity`: the free list has each page without an owner exactly once,
    and a page's count is the number of times that owners list it.
    """

    def __init__(self, num_pages: int):
        assert num_pages > 0, "a pool has at least one page"
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # taken from the end: low pages first
        self._counts = [0] * num_pages

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages that somebody holds."""
        return self.num_pages - len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` free pages for one owner, or None when there are fewer: all or nothing."""
        if count > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._counts[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Make somebody else an owner of held pages as well."""
        for page in pages:
            assert self._counts[page] > 0, f"page {page} is free: nobody to share it with"
            self._counts[page] += 1

    def free(self, pages: Iterable[int]) -> None:
        """One owner lets go of `pages`; those without another owner become free."""
        for page in pages:
            assert self._counts[page] > 0, f"page {page} is freed twice"
            self._counts[page] -= 1
            if self._counts[page] == 0:
                self._free.append(page)

    def check_integrity(self, owners: Iterable[Sequence[int]]) -> None:
        """AssertionError unless free list, counts and the owners' lists tell one story."""
        held: Counter[int] = Counter()
        for pages in owners:
            assert len(set(pages)) == len(pages), f"an owner lists a page twice: {list(pages)}"
            held.update(pages)
        free = set(self._free)
        assert len(free) == len(self._free), "a page is in the free list twice"
        assert not free & held.keys(), f"pages both free and held: {sorted(free & held.keys())}"
        lost = set(range(self.num_pages)) - free - held.keys()
        assert not lost, f"pages neither free nor held: {sorted(lost)}"
        wrong = {p: (c, held[p]) for p, c in enumerate(self._counts) if c != held[p]}
        assert not wrong, f"page: (count, owners found): {wrong}"
