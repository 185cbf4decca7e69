"""What every format is held to."""

from collections.abc import Callable

from tilewright.ir.errors import TilewrightError

Check = Callable[[int], bool]  # seed -> whether it was refused


def refused(read: Callable[[], object]) -> bool:
    """Whether `read` raised an error of ours; any other is the fault that is looked for."""
    try:
        read()
    except TilewrightError as error:
        message = str(error)
    else:
        return False
    assert len(message) < 20_000, "a message nobody can read"
    return True
