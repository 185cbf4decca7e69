"""How the threads of a library wait for each other."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tilewright.codegen import cpp

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")

# Two threads meet four times; the worker comes 20 ms late to the last three. Prints the processor
# time, in ns, of each of the caller's waits, then whether the cores were found crowded.
SOURCE = r"""
#include <stdio.h>
#include "tw_pool.h"

static int64_t used() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

static void meet(void*, const TwTeam* team) {
    for (int i = 0; i < 4; ++i) {
        if (team->tid && i) usleep(20000);
        int64_t before = used();
        tw_barrier(team);
        if (!team->tid) printf("%lld ", (long long)(used() - before));
    }
}

int main() {
    TwPool* pool = tw_pool();
    tw_resize(pool, 1);
    pool->run = meet;
    TwTeam team = {0, 2, nullptr, nullptr, &pool->sync, nullptr};
    tw_open(&pool->start);
    meet(nullptr, &team);
    printf("%d\n", tw_nanoseconds() < tw_crowded_until);
    tw_close_pool();
}
"""


def test_a_thread_whose_peer_has_no_core_spins_once_only(tmp_path):
    (tmp_path / "meet.cpp").write_text(SOURCE)
    folder = Path(cpp.__file__).parent
    command = ["g++", "-O1", "-pthread", f"-I{folder}", "-o", "meet", "meet.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = subprocess.run([tmp_path / "meet"], capture_output=True, text=True, check=True)
    *used, is_crowded = map(int, found.stdout.split())
    assert is_crowded
    # the first two have a full spin among them; what else runs here takes no processor time of ours
    assert max(used[:2]) > 3 * max(used[2:])
