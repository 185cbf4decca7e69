"""Language models under a rude user: each wrong input is one screen that says what to do."""

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

import tilewright
from tilewright.api import cache
from tilewright.frontend.checkpoint import open_checkpoint
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir import switches
from tilewright.ir.errors import TilewrightError

from ..frontend import test_gguf_model as gguf_model
from ..frontend.gguf_writer import f32, gguf
from ..models import tiny
from .conftest import byte_tokenizer, is_one_screen

GREEDY = tilewright.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(folder) -> tilewright.LLM:
    return tilewright.LLM(folder, target="cpu")


# ---- the command line ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["{}", ""], "RequestError: the prompt is empty"),
        (["{}", "x" * 2000], "it has 2000 tokens, at most 1023 leave room for an answer"),
        (["{}", b"caf\xe9"], "RequestError: the text has something that is no character"),
        (["{}", "hi", "--dtype", "int4"], "OptionError: dtype is 'int4'\n  choices: auto, float32"),
        (["{}", "hi", "--target", "gfx942"], "programs for gfx942 can be built here, not run"),
        (["/dev/zero", "hi"], "CheckpointError: neither a file nor a folder\n  at /dev/zero"),
    ],
)
def test_generate_says_what_is_wrong(command, folder, llm, args, says):
    filled = [str(folder) if arg == "{}" else arg for arg in args]
    assert is_one_screen(command("generate", *filled), says)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("THREADS", "0", "TILEWRIGHT_THREADS='0' is not a positive number"),
        ("THREADS", "²", "it is a whole number from 1 to 1024"),
        ("THREADS", "100000", "it is a whole number from 1 to 1024"),
        ("CHECK", "9", "'9' is not a choice\n  choices: 0, 1, 2"),
        ("LOG", "passes,", "choices: passes, codegen"),
        ("THREAD", "2", "no switch named TILEWRIGHT_THREAD\n  switches: TILEWRIGHT_DUMP"),
    ],
)
def test_a_bad_switch_is_an_error_before_any_work(command, name, value, says):
    assert is_one_screen(command("doctor", env={f"TILEWRIGHT_{name}": value}), says)


def test_a_pipe_is_no_model(command, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert is_one_screen(command("generate", "pipe", "hi"), "it is a device, a pipe or a socket")


def test_without_a_compiler(command, folder, tmp_path):
    env = {"PATH": str(tmp_path), "TILEWRIGHT_CACHE": str(tmp_path / "cache")}
    done = command("generate", folder, "hi", env=env)
    assert is_one_screen(
        done, "BuildError: no C++ compiler\n  looked for g++, clang++, c++ on PATH"
    )


# The command line, which closes a descriptor once it minds signals: before, they end Python itself.
MINDFUL = """
import os, sys
from contextlib import contextmanager
from tilewright.cli import interruption, main
watched = interruption.watched
@contextmanager
def told():
    with watched():
        os.close(int(sys.argv.pop()))
        yield
interruption.watched = told
main()
"""


@pytest.mark.parametrize("seconds", [0.05, 0.4, 1.5, 4.0])
def test_ctrl_c_at_any_moment(folder, tmp_path, seconds):
    """In imports, while tracing, while the C++ compiler runs: one line, 130, nothing left."""
    begun, told = os.pipe()
    command = [sys.executable, "-c", MINDFUL, "generate", str(folder), "hi", "-q", str(told)]
    temporary, kept = tmp_path / "tmp", tmp_path / "cache"
    temporary.mkdir()
    env = {**os.environ, "TILEWRIGHT_CACHE": str(kept), "TMPDIR": str(temporary)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "pass_fds": (told,)}
    process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
    os.close(told)
    with os.fdopen(begun, "rb") as pipe:
        pipe.read()
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: compilers get it as well
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err, out) == (130, b"\ninterrupted\n", b"")
    assert not list(temporary.glob("tilewright-*"))
    files = [path for path in kept.rglob("*") if path.is_file()]
    assert [path.name for path in files if path.name != "hashes.json"] == []


# ---- checkpoints ---------------------------------------------------------------------------


