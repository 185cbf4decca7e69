"""Tokenizers in GGUF files: every flag is honoured or refused; texts as the libraries cut them."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from tilewright.frontend.gguf import read_gguf
from tilewright.frontend.gguf_pre_tokenizers import PRE_TOKENIZERS
from tilewright.frontend.gguf_tokenizer import end_ids, from_gguf
from tilewright.ir.errors import CheckpointError

from .gguf_writer import ARCHITECTURE, gguf

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["o n", "on e", "Ġ t", "w o", "1 2", "12 3", "Ċ Ċ"]
PIECES = [merge.replace(" ", "") for merge in MERGES]
BYTE_TOKENS = [*BYTES, *PIECES, "onetwo", "<bos>", "<end>", "<think>"]
NUMBER = {text: i for i, text in enumerate(BYTE_TOKENS)}
TYPES = [1] * (len(BYTE_TOKENS) - 3) + [3, 3, 4]


def byte_level(**more):
    return {
        "model": ("str", "gpt2"),
        "pre": ("str", "qwen2"),
        "tokens": ("array", ("str", BYTE_TOKENS)),
        "token_type": ("array", ("i32", TYPES)),
        "merges": ("array", ("str", MERGES)),
        "bos_token_id": ("u32", NUMBER["<bos>"]),
        "eos_token_id": ("u32", NUMBER["<end>"]),
        **more,
    }


LETTERS = ["\u2581", "a", "b", "c", "\u2581a", "ab", "bc", "\u2581ab"]
SPM_TOKENS = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "<0xA9>", *LETTERS, "<tool>", "  "]
SPM_SCORES = [0.0] * 6 + [-9.0, -9.0, -9.0, -9.0, -3.0, -2.0, -1.0, -4.0, 0.0, 0.0]
SPM_TYPES = [2, 3, 3, 6, 6, 6] + [1] * len(LETTERS) + [3, 4]


def sentencepiece(**more):
    return {
        "model": ("str", "llama"),
        "tokens": ("array", ("str", SPM_TOKENS)),
        "scores": ("array", ("f32", SPM_SCORES)),
        "token_type": ("array", ("i32", SPM_TYPES)),
        **more,
    }


def opened(tmp_path, facts, **general):
    entries = [ARCHITECTURE, *((f"general.{k}", *v) for k, v in general.items())]
    for name, value in facts.items():
        key = name if name.startswith("tokenizer.") else f"tokenizer.ggml.{name}"
        if value is not None:
            entries.append((key, *value))
    path = tmp_path / "t.gguf"
    path.write_bytes(gguf(entries, []))
    return read_gguf(path)


def tokens_of(file, text):
    tokenizer = from_gguf(file).load().tokenizer
    return [tokenizer.id_to_token(i) for i in tokenizer.encode(text).ids]


# ---- byte-level --------------------------------------------------------------------------------


def reference(expressions, ignore_merges=False):
    """The library's own tokenizer over the same vocabulary."""
    model = models.BPE(
        vocab=NUMBER,
        merges=[tuple(m.split(" ")) for m in MERGES],
        ignore_merges=ignore_merges,
    )
    tokenizer = Tokenizer(model)
    cut = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cut)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEXT = st.text(st.sampled_from("one two123's\n\t  .,!Ré你🙂'LLab_-"), max_size=24)


