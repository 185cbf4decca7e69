"""A model's life: built with progress, without a tokenizer, found again, forked, closed."""

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tilewright import LLM, OptionError, RequestError, SamplingParams
from tilewright.api import build_model, cache
from tilewright.ir.progress import UNITS, unwatched
from tilewright.runtime import artifact

from ..models import tiny

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
PROMPT = [5, 9, 77, 3]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(folder without a tokenizer, what a first LLM of it reported and gave)."""
    folder = tmp_path_factory.mktemp("life")
    module = tiny.make("llama", seed=3)
    module.save_pretrained(folder)
    reports = []
    with LLM(folder, target="cpu", progress=lambda *report: reports.append(report)) as llm:
        tokens = llm.generate({"prompt_token_ids": PROMPT}, GREEDY)[0].outputs[0].token_ids
    return folder, module, reports, tokens


def test_each_stage_is_reported_to_its_end(built):
    _, _, reports, _ = built
    stages = list(dict.fromkeys(stage for stage, _, _ in reports))
    assert stages == [
        *("start", "capture", "import", "optimize", "lower", "compile", "pack", "load", "place"),
    ]
    assert set(stages) <= set(UNITS)
    last = {stage: (done, of) for stage, done, of in reports}
    assert last["capture"] == (2, 2)  # layers
    for stage in ("compile", "pack", "load", "place"):
        assert last[stage][0] == last[stage][1] > 1
    for stage in stages:
        counts = [done for name, done, _ in reports if name == stage]
        assert counts == sorted(counts)


def test_a_checkpoint_without_tokenizer_takes_token_numbers(built):
    folder, module, _, tokens = built
    ids = torch.tensor([PROMPT])
    expected = module.generate(ids, max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert list(tokens) == expected[0, len(PROMPT) :].tolist()
    with LLM(folder, target="cpu") as llm:
        assert llm.was_cached
        (result,) = llm.generate([PROMPT], GREEDY)
        assert result.outputs[0].token_ids == tokens
        assert (result.prompt, result.outputs[0].text) == (None, "")
        with pytest.raises(RequestError, match="pass lists of token numbers"):
            llm.generate("text")


def test_parent_and_forked_children_answer_the_same(built):
    script = Path(__file__).with_name("forking.py")
    # newer Pythons warn of any fork beside a thread
    command = [sys.executable, "-W", "ignore", str(script), str(built[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert list(results) == ["idle", "busy", "open", "closed", "fork", "spawn", "forkserver"]
    assert len(results["busy"]) > 6, "no thread was generating"
    for name, found in results.items():
        assert all(found), (name, found, done.stderr)


def test_a_model_is_not_copied_by_accident(built):
    with LLM(built[0], target="cpu", kv_cache_bytes=1 << 20) as llm:
        for use in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(RequestError, match="a model cannot be copied or pickled"):
                use(llm)


def test_weights_in_the_cache_are_hashed_once(built, monkeypatch):
    source = str(built[0].resolve())
    kept = next(p for p in cache.entries() if artifact.read_facts(p)[1]["source"] == source)
    copied = shutil.copytree(kept, cache.path_of("copied"))
    weights = copied / artifact.WEIGHTS
    stat, read, digest = weights.stat(), [], artifact.digest
    monkeypatch.setattr(artifact, "HASH_CHUNK", stat.st_size)  # as large files are
    monkeypatch.setattr(artifact, "digest", lambda x, *a: (read.append(len(x)), digest(x, *a))[1])
    for _ in range(2):
        assert build_model.from_cache(copied, unwatched) is not None
    assert read.count(stat.st_size) == 1
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert build_model.from_cache(copied, unwatched) is None
    assert read.count(stat.st_size) == 2
    assert not copied.exists(), "what is damaged is built again"


def test_a_closed_model_says_so(built):
    llm = LLM(built[0], target="cpu", kv_cache_bytes=1 << 20)
    assert repr(llm).startswith("<LLM LlamaForCausalLM, bf16 on cpu: weights ")
    executable = llm.executable
    assert sum(array.nbytes for array in executable.weights.values()) == llm.weight_bytes
    llm.close()
    llm.close()
    assert repr(llm) == "<LLM LlamaForCausalLM, bf16 on cpu: closed>"
    assert llm.facts["num_layers"] == 2  # what needs no memory is still told
    for use in (
        lambda: llm.generate([PROMPT]),
        lambda: llm.executable,
        lambda: llm.weight_bytes,
        lambda: llm.save("somewhere"),
    ):
        with pytest.raises(RequestError, match="the model is closed"):
            use()


def test_list_names_the_model_that_was_built(built, capsys):
    from tilewright.cli.cache_verbs import list_models

    list_models(as_json=True)
    rows = json.loads(capsys.readouterr().out)
    (row,) = [row for row in rows if row["model"] == str(built[0].resolve())]
    assert (row["architecture"], row["dtype"], row["target"]) == ("LlamaForCausalLM", "bf16", "cpu")
    assert row["bytes"] == cache.age_and_size(cache.path_of(row["key"]))[1]


def test_an_unknown_option_is_named():
    with pytest.raises(OptionError, match="LLM has no option max_len"):
        LLM("demo", max_len=3)