def test_damage_to_a_gguf_header_never_escapes(tmp_path):
    path = gguf_model.write(tmp_path / "tiny.gguf", gguf_model.TOKENIZER)
    whole = path.read_bytes()
    header = len(whole) - sum(
        t.nbytes for t in gguf_model.tensors_of(gguf_model.tiny_model()).values()
    )
    rng = random.Random(5)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 4])):
            damaged[rng.randrange(header)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged[: rng.randrange(header)] if rng.random() < 0.2 else damaged)
        try:
            open_checkpoint(path).tokenizer.load()
        except TilewrightError:
            refused += 1
    assert refused > 75  # the others changed a name, a number or a token


@pytest.mark.parametrize(
    ("key", "kind", "value", "says"),
    [
        ("attention.head_count", "u32", 3, "no multiple of 3 heads"),
        ("attention.head_count_kv", "u32", 0, "num_key_value_heads is 0, not a positive number"),
        ("attention.head_count_kv", "i32", -1, "num_key_value_heads is -1, not a positive"),
        ("attention.layer_norm_rms_epsilon", "str", "x", "rms_epsilon is 'x', not a number"),
        ("context_length", "f32", 2.5, "is 2.5, not a positive number"),
        ("feed_forward_length", "u64", 2**63, "the config describes cannot be made"),
        ("rope.freq_base", "str", "x", "freq_base is 'x', not a number"),
        ("rope.dimension_count", "u32", 3, "heads of 8 are rotated whole"),
        ("vocab_size", "u32", 2**32 - 1, "token_embd.weight has"),
    ],
)
def test_odd_metadata_of_a_gguf(tmp_path, key, kind, value, says):
    facts = [f for f in gguf_model.FACTS if f[0] != f"llama.{key}"]
    tensors = gguf_model.tensors_of(gguf_model.tiny_model())
    packed = [(name, a.shape, "F32", f32(a)) for name, a in tensors.items()]
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf([*facts, (f"llama.{key}", kind, value)], packed))
    with pytest.raises(TilewrightError, match=says) as error:
        capture_causal_lm(path)
    assert "odd.gguf" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, the folder has"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"max_position_embeddings": -1}, "max_position_embeddings is -1"),
        ({"hidden_size": "x"}, "config cannot be read"),
        ({"rope_parameters": 3}, "config cannot be read|cannot be made"),
        ({"num_attention_heads": 0}, "config cannot be read|cannot be made"),
        ({"vocab_size": 7}, "has the wrong shape"),
        ({"architectures": 3}, "not a causal language model"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "saved as BertForMaskedLM"),
        ({"model_type": "t5"}, "has an encoder and a decoder"),
        ({"quantization_config": [1]}, "quantized checkpoints of this kind"),
        ({"text_config": {"quantization_config": {"quant_method": "own"}}}, "names 'own'"),
        ({"dtype": "float99"}, "config cannot be read"),
    ],
)
def test_odd_values_in_a_config(folder, tmp_path, changes, says):
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(TilewrightError, match=says) as error:
        open_checkpoint(copy)
    assert "copy" in str(error.value)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.json", b'{"a":' * 100_000, "malformed JSON"),
        ("config.json", None, "the folder has no config.json"),
        ("model.safetensors", b"\x80\x04", "truncated safetensors"),
        ("model.safetensors", None, "no weights in the folder"),
        ("generation_config.json", b'{"eos_token_id": ["a"]}', "end-of-text tokens are no numbers"),
        ("tokenizer.json", b"{}", "tokenizer cannot be read"),
    ],
)
def test_damaged_files_of_a_folder(folder, tmp_path, file, content, says):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / file).unlink() if content is None else (copy / file).write_bytes(content)
    with pytest.raises(tilewright.CheckpointError, match=says):
        open_checkpoint(copy).tokenizer.load()


