"""How text is cut before byte pairs are merged: the types that GGUF files name.

Each type is expressions that are applied one after another; every match and every stretch between
matches becomes a piece of its own, which the next expression cuts again. Source: llama.cpp,
llama-vocab.cpp (`llm_tokenizer_bpe`, and the names in `llama_vocab::impl::load`); where that adapts
an expression of the model's tokenizer.json to its own engine, the original that it quotes is used.
"""

from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}"
_START = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HAN = "[一-龥ࠀ-一가-퟿]+"
_HAN_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class PreTokenizer:
    """Expressions, whether a piece that is a token is taken whole, and whether BOS comes first."""

    expressions: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_DIGITS_FIRST = PreTokenizer((r"\p{N}", _GPT2))
_GROUPS = (
    (PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
     "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (PreTokenizer((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), ignore_merges=True), "minicpm5"),
    (PreTokenizer((_QWEN2,)),
     "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"),
    (PreTokenizer((_QWEN2.replace(r"\p{L}+|", r"[\p{L}\p{M}]+|", 1)
                   .replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),)), "qwen35"),
    (PreTokenizer((_QWEN2.removeprefix(f"{_CONTRACTIONS}|"),)), "ufakzeka"),
    (PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)), "laguna"),
    (PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer((_GPT4O,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (PreTokenizer((_GPT2,)),
     "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling"),
    (_DIGITS_FIRST,
     "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2"),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"),
    # what llama.cpp does with files that name no type
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")), "default"),
    (PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")), "deepseek-coder"),
    (PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3)),
     "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (PreTokenizer((_BLOOM,)), "poro-chat bloom gpt3-finnish"),
    (PreTokenizer((_BLOOM, r"\p{N}")), "viking"),
    (PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")), "superbpe"),
    (PreTokenizer((_BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
    (PreTokenizer((_SEED,)), "seed-coder"),
    (PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)), "tiny_aya cohere2moe"),
)  # fmt: skip
PRE_TOKENIZERS = {name: pre for pre, names in _GROUPS for name in names.split()}
