"""Capture of causal language models: exactness against eager float64, facts, errors, no traces."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir import types
from tilewright.ir.errors import CheckpointError, UnsupportedModel, UnsupportedOp
from tilewright.ir.evaluate import evaluate
from tilewright.ir.verify import verify

transformers = pytest.importorskip("transformers")

COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# name -> (config class, what differs, attributes of the attention of each layer)
MODELS = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}, [{}, {}]),
    "qwen3": ("Qwen3Config", {"head_dim": 16}, [{}, {}]),
    "gemma2": (
        "Gemma2Config",
        {
            "head_dim": 16,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
        [{"window": 8, "softcap": 5.0, "scale": 24**-0.5}, {"window": None, "softcap": 5.0}],
    ),
    "mistral": ("MistralConfig", {"sliding_window": 8}, [{"window": 8}, {"window": 8}]),
    "phi3": ("Phi3Config", {"partial_rotary_factor": 0.5}, [{}, {}]),
}


def build(name: str):
    """A model with random weights, also where the initial ones are zeros or ones."""
    kind, more, _ = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**COMMON, **more)
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


class AllFloat64(TorchDispatchMode):
    """Casts to float32 inside a model become casts to float64: the reference rounds nowhere."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def eager(model, ids):
    with torch.no_grad(), AllFloat64():
        return model(input_ids=ids, use_cache=False).logits.numpy()


def ours(captured, ids):
    positions = np.arange(ids.shape[1])[None]
    inputs = {"input_ids": ids.numpy(), "position_ids": positions}
    (logits,), _ = evaluate(captured.graph, inputs, captured.weights)
    return logits


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_eager_float64(name):
    model = build(name)
    captured = capture_causal_lm(model)
    verify(captured.graph)
    assert captured.attention == "op"
    assert captured.notes == ()
    attention = [node for node in captured.graph.nodes if node.op.name == "attention"]
    assert len(attention) == 2
    for node, expected in zip(attention, MODELS[name][2], strict=True):
        assert len(node.operands) == 3, "no mask is left"
        assert node.attrs["is_causal"]
        assert {key: node.attrs[key] for key in expected} == expected
    (t,) = captured.graph.symbols.values()
    assert (t.name, t.lo, t.hi) == ("t", 1, None)
    for length in (1, 7, 33):
        ids = torch.randint(0, 97, (1, length))
        expected = eager(model, ids)
        error = np.abs(ours(captured, ids) - expected).max() / np.abs(expected).max()
        assert error < 1e-11, f"{name} at {length}: {error:.2e}"


def test_facts():
    captured = capture_causal_lm(build("qwen3"))
    facts = captured.facts
    assert facts.architecture == "Qwen3ForCausalLM"
    assert (facts.vocab_size, facts.max_positions, facts.hidden_size) == (97, 128, 32)
    assert facts.num_layers == 2
    assert facts.eos_ids == (2,)
    assert captured.tokenizer is None


def test_tied_and_untied_heads():
    tied, untied = capture_causal_lm(build("llama")), capture_causal_lm(build("phi3"))
    assert "lm_head.weight" not in tied.weights
    assert "model.embed_tokens.weight" in tied.weights
    assert "lm_head.weight" in untied.weights
    assert all(not name.startswith("root") for name in untied.weights)


def test_a_model_in_memory_is_left_as_it_was():
    model = build("gemma2").float().train()
    model.model.layers[0].eval()
    kept = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    modes = [part.training for part in model.modules()]
    implementation, config = model.config._attn_implementation, model.config.to_dict()
    captured = capture_causal_lm(model)
    assert model.config._attn_implementation == implementation
    assert model.config.to_dict() == config
    assert [part.training for part in model.modules()] == modes
    assert {n: p.data_ptr() for n, p in model.named_parameters()} == kept
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
    name = "model.layers.1.mlp.up_proj.weight"
    shared = captured.weights[name]
    assert np.shares_memory(shared, model.get_parameter(name).detach().numpy())