@pytest.mark.parametrize(
    ("pre", "expressions"),
    [("gpt-2", ()), ("llama-bpe", (LLAMA3,)), ("qwen2", (QWEN2,)), ("dbrx", (LLAMA3,))],
)
def test_text_is_cut_as_the_type_says(tmp_path, pre, expressions):
    ours = from_gguf(
        opened(tmp_path, byte_level(pre=("str", pre), add_bos_token=("bool", False)))
    ).load()
    theirs = reference(expressions, ignore_merges=pre == "llama-bpe")

    @settings(derandomize=True, deadline=None, max_examples=60,
              suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
    @given(TEXT)
    def same(text):
        encoded = ours.tokenizer.encode(text).ids
        assert encoded == theirs.encode(text).ids
        assert ours.tokenizer.decode(encoded) == text

    same()


@pytest.mark.parametrize(
    ("pre", "text", "cut"),
    [
        ("deepseek-coder", "\tone 12\n", ["ĉone", "Ġ", "1", "2", "Ċ"]),
        ("smollm", "a 12 b", ["a", "Ġ", "1", "2", "Ġb"]),
        ("tekken", "HelloWORLD 12", ["Hello", "WORLD", "Ġ", "1", "2"]),
        ("gpt-4o", "It's 1234", ["It's", "Ġ", "123", "4"]),
        ("llama3", "It's 1234", ["It", "'s", "Ġ", "123", "4"]),
        ("falcon", "a,1234", ["a", ",", "123", "4"]),
        ("default", "a,12345", ["a", ",", "123", "45"]),
        ("deepseek-v3", "12345 one", ["123", "45", "Ġone"]),
        ("viking", "one 12", ["one", "Ġ", "1", "2"]),
        ("superbpe", "12345", ["12", "345"]),
        ("bailingmoe", "'S\n\n", ["'S", "ĊĊ"]),
        ("seed-coder", "12!\n", ["1", "2", "!", "Ċ"]),
        ("ufakzeka", "It's", ["It", "'s"]),
        ("minicpm5", "1234", ["123", "4"]),
        ("laguna", "a \nb", ["a", "Ġ", "Ċ", "b"]),
    ],
)
def test_pieces(tmp_path, pre, text, cut):
    """What llama.cpp's expressions make of a text, worked out by hand."""
    loaded = from_gguf(opened(tmp_path, byte_level(pre=("str", pre)))).load()
    pieces = [piece for piece, _ in loaded.tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == cut


def test_every_type_loses_no_character():
    for name, pre in PRE_TOKENIZERS.items():
        cuts = [pre_tokenizers.Split(Regex(e), "isolated") for e in pre.expressions]
        for text in ("It's 12,345  \n\n\tone… été 你好한 🙂", " ", "\r\n x"):
            pieces = pre_tokenizers.Sequence(cuts).pre_tokenize_str(text)
            assert "".join(piece for piece, _ in pieces) == text, name


def test_whole_words_before_merges(tmp_path):
    """Types of Llama 3 and Tekken take a piece that is a token whole; others merge."""
    for pre, expected in (("llama-bpe", ["<bos>", "onetwo"]), ("tekken", ["<bos>", "onetwo"]),
                          ("qwen2", ["one", "t", "wo"])):  # fmt: skip
        assert tokens_of(opened(tmp_path, byte_level(pre=("str", pre))), "onetwo") == expected


def test_tokens_around_a_text(tmp_path):
    on, off = ("bool", True), ("bool", False)
    both = byte_level(add_bos_token=on, add_eos_token=on)
    assert tokens_of(opened(tmp_path, both), "one") == ["<bos>", "one", "<end>"]
    assert tokens_of(opened(tmp_path, byte_level(pre=("str", "llama3"))), "") == ["<bos>"]
    none = byte_level(pre=("str", "llama3"), add_bos_token=off)
    assert tokens_of(opened(tmp_path, none), "one") == ["one"]
    assert tokens_of(opened(tmp_path, byte_level()), "one") == ["one"]
    spm = sentencepiece(add_eos_token=on)  # SentencePiece: BOS 1, EOS 2 where none is stated
    assert tokens_of(opened(tmp_path, spm), "a") == ["<s>", "\u2581a", "</s>"]


def test_control_and_user_defined_tokens(tmp_path):
    tokenizer = from_gguf(opened(tmp_path, byte_level())).load().tokenizer
    encoded = tokenizer.encode("one<think>one<end>")
    assert encoded.tokens == ["one", "<think>", "one", "<end>"]
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == "one<think>one"


# ---- SentencePiece -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "prefixed", "bare"),
    [
        ("ab", ["\u2581ab"], ["ab"]),
        ("abc", ["\u2581a", "bc"], ["a", "bc"]),
        (" a", ["\u2581", "\u2581a"], ["\u2581a"]),
        ("a<tool>a", ["\u2581a", "<tool>", "\u2581a"], ["a", "<tool>", "a"]),
        ("a  b", ["\u2581a", "  ", "\u2581", "b"], ["a", "  ", "b"]),
        ("é\n", ["\u2581", "<0xC3>", "<0xA9>", "<0x0A>"], ["<0xC3>", "<0xA9>", "<0x0A>"]),
        ("", [], []),
    ],
)
def test_sentencepiece(tmp_path, text, prefixed, bare):
    """The best scored pair first, a space before each stretch of text unless the file says not."""
    loaded = from_gguf(opened(tmp_path, sentencepiece())).load().tokenizer
    assert loaded.encode(text).tokens == ["<s>", *prefixed]
    assert loaded.decode(loaded.encode(text).ids[1:]) == text.replace("<tool>", " ").replace(
        "  ", "   "
    )
    without = sentencepiece(add_space_prefix=("bool", False))
    loaded = from_gguf(opened(tmp_path, without)).load().tokenizer
    assert loaded.encode(text).tokens == ["<s>", *bare]
    assert loaded.decode(loaded.encode(text).ids[1:]) == text.replace("<tool>", "")


def test_white_space_after_special_tokens_of_phi3(tmp_path):
    facts = sentencepiece(add_space_prefix=("bool", False))
    assert tokens_of(opened(tmp_path, facts, name=("str", "Phi-3 mini")), "<tool>\na")[1:] == [
        "<tool>",
        "a",
    ]
    assert tokens_of(opened(tmp_path, facts, name=("str", "Llama")), "<tool>\na")[1:] == [
        "<tool>",
        "<0x0A>",
        "a",
    ]


# ---- what ends a text --------------------------------------------------------------------------


def test_every_token_that_ends_a_text(tmp_path):
    think, end, bos = NUMBER["<think>"], NUMBER["<end>"], NUMBER["<bos>"]
    assert end_ids(opened(tmp_path, byte_level())) == (end,)
    turn = byte_level(eot_token_id=("u32", think))
    assert end_ids(opened(tmp_path, turn)) == (end, think)
    loaded = from_gguf(opened(tmp_path, turn)).load().tokenizer  # it is no text
    assert loaded.decode([think], skip_special_tokens=True) == ""
    several = byte_level(eos_token_ids=("array", ("u32", [end, bos])), eom_token_id=("u32", think))
    assert end_ids(opened(tmp_path, several)) == (end, think, bos)
    assert end_ids(opened(tmp_path, sentencepiece())) == (2,)


@pytest.mark.parametrize(
    ("text", "kind", "ends"),
    [
        ("<|im_end|>", 3, True),
        ("<end_of_turn>", 1, True),
        ("<|eot_id|>", 4, True),
        ("</s>", 3, True),
        ("</s>", 4, False),
        ("<|other|>", 3, False),
    ],
)
def test_ends_by_their_spelling(tmp_path, text, kind, ends):
    tokens = ("array", ("str", [*BYTE_TOKENS[:-1], text]))
    types = ("array", ("i32", [*TYPES[:-1], kind]))
    file = opened(tmp_path, byte_level(tokens=tokens, token_type=types))
    assert (len(BYTE_TOKENS) - 1 in end_ids(file)) == ends


# ---- templates and refusals --------------------------------------------------------------------


def test_chat_templates(tmp_path):
    one = byte_level(**{"tokenizer.chat_template": ("str", "A")})
    assert from_gguf(opened(tmp_path, one)).load().chat_template == "A"
    assert from_gguf(opened(tmp_path, byte_level())).load().chat_template is None
    names = {
        "tokenizer.chat_templates": ("array", ("str", ["tool_use"])),
        "tokenizer.chat_template.tool_use": ("str", "B"),
    }
    loaded = from_gguf(opened(tmp_path, one | names)).load()
    assert loaded.chat_template == {"default": "A", "tool_use": "B"}
    assert loaded.special_tokens == {"bos_token": "<bos>", "eos_token": "<end>"}


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"pre": ("str", "odd-one")}, r"pre is 'odd-one', a pre-tokenizer that is not known"),
        ({"pre": ("array", ("str", ["x"]))}, r"pre is \['x'\], a pre-tokenizer"),
        (
            {"tokens": ("array", ("str", [])), "token_type": ("array", ("i32", []))},
            r"tokens is 0 values(.|\n)*token_type is 0 values",
        ),
        ({"model": ("str", "t5")}, r"model is 't5', 'gpt2' and 'llama' are read"),
        ({"mystery": ("bool", True)}, r"ggml\.mystery is True: a key that is not known"),
        ({"tokenizer.odd": ("str", "x")}, r"tokenizer\.odd is 'x': a key that is not known"),
        ({"remove_extra_whitespaces": ("bool", True)}, r"remove_extra_whitespaces is True, only"),
        ({"precompiled_charsmap": ("array", ("u8", [1] * 9))}, r"charsmap is 9 values, only \[\]"),
        ({"suppress_tokens": ("array", ("i32", [3]))}, r"suppress_tokens is \[3\], only \[\]"),
        ({"add_sep_token": ("bool", True)}, r"add_sep_token is True, only False"),
        ({"add_space_prefix": ("bool", True)}, r"add_space_prefix is True, of byte-level"),
        ({"add_bos_token": ("u32", 1)}, r"add_bos_token is 1, not true or false"),
        ({"add_bos_token": ("bool", True), "bos_token_id": None}, r"there is no bos_token_id"),
        ({"eot_token_id": ("u32", 999)}, r"eot_token_id is 999, there are \d+ tokens"),
        ({"eos_token_ids": ("array", ("u32", [999]))}, r"eos_token_ids has 999"),
        ({"merges": None}, r"merges is missing"),
        ({"merges": ("array", ("str", ["o zz"]))}, r"cannot be read(.|\n)*zz"),
        ({"tokens": ("array", ("str", ["a", "a"])), "token_type": None}, r"'a' occurs twice"),
        ({"tokens": ("str", "a")}, r"tokens is 'a'"),
        ({"token_type": ("array", ("i32", [1]))}, r"token_type is 1 values, and there must be one"),
        (
            {"token_type": ("array", ("i32", [1] * 999))},
            r"token_type is 999 values, and there must",
        ),
        (
            {"token_type": ("array", ("i32", [0] * len(BYTE_TOKENS)))},
            r"type has 0, types are 1 to 6",
        ),
        ({"tokenizer.chat_template": ("u32", 1)}, r"chat template 'default' is no text"),
    ],
)
def test_what_is_stated_and_not_read_is_refused_by_name(tmp_path, facts, message):
    with pytest.raises(CheckpointError, match=message):
        from_gguf(opened(tmp_path, byte_level(**facts))).load()


def test_sentencepiece_needs_scores_and_bytes_that_are_bytes(tmp_path):
    for scores in (None, ("array", ("f32", [float("nan"), *SPM_SCORES[1:]]))):
        with pytest.raises(CheckpointError, match="scores is missing or no numbers"):
            from_gguf(opened(tmp_path, sentencepiece(scores=scores))).load()
    types = ("array", ("i32", [2, 6, *SPM_TYPES[2:]]))
    with pytest.raises(CheckpointError, match="token 1 is marked as a byte, and is '<s>'"):
        from_gguf(opened(tmp_path, sentencepiece(token_type=types))).load()


def test_all_problems_at_once(tmp_path):
    facts = byte_level(pre=("str", "odd"), add_sep_token=("bool", True), x=("u32", 1))
    with pytest.raises(
        CheckpointError, match=r"add_sep_token(.|\n)*ggml\.x is 1(.|\n)*pre is 'odd'"
    ):
        from_gguf(opened(tmp_path, facts)).load()
