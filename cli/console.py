"""How a verb talks: errors in four parts to stderr, results to stdout, JSON on request."""

import functools
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer

from ..ir.errors import OptionError, TilewrightError, shortened
from . import interruption

_debug = False
MAX_LINES = 60  # of an error that is printed without --debug


def set_debug(on: bool) -> None:
    """Show tracebacks under errors for the rest of this process."""
    global _debug
    _debug = on


def verb(function: Callable) -> Callable:
    """Wrap a command so that whatever ends it early is one screen and an exit code.

    Our own errors exit with 1 and no traceback; Ctrl-C with 130 and one line; a reader that closed
    the pipe with 141. Anything else is a bug of ours, and says so.
    """

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        try:
            function(*args, **kwargs)
            sys.stdout.flush()  # a closed pipe shows here and not at exit
        except TilewrightError as error:
            _fail(f"{_red(error.kind)}: {_one_screen(str(error))}", 1)
        except KeyboardInterrupt:
            _fail_interrupted()
        except BrokenPipeError:
            # Python flushes stdout once more at exit; give it somewhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise  # usage: typer prints it and exits with 2
        except OSError as error:
            # a file that cannot be written, a full disk: the system's own words say what
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{_red(type(error).__name__)}: {where}{error.strerror or error}", 1)
        except Exception as error:  # noqa: BLE001  (the last resort of a command line)
            hint = (
                "" if _debug else "\n  run it again with --debug to see where, and please report it"
            )
            text = _one_screen(shortened(f"{type(error).__name__}: {error}"))
            _fail(f"{_red('InternalError')}: {text}\n  this is a bug in Tilewright{hint}", 1)

    return wrapped


def _fail_interrupted() -> None:
    if _debug:
        traceback.print_exc()
    sys.stdout.flush()
    interruption.say()
    raise typer.Exit(interruption.CODE) from None


def _fail(text: str, code: int) -> None:
    if interruption.came():  # and something else than KeyboardInterrupt came of it
        _fail_interrupted()
    if _debug:
        traceback.print_exc()
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
    raise typer.Exit(code) from None


def _one_screen(text: str) -> str:
    """A message without its middle when it has too many lines."""
    if _debug:
        return text
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        left_out = len(lines) - MAX_LINES
        half = MAX_LINES // 2
        lines[half:-half] = [f"  ... ({left_out} lines left out, --debug shows them)"]
    return "\n".join(lines)


def _red(text: str) -> str:
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        return f"\x1b[1;31m{text}\x1b[0m"
    return text


def labelled(rows: Sequence[tuple[str, str]]) -> str:
    """Lines of `label  value`, the values below one another."""
    width = max(len(label) for label, _ in rows) + 2
    return "\n".join(f"{label:<{width}}{value}".rstrip() for label, value in rows)


def print_json(data: object) -> None:
    """One JSON document on stdout, in ASCII where the stream takes no other text."""
    takes_all = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(data, indent=2, ensure_ascii=not takes_all, default=str))


def prepare_streams() -> None:
    """Let the output take any text: what its encoding lacks is written as an escape.

    A stream that was closed before the process began becomes one that nobody reads.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def read_input() -> str:
    """All of standard input. OptionError when it is not text in the stream's encoding."""
    with decoded("standard input"):
        return sys.stdin.read()


@contextmanager
def decoded(what: str) -> Iterator[None]:
    """OptionError, naming `what`, where bytes are read that are no text."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{what} is not text",
            facts=f"byte {error.start} is not {error.encoding.upper()}",
            fix="give text, in UTF-8",
        ) from None


def human_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'"""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024 or unit == "TiB":
            break
    return f"{count:.1f} {unit}"
