"""A chat template, rendered in a process of its own that has little time and memory.

A template comes with a checkpoint and is not trusted. No hook inside this process sees all that can
take long or grow: what the system allows another process holds whatever Jinja does.
"""

import atexit
import json
import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from ...ir.fork_lock import ForkLock, tell_after_fork

MAX_TEMPLATE_CHARS = 1 << 16  # of the template's own text: several times the longest that is known
MAX_SECONDS = 5.0  # of processor time, so that a busy machine changes nothing
MAX_CHARS = 32 << 20  # that may come out
MAX_BYTES = 256 << 20  # of memory
# for each byte that the caller gave, beside those
GIVEN_CHARS, GIVEN_BYTES = 8, 64


class TemplateFailed(Exception):  # not an error of ours: the caller makes one of it
    """A template cannot be read, refused its messages, or takes too much."""


class ChatTemplate:
    """A template's text, compiled. `render` may be called by several threads at once.

    Raises `TemplateFailed`, as `render` does.
    """

    def __init__(self, text: str):
        if len(text) > MAX_TEMPLATE_CHARS:
            raise TemplateFailed(f"it has {len(text):,} characters, more than any template needs")
        self._text = text
        self.loops_over_parts, self.literals = json.loads(_process.ask(text, None))

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for `variables`, which are plain data without cycles."""
        return _process.ask(self._text, variables)


class _Process:
    """template_process.py: started when it is needed, and again when a template has ended it."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._running: subprocess.Popen[bytes] | None = None
        tell_after_fork(self)
        atexit.register(self.close)

    def after_fork(self) -> None:
        """In a forked process: the one that runs is the parent's."""
        if self._running is not None:
            self._running.returncode = 0  # not ours to wait for
            self._running = None

    def ask(self, text: str, variables: Mapping[str, Any] | None) -> str:
        """What a template makes of `variables`; without them the facts that it compiles to."""
        given = marshal.dumps(variables)
        limits = (MAX_SECONDS, MAX_BYTES + GIVEN_BYTES * len(given))
        request = (*limits, MAX_CHARS + GIVEN_CHARS * len(given), text, given)
        with self._lock:
            if self._running is None or self._running.poll() is not None:
                self._start()
            try:
                self._connection.send_bytes(marshal.dumps(request))
                answer = self._connection.recv_bytes()
            except (EOFError, OSError):
                raise TemplateFailed(self._why_ended()) from None
            except BaseException:  # Ctrl-C: its answer is nobody's
                self.close()
                raise
        made = answer[1:].decode("utf-8", "surrogatepass")
        if answer[:1] != b"T":
            raise TemplateFailed(made)
        return made

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        number = theirs.fileno()
        program = Path(__file__).with_name("template_process.py")
        try:
            self._running = subprocess.Popen(
                # -P: the modules beside it are none that it may import
                [sys.executable or "python3", "-P", program, str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=(number,),
                start_new_session=True,  # Ctrl-C is for us
            )
        except OSError as error:
            raise TemplateFailed(f"the process that renders does not start: {error}") from error
        finally:
            theirs.close()

    def _why_ended(self) -> str:
        assert self._running is not None, "it was asked"
        code = self._running.wait()
        if code == -signal.SIGPROF:
            return f"it takes too much: it has run for {MAX_SECONDS:g} seconds"
        return f"it takes too much: the process that renders it ended with code {code}"

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._connection.close()
            self._running.kill()
            self._running.wait()
            self._running = None


_process = _Process()
