"""Runs one format of formats.py over a range of seeds: `worker FORMAT FIRST COUNT`.

Prints how many were tried and refused; the seed of one that fails is named in the error.
"""

import logging
import resource
import sys
import tempfile
from pathlib import Path

from .formats import FORMATS

MEMORY = 500 << 20  # beyond what the process has once its libraries and samples are loaded


def main(name: str, first: int, count: int) -> None:
    """Try the seeds [first, first + count)."""
    logging.disable(logging.WARNING)
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        check = FORMATS[name](Path(folder))
        check(first)  # loads what is loaded at the first use
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for seed in range(first, first + count):
            try:
                refused += check(seed)
            except Exception as error:
                raise AssertionError(f"{name}, seed {seed}") from error
    print(count, refused)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