def test_bfloat16_weights_stay_bfloat16():
    captured = capture_causal_lm(build("llama").bfloat16())
    by_name = {w.name: w.dtype for w in captured.graph.weights}
    assert by_name["model.layers.0.mlp.up_proj.weight"] == types.bf16
    assert captured.weights["model.layers.0.mlp.up_proj.weight"].dtype == types.bf16.numpy


def test_a_model_without_the_hook_is_written_out():
    """Bloom adds a position bias (ALiBi) to scores by itself."""
    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    captured = capture_causal_lm(model)
    verify(captured.graph)
    assert captured.attention == "eager"
    assert "does not take another attention" in captured.notes[0]
    assert model.config._attn_implementation == "eager"
    for length in (1, 9):
        ids = torch.randint(0, 97, (1, length))
        np.testing.assert_allclose(ours(captured, ids), eager(model, ids), rtol=1e-9, atol=1e-11)


def test_a_rotary_table_chosen_by_position():
    """Phi-3 with long context writes the table it chose into a buffer; no state remains."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 16,
    }
    config = transformers.Phi3Config(**COMMON, rope_parameters=rope)
    config.original_max_position_embeddings = 16
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    captured = capture_causal_lm(model)
    assert captured.graph.states == ()
    assert not hasattr(model.model.rotary_emb, "long_inv_freq"), "set while tracing"
    for length in (8, 33):
        ids = torch.randint(0, 97, (1, length))
        with torch.no_grad():
            expected = model(input_ids=ids, use_cache=False).logits.numpy()
        np.testing.assert_allclose(ours(captured, ids), expected, rtol=1e-4, atol=1e-5)


def test_rotary_scaling_that_grows_with_the_sequence_is_plain_within_the_models_own_length():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    config = transformers.LlamaConfig(**COMMON, rope_parameters=rope)
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    captured = capture_causal_lm(model)
    assert captured.facts.max_positions == COMMON["max_position_embeddings"]
    ids = torch.arange(3, 36)[None]
    error = np.abs(ours(captured, ids) - eager(model, ids)).max()
    assert error < 1e-11
    assert model.model.rotary_emb.rope_type == "dynamic"


# ---- folders -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    build("llama").float().save_pretrained(path)
    return path


def test_a_folder_gives_what_its_module_gives(folder):
    captured = capture_causal_lm(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).double().eval()
    ids = torch.randint(0, 97, (1, 11))
    expected = eager(model, ids)
    np.testing.assert_allclose(ours(captured, ids), expected, rtol=1e-9, atol=1e-11)
    assert captured.facts.eos_ids == (2,)
    assert {w.dtype for w in captured.graph.weights} == {types.f32}


def test_dtype_of_a_folder(folder):
    captured = capture_causal_lm(folder, dtype=types.bf16)
    name = "model.layers.0.mlp.up_proj.weight"
    assert captured.weights[name].dtype == types.bf16.numpy
    exact = capture_causal_lm(folder).weights[name]
    np.testing.assert_array_equal(captured.weights[name], exact.astype(types.bf16.numpy))


def test_a_sharded_folder(folder, tmp_path):
    build("llama").float().save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    one, many = capture_causal_lm(folder).weights, capture_causal_lm(tmp_path).weights
    assert list(one) == list(many)
    for name in one:
        np.testing.assert_array_equal(one[name], many[name])


def test_a_base_models_checkpoint_lacks_a_prefix(tmp_path):
    """GPT-2's own checkpoint names its weights without `transformer.`."""
    config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.transformer.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    fields["architectures"] = ["GPT2LMHeadModel"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    captured = capture_causal_lm(tmp_path)
    ids = torch.randint(0, 97, (1, 5))
    expected = eager(model.double(), ids)
    np.testing.assert_allclose(ours(captured, ids), expected, rtol=1e-9, atol=1e-11)


# ---- refusals ----------------------------------------------------------------------------------


def copy(folder, tmp_path):
    target = tmp_path / "model"
    shutil.copytree(folder, target)
    return target


def test_no_such_file(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"no such file or folder(.|\n)*nothing is downloaded"
    ):
        capture_causal_lm(tmp_path / "absent")


def test_not_a_model(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CheckpointError, match=r"not a model(.|\n)*a \.txt file"):
        capture_causal_lm(tmp_path / "notes.txt")
    with pytest.raises(CheckpointError, match=r"no config\.json(.|\n)*found notes\.txt"):
        capture_causal_lm(tmp_path)


def test_a_folder_that_holds_a_gguf_file(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"name the file: .*model\.gguf"):
        capture_causal_lm(tmp_path)


def test_pickled_weights_are_refused(folder, tmp_path):
    path = copy(folder, tmp_path)
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"unpickling runs code(.|\n)*pytorch_model\.bin"):
        capture_causal_lm(path)


