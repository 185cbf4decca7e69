"""Tokens to text piece by piece: bytes of one character apart, stop strings across pieces."""

import json

import pytest

from tilewright.ir.errors import ArtifactError, RequestError
from tilewright.runtime.engine.detokenizer import TextStream
from tilewright.runtime.engine.tokenizer import Tokenizer

TEXTS = [
    "hello",
    "naïve café",
    "日本語のテキスト",
    "👩‍👩‍👧 family",
    "a\ufffdb",
    "",
    "  two  spaces \n",
]


def stream(tokenizer, prompt=(), **options):
    return TextStream(tokenizer.decode, prompt, **options)


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_whole(tokenizer, text):
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert tokens == list(text.encode())
    pieces = stream(tokenizer, tokenizer.encode("prompt"))
    deltas = []
    for token in tokens:
        pieces.push(token)
        deltas.append(pieces.take())
        assert "\ufffd" not in deltas[-1] or "\ufffd" in text
    pieces.finish()
    deltas.append(pieces.take())
    assert "".join(deltas) == pieces.text == text == tokenizer.decode(tokens)


def test_a_character_comes_when_its_last_byte_does(tokenizer):
    pieces = stream(tokenizer)
    seen = []
    for token in "é日".encode():
        pieces.push(token)
        seen.append(pieces.take())
    assert seen == ["", "é", "", "", "日"]


def test_a_character_begun_in_the_prompt(tokenizer):
    first, second = "é".encode()
    pieces = stream(tokenizer, [first])
    pieces.push(second)
    pieces.push(ord("x"))
    assert pieces.take() == "éx"


def test_broken_bytes_are_shown_at_the_end(tokenizer):
    pieces = stream(tokenizer)
    for token in b"ab\xe6\x97":
        pieces.push(token)
    assert pieces.take() == "ab"
    pieces.finish()
    assert pieces.take() == "\ufffd"
    endless = stream(tokenizer)
    for _ in range(200):
        endless.push(0xFF)
    assert len(endless.text) > 150, "a run of broken bytes is not held back for ever"


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one two END three", ["END"], "one two "),
        ("one tENtwo EN", ["END"], "one tENtwo EN"),
        ("aab", ["ab"], "a"),
        ("abcabd", ["abd", "bc"], "a"),
        ("日本語", ["本"], "日"),
        ("xyz", ["xyz"], ""),
        ("aaa\n\nbbb", ["\n\n"], "aaa"),
    ],
)
def test_stop_strings(tokenizer, text, stop, expected):
    for include in (False, True):
        pieces = stream(tokenizer, stop=tuple(stop), include_stop=include)
        shown = ""
        for token in text.encode():
            pieces.push(token)
            shown += pieces.take()
            assert not any(s in shown for s in stop) or include
            if pieces.stopped_by:
                break
        pieces.finish()
        shown += pieces.take()
        tail = pieces.stopped_by or ""
        assert shown == pieces.text == expected + (tail if include else "")
        assert (pieces.stopped_by in stop) == (expected != text)


def test_what_may_begin_a_stop_string_is_held_back(tokenizer):
    pieces = stream(tokenizer, stop=("</end>",))
    seen = []
    for token in b"a</en b":
        pieces.push(token)
        seen.append(pieces.take())
    assert seen == ["a", "", "", "", "", "</en ", "b"]


def test_stop_strings_wait_for_min_tokens(tokenizer):
    pieces = stream(tokenizer, stop=("x",))
    pieces.push(ord("x"), can_stop=False)
    pieces.push(ord("y"), can_stop=False)
    assert pieces.stopped_by is None
    pieces.push(ord("x"))
    assert (pieces.text, pieces.stopped_by) == ("xy", "x")


