"""GGUF files as users have them: in parts, without a vocabulary, with a tokenizer given beside."""

import subprocess
import sys

import pytest
import torch

import tilewright
from tilewright.frontend.huggingface import capture_causal_lm

transformers = pytest.importorskip("transformers")

from ..frontend.gguf_models import facts_of, random_model, tensors_of, write_model  # noqa: E402
from ..frontend.gguf_writer import f32, gguf  # noqa: E402
from ..frontend.test_gguf_tokenizer import byte_level, reference  # noqa: E402


def test_parts_without_a_vocabulary_are_compiled_and_run_by_token_numbers(tmp_path):
    model = random_model("llama")
    tensors = list(tensors_of(model, "llama").items())
    parts = []
    for index, some in enumerate((tensors[:5], tensors[5:])):
        entries = [(k, *v) for k, v in facts_of(model.config, "llama").items() if index == 0]
        entries += [("split.no", "u32", index), ("split.count", "u32", 2)]
        parts.append(tmp_path / f"m-{index + 1:05}-of-00002.gguf")
        parts[-1].write_bytes(gguf(entries, [(n, a.shape, "F32", f32(a)) for n, a in some]))
    made = tmp_path / "made"
    command = [sys.executable, "-m", "tilewright.cli", "compile", str(parts[1]), "-o", str(made)]
    done = subprocess.run([*command, "--dtype", "float32"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    llm = tilewright.LLM(made)
    assert llm.tokenizer is None
    params = tilewright.SamplingParams(temperature=0, max_tokens=5)
    found = list(llm.generate([3, 4], params)[0].outputs[0].token_ids)
    with pytest.raises(tilewright.RequestError, match="needs a tokenizer"):
        llm.generate("text", params)
    ids = [3, 4]
    with torch.no_grad():
        for _ in range(5):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert found == ids[2:]


def test_a_tokenizer_given_beside_replaces_one_that_is_not_read(tmp_path):
    facts = {f"tokenizer.ggml.{k}": v for k, v in byte_level(pre=("str", "odd")).items()}
    path = write_model(tmp_path / "m.gguf", random_model("llama"), "llama", facts)
    captured = capture_causal_lm(path)
    with pytest.raises(tilewright.CheckpointError, match=r"pre is 'odd'(.|\n)*pass tokenizer="):
        captured.tokenizer.load()
    given = transformers.PreTrainedTokenizerFast(tokenizer_object=reference(()))
    assert capture_causal_lm(path, tokenizer=given).tokenizer.load().tokenizer.encode("one").tokens