def test_no_weights(folder, tmp_path):
    path = copy(folder, tmp_path)
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no weights in the folder"):
        capture_causal_lm(path)


def test_a_malformed_config(folder, tmp_path):
    path = copy(folder, tmp_path)
    (path / "config.json").write_text('{"model_type": "llama",')
    with pytest.raises(CheckpointError, match=r"malformed JSON(.|\n)*line 1"):
        capture_causal_lm(path)
    (path / "config.json").write_text('{"model_type": "no_such_type"}')
    with pytest.raises(CheckpointError, match=r"config cannot be read(.|\n)*no_such_type"):
        capture_causal_lm(path)


def test_weights_of_another_size(folder, tmp_path):
    path = copy(folder, tmp_path)
    fields = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(fields | {"intermediate_size": 48}))
    with pytest.raises(CheckpointError, match=r"wrong shape(.|\n)*config\.json asks for"):
        capture_causal_lm(path)


def test_missing_weights(folder, tmp_path):
    path = copy(folder, tmp_path)
    fields = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(fields | {"num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"lacks weights of its model(.|\n)*layers\.2"):
        capture_causal_lm(path)


def test_a_truncated_safetensors_file(folder, tmp_path):
    path = copy(folder, tmp_path)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"truncated safetensors(.|\n)*is at .* bytes"):
        capture_causal_lm(path)
    weights.write_bytes(b"\xff" * 16)
    with pytest.raises(CheckpointError, match=r"truncated safetensors(.|\n)*a header of"):
        capture_causal_lm(path)


def test_quantized_folders_are_refused(folder, tmp_path):
    path = copy(folder, tmp_path)
    fields = json.loads((path / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "awq"}
    (path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match="quantization_config names 'awq'"):
        capture_causal_lm(path)


def test_a_missing_tokenizer_is_told_when_it_is_asked_for(folder):
    captured = capture_causal_lm(folder)
    with pytest.raises(CheckpointError, match=r"without a tokenizer(.|\n)*tokenizer\.json"):
        captured.tokenizer.load()


def test_models_of_other_kinds_are_refused(tmp_path):
    bert = transformers.BertConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    model = transformers.BertModel(bert)
    with pytest.raises(UnsupportedModel, match="not a causal language model"):
        capture_causal_lm(model)
    model.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="it was saved as BertModel"):
        capture_causal_lm(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"got a Linear(.|\n)*tilewright\.compile"):
        capture_causal_lm(torch.nn.Linear(2, 2))
    t5 = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2
    )
    with pytest.raises(UnsupportedModel, match=r"encoder and a decoder"):
        capture_causal_lm(transformers.T5ForConditionalGeneration(t5))


class Airy(torch.nn.Module):
    def forward(self, x):
        return torch.special.airy_ai(x)


def test_unsupported_operations_of_a_model_are_listed():
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**COMMON))
    for layer in model.model.layers:
        layer.mlp.act_fn = Airy()
    with pytest.raises(UnsupportedOp, match=r"special_airy_ai.* 2 x  first at model\.layers"):
        capture_causal_lm(model)
    assert model.config._attn_implementation != "tilewright"
