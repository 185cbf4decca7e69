"""What runs the kernels of these tests: Triton's interpreter, or the GPU with `--device cuda`."""

import pytest


@pytest.fixture(scope="session")
def runner(device):
    """`run(case, schedule)` -> every parameter afterwards; `is_card` says which of the two.

    One for all files: each loads torch and Triton.
    """
    from .card import Card
    from .harness import Interpreter

    running = Interpreter() if device == "cpu" else Card()
    yield running
    running.close()
