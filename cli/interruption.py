"""Ctrl-C ends a command with one line and code 130, wherever it comes: in an import or a callback.

SIGTERM ends it with code 143, and what is begun is undone: a scratch folder, a half-written file.

Libraries turn an interruption into errors of their own (NumPy into an ImportError), and the
interpreter drops one that comes in a callback; so it is remembered here that there was one.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

CODE = 130
TERMINATED = 143
_came = False  # since the process began, or since somebody took care of it
_is_said = False


def came() -> bool:
    """Whether Ctrl-C was pressed and nobody took care of it."""
    return _came


def forget() -> None:
    """Somebody took care of it: a chat goes on after an answer was cut short."""
    global _came
    _came = False


def say(stream: TextIO | None = None) -> None:
    """Tell the user, once; on standard error unless another stream is given."""
    global _is_said
    if not _is_said:
        _is_said = True
        print("\ninterrupted", file=stream or sys.stderr, flush=True)


@contextmanager
def watched() -> Iterator[None]:
    """A command's whole life; the process ends here when it was interrupted."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _handle)
        signal.signal(signal.SIGTERM, _terminate)
        sys.unraisablehook = _unraisable
        # what is left then is the interpreter's own end
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    except BaseException:
        if not _came:
            raise
        _leave()


def _handle(number: int, frame: FrameType | None) -> None:
    global _came
    _came = True
    if _is_importing(frame):
        _leave()  # nothing is begun that must be undone, and libraries would print tracebacks
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the undoing is not cut short
    raise SystemExit(TERMINATED)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _leave() -> None:
    say(sys.__stderr__)  # the other may be caught by somebody at this moment
    sys.stdout.flush()
    # the interpreter's own exit would end in the signal where one came inside an `exec`
    os._exit(CODE)


def _unraisable(args: "sys.UnraisableHookArgs") -> None:
    if issubclass(args.exc_type, KeyboardInterrupt):
        # raised where nothing can be: a moment later it can
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(args)
