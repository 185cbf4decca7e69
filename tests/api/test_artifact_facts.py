"""facts.json of an artifact is looked at before it is believed."""

import copy
from pathlib import Path

import pytest

from tilewright.api.artifact_facts import check_facts, is_language_model
from tilewright.ir.errors import ArtifactError

GOOD = {
    "architecture": "LlamaForCausalLM",
    "source": None,
    "context_len": 1024,
    "eos_ids": [2],
    "num_layers": 2,
    "hidden_size": 64,
    "vocab_size": 320,
    "dtype": "bf16",
    "fallback_ops": 0,
    "special_tokens": {"bos_token": "<s>"},
    "chat_templates": {},
    "seconds": {"capture": 1.5, "compile": 2},
    "libraries": {"torch": "2.9", "triton": None},
    "passes": [
        {
            "pass": "dead-code",
            "changed": True,
            "ms": 0.1,
            "nodes": 3,
            "fired": {"rule": 1},
            "declined": [{"rule": "a", "reason": "b", "count": 1}],
            "notes": ["x"],
        }
    ],
    "notes": [],
}


def test_what_we_write_fits():
    check_facts(GOOD, Path("a"))
    check_facts({**GOOD, "more": 1}, Path("a"))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("context_len", "8", "context_len is '8'"),
        ("context_len", True, "context_len is True"),
        ("context_len", 0, "context_len is 0"),
        ("context_len", 1e9, r"context_len is 1000000000\.0"),
        ("eos_ids", 2, "eos_ids is 2"),
        ("eos_ids", [2, None], r"eos_ids\[1\] is None"),
        ("special_tokens", [], r"special_tokens is \[\]"),
        ("special_tokens", {"bos_token": 7}, r"special_tokens\.bos_token is 7"),
        ("passes", {"a": 1}, "passes is {'a': 1}"),
        ("passes", [{}], r"passes\[0\]\.pass is missing"),
        ("dtype", "x" * 10**6, None),
        ("dtype", ["x" * 10**6], r"dtype is \['x{90,}\.\.\."),
    ],
)
def test_what_does_not_fit_is_named(name, value, says):
    facts = {**copy.deepcopy(GOOD), name: value}
    if says is None:
        check_facts(facts, Path("a"))
        return
    with pytest.raises(ArtifactError, match=says):
        check_facts(facts, Path("a"))


def test_all_is_named_at_once():
    facts = {**GOOD, "eos_ids": None, "num_layers": "2"}
    del facts["vocab_size"]
    with pytest.raises(ArtifactError) as caught:
        check_facts(facts, Path("a"))
    for part in ("vocab_size is missing", "eos_ids is None", "num_layers is '2'"):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["context_len", "architecture"])
def test_a_language_model_is_known_by_what_is_left(name):
    assert is_language_model({key: value for key, value in GOOD.items() if key != name})
    assert not is_language_model({"fallback_ops": 0})