def test_weights_as_pickles_and_no_tokenizer(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    for file in copy.glob("*token*"):
        file.unlink()
    with pytest.raises(tilewright.CheckpointError, match="comes without a tokenizer"):
        open_checkpoint(copy).tokenizer.load()
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(tilewright.CheckpointError, match="unpickling runs code from the file"):
        open_checkpoint(copy)


# ---- options and requests ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_model_len": "8"}, "max_model_len is '8'\n  it is a whole number from 1"),
        ({"max_model_len": 10**9}, "the model allows 1 to 1024 tokens"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_seqs": 2.5}, "max_num_seqs is 2.5"),
        ({"max_num_batched_tokens": 9000}, "it is a whole number from 1 to 8192"),
        ({"kv_cache_bytes": "1G"}, "kv_cache_bytes is '1G'"),
        ({"kv_cache_bytes": 10**15}, "does not fit into memory(.|\n)*needed: 1,000,000,000"),
        ({"kv_cache_bytes": 5}, "8,192 bytes for 1 pages of 16 tokens; available: the 5 bytes"),
        ({"seed": -1}, "seed is -1"),
        ({"dtype": torch.float64}, "dtype is 'float64'"),
        ({"target": ["cpu"]}, r"no target named \['cpu'\]"),
        ({"tokenizer": "path"}, "tokenizer is 'path'\n  a fast transformers tokenizer is needed"),
        ({"gpu_memory_utilization": 0.9}, "LLM has no option gpu_memory_utilization"),
    ],
)
def test_options_are_checked(folder, llm, options, says):
    with pytest.raises(TilewrightError, match=says):
        tilewright.LLM(folder, **options)


@pytest.mark.parametrize(
    "prompt",
    [None, 3, 2.5, b"bytes", ["a", None], [1, 2.0], [True], [["a"]], {"prompt_token_ids": "ab"}],
)
def test_what_is_no_prompt(llm, prompt):
    with pytest.raises(tilewright.RequestError, match="neither text nor token numbers"):
        llm.generate(prompt)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda llm: llm.generate({"prompt": 3}), "it has the keys prompt; prompt is of type int"),
        (lambda llm: llm.generate("half \ud83c"), "something that is no character"),
        (lambda llm: llm.generate(["a", ""]), "the prompt is empty\n  at prompt 1 of 2"),
        (lambda llm: llm.generate([320]), "tokens are 0 to 319"),
        (lambda llm: llm.generate("a", {"max_tokens": 3}), "are given as SamplingParams"),
        (lambda llm: llm.generate("a", [None]), "are given as SamplingParams"),
        (lambda llm: llm.stream(["a", "b"]), "neither text nor token numbers"),
        (lambda llm: llm.chat("hi"), "a conversation is a list of messages"),
        (lambda llm: llm.chat({"role": "user", "content": "a"}), "conversation is a list of"),
        (lambda llm: llm.chat([{"role": "tool", "content": ""}]), "no tools here"),
        (lambda llm: llm.chat([{"content": "x"}]), "message 0 is not a message"),
        (
            lambda llm: llm.chat(
                [{"role": "user", "content": "a"}], chat_template_kwargs={"messages": []}
            ),
            "chat_template_kwargs is not understood",
        ),
        (lambda _: tilewright.SamplingParams(stop=3), "stop has 3, must be strings"),
        (lambda _: tilewright.SamplingParams(logit_bias={"x": 1}), "'x', which is not a token's"),
        (lambda _: tilewright.SamplingParams(logit_bias={3: float("nan")}), "is nan, must be a"),
        (lambda _: tilewright.SamplingParams(logit_bias=[1]), "must be a dict from tokens"),
    ],
)
def test_bad_requests(llm, call, says):
    with pytest.raises(tilewright.RequestError, match=says):
        call(llm)
    llm.engine.check_integrity()
    assert not llm.engine.has_work


def test_other_forms_of_prompts_mean_the_same(llm):
    expected = llm.generate([[5, 6, 7]], GREEDY)[0].outputs[0].token_ids
    for prompt in ([5, 6, 7], np.array([5, 6, 7]), torch.tensor([[5, 6, 7]]), [(5, 6, 7)]):
        assert llm.generate(prompt, GREEDY)[0].outputs[0].token_ids == expected


