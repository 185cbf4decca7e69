"""The progress line: what it draws, that it ticks, and that it is silent without a terminal."""

import io
import re
import time

from tilewright.cli.progress import BAR, Line, progress


def drawn(stream: io.StringIO) -> list[str]:
    """What the line showed, one item a redraw."""
    return stream.getvalue().split("\r\x1b[2K")[1:]


def test_it_shows_how_far_the_work_is_and_is_gone_afterwards():
    stream = io.StringIO()
    line = Line(stream, tick=60)
    line.show("capture", 0, 1)
    line.show("compile", 7, 14)
    line.close()
    first, second, last = drawn(stream)
    assert re.fullmatch(rf"capture  {' ' * BAR} 0 s", first)
    assert re.fullmatch(rf"compile  ━{{{BAR // 2}}} {{{BAR // 2}}} 7/14  0 s", second)
    assert last == ""


def test_it_goes_on_while_nothing_is_reported():
    stream = io.StringIO()
    line = Line(stream, tick=0.01)
    line.show("capture", 0, 1)
    deadline = time.monotonic() + 10
    while len(drawn(stream)) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    line.close()
    count = len(drawn(stream))
    assert count >= 5
    time.sleep(0.05)
    assert len(drawn(stream)) == count


def test_it_is_silent_without_a_terminal(capsys):
    with progress() as show:
        show("capture", 0, 1)
    assert capsys.readouterr() == ("", "")