@pytest.fixture(scope="module")
def sentencepiece():
    """A tokenizer as Llama 2's: spaces as in its pieces, bytes for what it has no piece of."""
    pieces = ["<unk>", "\u2581", "\u2581a", "\u2581b", "a", "b", "."]
    vocab = [[p, -float(i)] for i, p in enumerate(pieces)]
    vocab += [[f"<0x{b:02X}>", -100.0] for b in range(256)]
    config = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": True},
    }
    return Tokenizer(json.dumps(config))


@pytest.mark.parametrize("text", ["a b a", "a 日本語 b", "日本語日本語日本語", "b.  a"])
@pytest.mark.parametrize("prompt", ["", "a", "a 日本語日本", "日"])
@pytest.mark.parametrize("stop", [(), ("never",)])
def test_pieces_of_sentencepiece(sentencepiece, prompt, text, stop):
    """What follows a prompt keeps its leading space; without a prompt there is none to keep."""
    tokens = sentencepiece.encode(text)
    context = sentencepiece.encode(prompt)
    pieces = stream(sentencepiece, context, stop=stop)
    shown = []
    for token in tokens:
        pieces.push(token)
        shown.append(pieces.take())
    pieces.finish()
    shown.append(pieces.take())
    assert "".join(shown) == (" " if prompt else "") + text
    assert "\ufffd" not in "".join(shown)
    at_once = stream(sentencepiece, context, stop=stop)
    for token in tokens:
        at_once.push(token)
    at_once.finish()
    assert at_once.text == "".join(shown)


# ---- tokenizer and chat --------------------------------------------------------------------

CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}{{ eos_token }}"
    "{% endfor %}\n    {% if add_generation_prompt %}[assistant]{% endif %}"
)
USER = [{"role": "user", "content": " Hi "}]


def test_special_tokens(tokenizer):
    assert tokenizer.encode("ab") == [257, 97, 98]
    assert tokenizer.encode("a<eos>", add_special_tokens=False) == [97, 256]
    assert tokenizer.decode([97, 256]) == "a"
    assert tokenizer.decode([97, 256], skip_special_tokens=False) == "a<eos>"
    assert tokenizer.vocab_size == 258
    assert (tokenizer.token_id("<eos>"), tokenizer.token_id("nope")) == (256, None)


def test_chat_template(make_tokenizer):
    tokenizer = make_tokenizer(CHAT)
    assert tokenizer.render_chat(USER) == "<bos>[user]Hi<eos>[assistant]"
    assert tokenizer.render_chat(USER, add_generation_prompt=False) == "<bos>[user]Hi<eos>"
    assert make_tokenizer("{{ extra }}").render_chat(USER, extra=5) == "5"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}", "x"),
        ("{% generation %}a{% endgeneration %}", "a"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ strftime_now('%Y') | int > 2000 }}", "True"),
        ("{{ messages[0].content.split('b')[-1] }}", "c"),
    ],
)
def test_what_templates_of_models_use(make_tokenizer, template, expected):
    messages = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "d"}]
    assert make_tokenizer(template).render_chat(messages) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].content + 1 }}", "can only concatenate"),
        ("{% for i in range(999999999) %}{% endfor %}", "Range too big"),
    ],
)
def test_templates_that_refuse_or_misbehave(make_tokenizer, template, message):
    with pytest.raises(RequestError, match="the chat template refused the messages") as caught:
        make_tokenizer(template).render_chat(USER)
    assert message in str(caught.value)


def test_broken_templates_and_tokenizers(make_tokenizer):
    with pytest.raises(ArtifactError, match="the chat template cannot be read"):
        make_tokenizer("{% if %}").render_chat(USER)
    with pytest.raises(ArtifactError, match="the tokenizer cannot be read"):
        Tokenizer("{}")
    with pytest.raises(RequestError, match="has no chat template"):
        make_tokenizer().render_chat(USER)


@pytest.mark.parametrize("messages", [[], ["Hi"], [{"content": "Hi"}], [{"role": 1}]])
def test_messages_are_checked(make_tokenizer, messages):
    with pytest.raises(RequestError, match=r"the conversation is empty|is not a message"):
        make_tokenizer(CHAT).render_chat(messages)
