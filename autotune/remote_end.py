"""The process behind a `Remote`: `python -m tilewright.autotune.remote_end FD`.

First it is sent what makes the object, then names of methods with arguments, and answers each with
(whether it went well, what came of it). It ends when nobody is there any more.
"""

import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from ..ir.errors import TilewrightError


def answer(call: Callable[..., Any], args: tuple) -> tuple[bool, Any]:
    """What a call gives, or in one line why it gives nothing."""
    try:
        return True, call(*args)
    except TilewrightError as error:
        words = [error.what, *str(error.facts or "").splitlines()[:1]]
        return False, ": ".join(filter(None, words))
    except Exception as error:  # noqa: BLE001 (any failure of a candidate is a line of the report)
        return False, f"{type(error).__name__}: {error}".splitlines()[0]


def main() -> None:
    """Serve until the other end is closed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    connection = Connection(int(sys.argv[1]))
    held: Any = None
    while True:
        try:
            what, args = connection.recv()
        except EOFError:
            return
        if held is not None:
            connection.send(answer(getattr(held, what), args))
            continue
        is_good, made = answer(what, args)
        connection.send((is_good, None if is_good else made))
        if not is_good:
            return
        held = made


if __name__ == "__main__":
    main()
