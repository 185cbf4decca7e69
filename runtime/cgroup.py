"""What a container allows: processor time and memory of this process's control groups.

Both versions are read, and every group from the process's own up to the root: the least one holds.
"""

from collections.abc import Iterator
from pathlib import Path

NO_LIMIT = 1 << 62  # version 1 writes a number near 2^63 for "none"


def quota_cores(root: Path = Path("/")) -> int | None:
    """Whole processors that the quotas allow, at least 1; None without a quota."""
    shares = []
    for group in _groups(root, "cpu"):
        quota, _, period = _first_line(group / "cpu.max").partition(" ")
        if not quota:
            quota = _first_line(group / "cpu.cfs_quota_us")
            period = _first_line(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):  # "max" and -1 are no quota
            shares.append(max(1, int(quota) // int(period)))
    return min(shares, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the groups allow; None without a limit."""
    return min((limit for limit, _ in _memory(root)), default=None)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that the groups leave, with the page cache that can go; None without a limit."""
    return min((max(0, limit - used) for limit, used in _memory(root)), default=None)


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes used for good) of each group that has a limit."""
    for group in _groups(root, "memory"):
        limit, used = (_first_line(group / n) for n in ("memory.max", "memory.current"))
        if not limit:
            limit = _first_line(group / "memory.limit_in_bytes")
            used = _first_line(group / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit() and int(limit) < NO_LIMIT:
            yield int(limit), max(0, int(used) - _cached(group))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the process's groups that may limit `controller`, innermost first."""
    mounts = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0":
            top = mounts
            if not (top / "cgroup.controllers").exists():
                top = mounts / "unified"  # beside version 1
        elif controller in names.split(","):
            top = next((mounts / n for n in (names, controller) if (mounts / n).exists()), mounts)
        else:
            continue
        # inside a container the path may be the host's, of which only the root is mounted here
        inner = top / path.strip("/")
        while inner != top and top in inner.parents:
            if inner.exists():
                yield inner
            inner = inner.parent
        yield top


def _cached(group: Path) -> int:
    """Bytes of files that the kernel drops when memory is short."""
    values = dict(line.split()[:2] for line in _lines(group / "memory.stat") if " " in line)
    found = values.get("total_inactive_file") or values.get("inactive_file") or "0"
    return int(found) if found.isdigit() else 0


def _first_line(path: Path) -> str:
    return next(iter(_lines(path)), "").strip()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # no such group, or not ours to read: no limit
        return []