def test_a_broken_call_leaves_nothing_behind(llm):
    expected = llm.generate("abc", GREEDY)[0].outputs[0].token_ids
    with pytest.raises(ZeroDivisionError):
        llm.generate(["abc"] * 5, GREEDY, progress=lambda *_: 1 / 0)
    llm.engine.check_integrity()
    assert llm.generate("abc", GREEDY)[0].outputs[0].token_ids == expected


def test_a_hundred_prompts_and_threads_give_what_each_gets_alone(llm):
    prompts = [f"{'é🎉' * (i % 7)} number {i % 50}" for i in range(100)]
    together = [r.outputs[0].text for r in llm.generate(prompts, GREEDY)]
    assert together[:50] == together[50:] or prompts[:50] != prompts[50:]
    found: dict[int, list[str]] = {}

    def work(number: int) -> None:
        part = range(number, 100, 4)
        found[number] = ["".join(llm.stream(prompts[i], GREEDY)) for i in part]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert found == {n: together[n::4] for n in range(4)}
    llm.engine.check_integrity()


def test_logits_that_are_no_numbers_are_an_error(folder, tmp_path, monkeypatch):
    module = tiny.make("llama")
    with torch.no_grad():
        module.lm_head.weight[5] = float("nan")
    broken = tilewright.LLM(module, tokenizer=byte_tokenizer(), target="cpu")
    for params in (GREEDY, tilewright.SamplingParams(temperature=1.0, top_k=5, seed=1)):
        output = broken.generate("abc", params)[0].outputs[0]
        assert (output.finish_reason, output.token_ids) == ("error", ())
        assert "1 of 320 are NaN" in str(output.error)
    with pytest.raises(tilewright.RequestError, match="logits are not numbers"):
        list(broken.stream("abc", GREEDY))


# ---- the cache -----------------------------------------------------------------------------


def entries(folder):
    return [path for path in (folder / "artifacts").iterdir() if not path.name.startswith(".")]


def test_a_damaged_entry_is_built_again(folder, tmp_path):
    with switches.switches(cache=tmp_path):
        first = tilewright.LLM(folder, target="cpu").generate("abc", GREEDY)[0].outputs[0]
        (entry,) = entries(tmp_path)
        manifest = entry / "manifest.json"
        manifest.write_text(manifest.read_text()[:-40])
        again = tilewright.LLM(folder, target="cpu")
        assert not again.was_cached
        assert again.generate("abc", GREEDY)[0].outputs[0].token_ids == first.token_ids
        assert tilewright.LLM(folder, target="cpu").was_cached
        # a tokenizer that is given is part of what was built
        other = tilewright.LLM(folder, tokenizer=byte_tokenizer(), target="cpu")
        assert not other.was_cached
        assert len(entries(tmp_path)) == 2


def test_a_library_that_does_not_load_is_not_kept(folder, tmp_path, monkeypatch):
    from tilewright.codegen.cpp import backend

    monkeypatch.setattr(backend, "compile_library", lambda *_: b"no library")
    refused = pytest.raises(tilewright.DeviceError, match="shared library does not load")
    with switches.switches(cache=tmp_path), refused:
        tilewright.LLM(folder, target="cpu")
    assert entries(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_told(folder, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with switches.switches(cache=tmp_path / "file" / "cache"), caplog.at_level(logging.WARNING):
        llm = tilewright.LLM(folder, target="cpu")
    assert "not kept, and will be compiled again next time" in caplog.text
    assert llm.generate("abc", GREEDY)[0].outputs[0].finish_reason == "length"


def test_the_first_of_two_builders_wins(tmp_path, llm):
    with switches.switches(cache=tmp_path):
        path = cache.path_of("key")
        assert cache.store(path, llm.artifact)
        before = (path / "manifest.json").stat().st_ino
        assert cache.store(path, llm.artifact)
        assert (path / "manifest.json").stat().st_ino == before
        assert [p.name for p in path.parent.iterdir()] == ["key"]
        cache.remove(path)
        path.write_text("neither folder nor zip")
        cache.remove(path)
        assert not path.exists()
