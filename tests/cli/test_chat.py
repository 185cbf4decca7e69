"""A conversation: what counts as a message, as a command, and as the end."""

import io
import sys
from contextlib import nullcontext

import pytest

from tilewright.cli import chat
from tilewright.ir.errors import OptionError, RequestError
from tilewright.runtime.engine.sampling_params import SamplingParams


class Talker:
    """Answers with what it was last told; notes what it was asked."""

    def __init__(self):
        self.asked = []

    def stream_chat(self, messages, params, progress):
        self.asked.append([message["content"] for message in messages])
        progress("prefill", 1, 1)
        return Pieces([f"<{messages[-1]['content']}", ">"])


class Pieces(nullcontext):
    def __init__(self, pieces):
        super().__init__()
        self._pieces = iter(pieces)

    def __iter__(self):
        return self._pieces


@pytest.fixture
def say(monkeypatch, capsys):
    """say(text) -> (what the model was asked, stdout, stderr) of a conversation."""

    def converse(text, system=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        talker = Talker()
        chat.converse(talker, SamplingParams(), system)
        return talker.asked, *capsys.readouterr()

    return converse


def test_the_conversation_grows_until_it_is_reset(say):
    asked, out, err = say("one\n\ntwo\n/reset\nthree\n/exit\nnever\n", system="Be kind.")
    assert asked == [
        ["Be kind.", "one"],
        ["Be kind.", "one", "<one>", "two"],
        ["Be kind.", "three"],
    ]
    assert (out, err) == ("<one>\n<two>\n<three>\n", "")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("a \\\nb\\\n c", "a \nb\n c"),
        ('"""one\n\n two"""', "one\n\n two"),
        ('"""\nif x:\n    y\n"""', "if x:\n    y"),
        ('"""whole"""', "whole"),
        ('"""never closed\nend', "never closed\nend"),
        ("ends in the air \\", "ends in the air"),
        ("/etc/passwd is a file", "/etc/passwd is a file"),
        ("/exit now", "/exit now"),
    ],
)
def test_messages_of_several_lines(say, typed, said):
    asked, _, _ = say(typed)
    assert asked == [[said]]


@pytest.mark.parametrize("typed", ["/rest", "/", "/clear"])
def test_an_unknown_command_is_named_with_those_that_are(say, typed):
    asked, _, err = say(f"{typed}\n/quit\n")
    assert asked == []
    assert err == f"no command {typed}: there are /reset, /help, /exit, /quit\n"


def test_ctrl_c_clears_the_line_on_a_terminal_and_ends_elsewhere(monkeypatch, capsys):
    lines = iter(["half a \\", KeyboardInterrupt, "whole", EOFError])

    def typed(prompt):
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    talker = Talker()
    chat.converse(talker, SamplingParams())
    assert talker.asked == [["whole"]]
    lines = iter([KeyboardInterrupt])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(KeyboardInterrupt):
        chat.converse(talker, SamplingParams())


def test_ctrl_c_stops_an_answer_and_what_was_said_counts(monkeypatch, capsys):
    def broken():
        yield "half"
        raise KeyboardInterrupt

    monkeypatch.setattr(Talker, "stream_chat", lambda *_, **__: Pieces(broken()))
    assert chat.answer_to(Talker(), [], SamplingParams()) == "half"
    assert capsys.readouterr().out == "half ...\n"


def test_a_refused_message_ends_no_conversation_on_a_terminal(monkeypatch, capsys):
    def refuse(*_, **__):
        raise RequestError("the prompt is too long")

    monkeypatch.setattr(Talker, "stream_chat", refuse)
    for is_terminal in (True, False):
        monkeypatch.setattr(sys, "stdin", io.StringIO("abc\n"))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: is_terminal, raising=False)  # noqa: B023
        end = nullcontext() if is_terminal else pytest.raises(RequestError, match="too long")
        monkeypatch.setattr("builtins.input", iter_input(["abc"]))
        with end:
            chat.converse(Talker(), SamplingParams())
    assert "RequestError: the prompt is too long\n/reset begins anew" in capsys.readouterr().err


def iter_input(lines):
    left = iter(lines)

    def typed(prompt):
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return typed


def test_a_line_that_is_no_text(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(OptionError, match="a line of standard input is not text"):
        chat.read_message()
