"""Folders as they are found: ties under any name, end tokens in any file, code that never runs."""

import json
import logging
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tilewright.frontend.checkpoint import open_checkpoint
from tilewright.ir.errors import CheckpointError

from ..errors.conftest import byte_tokenizer
from ..models import tiny


def folder_of(path, variant="llama-tied", change=None, **config):
    """A folder of a tiny model; `change` edits its weights in place."""
    tiny.make(variant).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    state = load_file(path / "model.safetensors")
    if change is not None:
        change(state)
        save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    edit(path / "config.json", **config)
    return path


def edit(file, **changes):
    old = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**old, **changes}))


HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize("variant", ["llama-tied", "qwen3", "gemma2"])
@pytest.mark.parametrize("names", [[HEAD], [TABLE], [HEAD, TABLE], ["embed_tokens.weight"]])
def test_a_tied_weight_under_any_of_its_names(tmp_path, variant, names):
    def rename(state):
        table = state.pop(TABLE)
        state.update({name: table.clone() for name in names})

    folder = folder_of(tmp_path, variant, rename)
    expected = dict(tiny.make(variant).named_parameters())[TABLE].detach().numpy()
    arrays = open_checkpoint(folder).arrays
    for name in (HEAD, TABLE):
        np.testing.assert_array_equal(arrays[name].load(), expected)


def test_tied_weights_that_differ_are_refused(tmp_path):
    folder = folder_of(tmp_path, change=lambda s: s.update({HEAD: s[TABLE] + 1}))
    with pytest.raises(CheckpointError, match=f"ties '{TABLE}' and '{HEAD}', and the two differ"):
        open_checkpoint(folder)
    edit(folder / "config.json", tie_word_embeddings=False)
    arrays = open_checkpoint(folder).arrays
    np.testing.assert_array_equal(arrays[HEAD].load(), arrays[TABLE].load() + 1)


def test_a_head_of_its_own_must_be_there(tmp_path):
    folder = folder_of(tmp_path, "llama", lambda s: s.pop(HEAD))
    with pytest.raises(CheckpointError, match=r"1 are missing: lm_head\.weight"):
        open_checkpoint(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8, torch.bool])
def test_whole_numbers_are_no_weights(tmp_path, dtype):
    name = "model.layers.1.mlp.up_proj.weight"
    folder = folder_of(tmp_path, change=lambda s: s.update({name: s[name].to(dtype)}))
    with pytest.raises(CheckpointError, match=r"do not fit the model(.|\n)*up_proj"):
        open_checkpoint(folder)


def prefixed(prefix):
    def change(state):
        for name in list(state):
            state[prefix + name] = state.pop(name)

    return change


@pytest.mark.parametrize("prefix", ["language_model.", "transformer.", "_orig_mod.module."])
@pytest.mark.parametrize("variant", ["llama", "llama-tied"])
def test_a_prefix_of_all_names(tmp_path, prefix, variant):
    checkpoint = open_checkpoint(folder_of(tmp_path, variant, prefixed(prefix)))
    for name, parameter in tiny.make(variant).named_parameters():
        found = checkpoint.arrays[name].load()
        np.testing.assert_array_equal(found, parameter.detach().numpy())


def test_what_the_model_does_not_use_is_told_once(tmp_path, caplog):
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
        "model.layers.0.self_attn.q_proj.bias": torch.zeros(64),
        "vision.weight": torch.ones(3),
    }
    folder = folder_of(tmp_path, change=lambda s: s.update(extra))
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        open_checkpoint(folder)
    (said,) = caplog.messages  # inv_freq is computed, whoever stored it
    assert said.endswith("not used: 'model.layers.0.self_attn.q_proj.bias', 'vision.weight'")


