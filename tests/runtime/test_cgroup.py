"""Limits of control groups, read from folders laid out as the kernel shows them."""

from pathlib import Path

import pytest

from tilewright.runtime.cgroup import available_bytes, memory_limit, quota_cores

MIB = 1 << 20


@pytest.fixture
def lay(tmp_path):
    """A function that writes files of a root folder: lay({"proc/self/cgroup": "0::/"}) -> root."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return write


def version_2(path, **groups):
    """Files of version 2 with the process in `path`; groups: name -> {file: text}."""
    files = {"proc/self/cgroup": f"0::{path}", "sys/fs/cgroup/cgroup.controllers": "cpu memory"}
    for name, inside in groups.items():
        folder = "sys/fs/cgroup" + name.replace("_", "/").replace("root", "")
        files |= {f"{folder}/{file}": text for file, text in inside.items()}
    return files


def test_nothing_is_limited_where_nothing_is_said(lay):
    for root in (lay({}), lay(version_2("/")), lay({"proc/self/cgroup": "nonsense\n::\n0"})):
        assert quota_cores(root) is available_bytes(root) is memory_limit(root) is None


def test_the_least_group_from_ours_to_the_root_holds(lay):
    root = lay(
        version_2(
            "/outer/inner",
            _outer={
                "cpu.max": "350000 100000",
                "memory.max": str(300 * MIB),
                "memory.current": str(120 * MIB),
                "memory.stat": f"anon 5\ninactive_file {20 * MIB}",
            },
            _outer_inner={
                "cpu.max": "max 100000",
                "memory.max": str(1000 * MIB),
                "memory.current": str(100 * MIB),
            },
        )
    )
    assert quota_cores(root) == 3
    assert memory_limit(root) == 300 * MIB
    assert available_bytes(root) == 200 * MIB  # the cache can go


def test_inside_a_container_the_root_is_its_group(lay):
    """The path is the host's, and only what it names is mounted, as the root."""
    limits = {"cpu.max": "50000 100000", "memory.max": str(64 * MIB), "memory.current": "0"}
    root = lay(version_2("/../host/path", root=limits))
    assert quota_cores(root) == 1  # half a processor is still one
    assert available_bytes(root) == 64 * MIB


def test_more_used_than_allowed_leaves_nothing(lay):
    root = lay(version_2("/", root={"memory.max": "1000", "memory.current": "5000"}))
    assert available_bytes(root) == 0


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_version_1(lay, mount):
    root = lay(
        {
            "proc/self/cgroup": "5:memory:/a/b\n4:cpu,cpuacct:/a\n0::/",
            f"sys/fs/cgroup/{mount}/a/cpu.cfs_quota_us": "400000",
            f"sys/fs/cgroup/{mount}/a/cpu.cfs_period_us": "100000",
            f"sys/fs/cgroup/{mount}/cpu.cfs_quota_us": "-1",
            f"sys/fs/cgroup/{mount}/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(100 * MIB),
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(90 * MIB),
            "sys/fs/cgroup/memory/a/memory.stat": f"inactive_file 1\ntotal_inactive_file {MIB}",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
        }
    )
    assert quota_cores(root) == 4
    assert (memory_limit(root), available_bytes(root)) == (100 * MIB, 11 * MIB)