@pytest.mark.parametrize("name", ["self_attn.q_proj.bias", "mlp.down_proj.bias"])
def test_a_bias_that_the_config_leaves_out_is_refused(tmp_path, name):
    key = f"model.layers.1.{name}"
    folder = folder_of(tmp_path, change=lambda s: s.update({key: torch.ones(64)}))
    with pytest.raises(CheckpointError, match=f"1 stored weights have no place(.|\\n)*{key}"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, {2}),
        ([2, 7], None, {2, 7}),
        (2, 7, {2, 7}),
        (None, [9, 7], {9, 7}),
        ([3], [3, 3, 4], {3, 4}),
        (None, None, set()),
    ],
)
def test_every_end_token_counts(tmp_path, config, generation, expected):
    folder = folder_of(tmp_path, eos_token_id=config)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.eos_ids) == expected
    edit(folder / "tokenizer_config.json", eos_token="q")
    loaded = checkpoint.tokenizer.load()
    assert loaded.end_ids == (loaded.tokenizer.token_to_id("q"),)
    assert loaded.stored()["facts"]["eos_ids"] == list(loaded.end_ids)


def test_all_special_tokens_and_templates_are_read(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    extra = {"sep_token": "<pad>", "extra_special_tokens": {"turn_token": "</s>"}}
    templates = [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]
    edit(folder / "tokenizer_config.json", **extra, chat_template=templates)
    loaded = open_checkpoint(folder).tokenizer.load()
    expected = {"bos_token": "<s>", "sep_token": "<pad>", "turn_token": "</s>"}
    assert expected.items() <= loaded.special_tokens.items()
    assert loaded.stored()["chat_template"] == "d"
    assert loaded.stored()["facts"]["chat_templates"] == {"rag": "r"}
    # files go before what tokenizer_config.json says
    (folder / "chat_template.jinja").write_text("file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    loaded = open_checkpoint(folder).tokenizer.load()
    assert loaded.chat_template == {"default": "file", "tool_use": "tools"}


CODE = "open({mark!r}, 'w').close()\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
CODE += "from transformers import PreTrainedTokenizerFast\n"
CODE += "class Own(LlamaConfig):\n    model_type = 'own'\n"
OPEN = """
import sys
from tilewright.frontend.checkpoint import open_checkpoint
from tilewright.ir.errors import TilewrightError
for folder in sys.argv[1:]:
    try:
        open_checkpoint(folder).tokenizer.load()
    except TilewrightError as error:
        print("refused:", error)
    else:
        print("read")
"""
OWN = {
    "config": ("config.json", {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}, True),
    "model": ("config.json", {"auto_map": {"AutoModelForCausalLM": "own.Own"}}, False),
    "known config": ("config.json", {"auto_map": {"AutoConfig": "own.Own"}}, False),
    "tokenizer": (
        "tokenizer_config.json",
        {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}},
        None,
    ),
    "generation": ("generation_config.json", {"auto_map": {"AutoConfig": "own.Own"}}, False),
    "processor": ("processor_config.json", {"auto_map": {"AutoProcessor": "own.Own"}}, False),
}


def test_code_of_a_checkpoint_never_runs_nor_is_asked_about(tmp_path):
    """With "y" on standard input, wherever auto_map stands. One process: imports take long."""
    marks, folders = [], []
    for name, (file, changes, _) in OWN.items():
        folder = folder_of(tmp_path / name.replace(" ", "_"))
        mark = tmp_path / f"{folder.name} ran"
        (folder / "own.py").write_text(CODE.format(mark=str(mark)))
        edit(folder / file, **changes)
        marks.append(mark)
        folders.append(str(folder))
    done = subprocess.run(
        [sys.executable, "-c", OPEN, *folders], input="y\n" * 50, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [mark.name for mark in marks if mark.exists()] == []
    assert "[y/N]" not in done.stdout + done.stderr
    ends = [line for line in done.stdout.splitlines() if line.startswith(("refused", "read"))]
    for (_, _, is_refused), end in zip(OWN.values(), ends, strict=True):
        if is_refused is not None:
            assert end.startswith("refused" if is_refused else "read"), end
    assert "the model's code is part of the checkpoint" in done.stdout
