"""Every architecture's file gives the logits of its model; every key is honoured or refused."""

import re
from math import log

import numpy as np
import pytest
import torch

from tilewright.frontend.gguf import read_gguf
from tilewright.frontend.gguf_config import ARCHITECTURES, WITH_EXPERTS, config_fields, hf_config
from tilewright.frontend.gguf_keys import FIELDS, HARMLESS, NEUTRAL, RULED, TOKENIZER_USED
from tilewright.frontend.huggingface import capture_causal_lm
from tilewright.ir.errors import CheckpointError
from tilewright.ir.evaluate import evaluate

transformers = pytest.importorskip("transformers")

from .gguf_models import EPS, VOCAB, random_model, tensors_of, write_model  # noqa: E402

HEAD = {"head_dim": 8}
KEY8 = {"attention.key_length": ("u32", 8), "attention.value_length": ("u32", 8)}
LINEAR = {"rope.scaling.type": ("str", "linear"), "rope.scaling.factor": ("f32", 4.0)}


def rope(kind="default", base=10000.0, **more):
    return {"rope_type": kind, "rope_theta": base, **more}


YARN = rope(
    "yarn",
    factor=4.0,
    original_max_position_embeddings=16,
    beta_fast=4.0,
    beta_slow=1.0,
    attention_factor=1 + 0.1 * log(4),
)
YARN_KEYS = {
    "rope.scaling.type": ("str", "yarn"),
    "rope.scaling.factor": ("f32", 4.0),
    "rope.scaling.original_context_length": ("u32", 16),
    "rope.scaling.yarn_beta_fast": ("f32", 4.0),
    "rope.scaling.finetuned": ("bool", True),
}
SLIDES, SEES = "sliding_attention", "full_attention"

# name -> architecture, model type, what the model has, what the file states
SAMPLES = {
    "llama": ("llama", "llama", {}, {}),
    "llama with biases": ("llama", "llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "llama with larger heads": (
        "llama",
        "llama",
        {"head_dim": 12},
        {"attention.key_length": ("u32", 12), "rope.dimension_count": ("u32", 12)},
    ),
    "mistral with a window": (
        "llama",
        "mistral",
        {"sliding_window": 5, **HEAD},
        {"attention.sliding_window": ("u32", 5)},
    ),
    "mistral by name only": (
        "llama",
        "mistral",
        {"sliding_window": None, **HEAD},
        {"general.name": ("str", "Mistral-7B-v0.3")},
    ),
    "linear scaling": ("llama", "llama", {"rope_parameters": rope("linear", factor=4.0)}, LINEAR),
    "linear scaling, no type": (
        "llama",
        "llama",
        {"rope_parameters": rope("linear", factor=4.0)},
        {"rope.scaling.factor": ("f32", 4.0)},
    ),
    "linear scaling, old key": (
        "llama",
        "llama",
        {"rope_parameters": rope("linear", factor=2.0)},
        {"rope.scale_linear": ("f32", 2.0)},
    ),
    "scaling of no type": (
        "llama",
        "llama",
        {},
        {"rope.scaling.type": ("str", "none"), "rope.scaling.factor": ("f32", 4.0)},
    ),
    "yarn": ("qwen2", "qwen2", {"rope_parameters": YARN}, YARN_KEYS),
    "arrays": (
        "llama",
        "llama",
        {},
        {
            "attention.head_count": ("array", ("u32", [4, 4])),
            "feed_forward_length": ("array", ("i32", [24, 24])),
        },
    ),
    "qwen2": ("qwen2", "qwen2", {}, {"attention.sliding_window": ("u32", 64)}),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 12}, {"attention.key_length": ("u32", 12)}),
    "qwen3moe": (
        "qwen3moe",
        "qwen3_moe",
        {"norm_topk_prob": True, "num_experts": 6, "num_experts_per_tok": 3}
        | {"moe_intermediate_size": 20, **HEAD},
        {"expert_feed_forward_length": ("u32", 20), **KEY8},
    ),
    "qwen3moe whose experts have the width of all": (
        "qwen3moe",
        "qwen3_moe",
        {"norm_topk_prob": True, "num_experts": 5, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 12, **HEAD},
        KEY8,
    ),
    "llama with experts": (
        "llama",
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 5}
        | {"rope_parameters": rope(), **HEAD},
        {"attention.sliding_window": ("u32", 5)},
    ),
    "olmo2": ("olmo2", "olmo2", {}, {}),
    "seed_oss": ("seed_oss", "seed_oss", HEAD, KEY8),
    "gemma": ("gemma", "gemma", {"head_dim": 12}, {"attention.key_length": ("u32", 12)}),
    "granite": (
        "granite",
        "granite",
        {"logits_scaling": 4.0, "attention_multiplier": 8**-0.5},
        {},
    ),
    "granite with its numbers": (
        "granite",
        "granite",
        {
            "logits_scaling": 0.5,
            "attention_multiplier": 0.25,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.75,
        },
        {
            "attention.scale": ("f32", 0.25),
            "embedding_scale": ("f32", 3.0),
            "residual_scale": ("f32", 0.75),
            "rope.scaling.finetuned": ("bool", True),
        },
    ),
    "phi3": ("phi3", "phi3", {"sliding_window": 5}, {"attention.sliding_window": ("u32", 5)}),
    "phi3, a part rotated": (
        "phi3",
        "phi3",
        {"rope_parameters": rope(partial_rotary_factor=0.5)},
        {"rope.dimension_count": ("u32", 4)},
    ),
    "gemma2": (
        "gemma2",
        "gemma2",
        {"sliding_window": 5, "query_pre_attn_scalar": 8, **HEAD},
        {"attention.sliding_window": ("u32", 5), **KEY8},
    ),
    "gemma2 with caps": (
        "gemma2",
        "gemma2",
        {
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 12,
            "head_dim": 12,
        },
        {
            "attn_logit_softcapping": ("f32", 3.0),
            "final_logit_softcapping": ("f32", 2.0),
            "attention.key_length": ("u32", 12),
        },
    ),
    "gemma3": (
        "gemma3",
        "gemma3_text",
        {
            "sliding_window": 5,
            "query_pre_attn_scalar": 8,
            "rope_parameters": {SEES: rope("linear", 5e5, factor=4.0), SLIDES: rope()},
            "layer_types": [SLIDES, SEES],
            **HEAD,
        },
        {
            "attention.sliding_window": ("u32", 5),
            "attention.sliding_window_pattern": ("u32", 2),
            "rope.freq_base": ("f32", 5e5),
            **LINEAR,
        },
    ),
    "gemma3, layers named": (
        "gemma3",
        "gemma3_text",
        {
            "sliding_window": 4,
            "query_pre_attn_scalar": 4,
            "rope_parameters": {SEES: rope(), SLIDES: rope(base=500.0)},
            "layer_types": [SEES, SLIDES],
            **HEAD,
        },
        {
            "attention.sliding_window": ("u32", 4),
            "attention.sliding_window_pattern": ("array", ("bool", [False, True])),
            "attention.scale": ("f32", 0.5),
            "rope.freq_base_swa": ("f32", 500.0),
        },
    ),
    "gemma3 without a window": (
        "gemma3",
        "gemma3_text",
        {
            "layer_types": [SEES, SEES],
            "query_pre_attn_scalar": 8,
            "rope_parameters": {SEES: rope(), SLIDES: rope()},
            **HEAD,
        },
        {},
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_gives_the_logits_of_its_model(tmp_path, name):
    arch, model_type, fields, facts = SAMPLES[name]
    model = random_model(model_type, **fields)
    captured = capture_causal_lm(write_model(tmp_path / "m.gguf", model, arch, facts))
    ids = torch.randint(0, VOCAB, (1, 23), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(input_ids=ids).logits.numpy()
    inputs = {"input_ids": ids.numpy(), "position_ids": np.arange(23)[None]}
    found = evaluate(captured.graph, inputs, captured.weights)[0][0]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def config_of(tmp_path, model_type="llama", arch="llama", facts=(), **options):
    model = random_model(model_type)
    return hf_config(read_gguf(write_model(tmp_path / "m.gguf", model, arch, facts, **options)))


@pytest.mark.parametrize(
    ("model_type", "arch", "layers", "scalar"),
    [("gemma2", "gemma2", 46, 10), ("gemma3_text", "gemma3", 62, 10), ("gemma2", "gemma2", 62, 16)],
)
def test_the_largest_gemma_scales_attention_by_its_width(
    tmp_path, model_type, arch, layers, scalar
):
    """gemma2.cpp, gemma3.cpp: embedding / heads for 27B, known by its layers; else key_length."""
    model = random_model(model_type, hidden_size=40, head_dim=16, num_attention_heads=4)
    facts = {"block_count": ("u32", layers), "attention.key_length": ("u32", 16)}
    tensors = tensors_of(model, arch) | {f"x{i}": np.ones(1, np.float32) for i in range(layers)}
    path = write_model(tmp_path / "m.gguf", model, arch, facts, tensors=tensors)
    assert hf_config(read_gguf(path)).query_pre_attn_scalar == scalar


# Fields that change nothing of what a model computes in inference.
_IDLE = set(
    "transformers_version architectures output_hidden_states return_dict dtype id2label label2id "
    "chunk_size_feed_forward is_encoder_decoder problem_type initializer_range use_cache "
    "pretraining_tp attention_dropout _name_or_path model_type output_attentions resid_pdrop "
    "embd_pdrop residual_dropout layer_types max_window_layers _sliding_window_pattern "
    "output_router_logits router_aux_loss_coef num_local_experts".split()
)


@pytest.mark.parametrize(
    ("arch", "model_type"),
    [(arch, known.model_type) for a in (ARCHITECTURES, WITH_EXPERTS) for arch, known in a.items()],
)
def test_no_field_is_left_to_the_default_of_the_config_class(tmp_path, arch, model_type):
    path = write_model(tmp_path / "m.gguf", random_model(model_type), arch)
    model_type, given = config_fields(read_gguf(path))
    config = transformers.CONFIG_MAPPING[model_type](**given)
    assert set(config.to_dict()) - set(given) - _IDLE == set()
    if "layer_types" in config.to_dict() and "layer_types" not in given:
        assert set(config.layer_types) == {SEES}


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"attention.mystery": ("u32", 1)}, r"llama\.attention\.mystery is 1: a key that is not"),
        ({"expert_count": ("u32", 8)}, r"expert_used_count is None: not a positive number"),
        (
            {"expert_count": ("u32", 8), "expert_used_count": ("u32", 9)},
            r"expert_used_count is 9: there are 8 experts",
        ),
        ({"attention.causal": ("bool", False)}, r"causal is False, only True"),
        ({"attention.clamp_kqv": ("f32", 8.0)}, r"clamp_kqv is 8\.0, only 0"),
        ({"logit_scale": ("f32", 0.5)}, r"logit_scale is 0\.5, only 0 or 1"),
        ({"embedding_scale": ("f32", 12.0)}, r"embedding_scale is 12"),
        ({"attention.scale": ("f32", 0.1)}, r"attention\.scale is 0\.1\d*: models of this arch"),
        ({"final_logit_softcapping": ("f32", 30.0)}, r"have no cap"),
        ({"rope.dimension_count": ("u32", 4)}, r"heads of 8 are rotated whole"),
        ({"rope.freq_base_swa": ("f32", 7.0)}, r"rope\.freq_base_swa is 7\.0"),
        ({"rope.freq_base": ("f32", float("nan"))}, r"rope\.freq_base is nan"),
        ({"rope.freq_base": ("str", "ten")}, r"rope\.freq_base is 'ten', not a number"),
        ({"rope.scaling.type": ("str", "longrope")}, r"'longrope': rotary scaling of this kind"),
        ({"rope.scaling.attn_factor": ("f32", 2.0)}, r"attn_factor is 2\.0"),
        ({"attention.value_length": ("u32", 4)}, r"value_length is 4: keys have 8"),
        ({"attention.key_length_swa": ("u32", 4), **KEY8}, r"key_length_swa is 4"),
        ({"attention.value_length_swa": ("u32", 4)}, r"value_length_swa is 4: keys have 8"),
        ({"rope.dimension_count_swa": ("u32", 4)}, r"dimension_count_swa is 4: in other layers 8"),
        ({"rope.scaling.yarn_ext_factor": ("f32", 1.0)}, r"ext_factor is 1\.0: .*'linear'"),
        ({"rope.scaling.yarn_attn_factor": ("f32", 2.0)}, r"yarn_attn_factor is 2\.0: .*'linear'"),
        ({"attention.sliding_window": ("str", "x")}, r"sliding_window is 'x'"),
        (
            {
                "attention.sliding_window": ("u32", 4),
                "attention.sliding_window_pattern": ("u32", 2),
            },
            r"sliding_window_pattern is 2: all layers",
        ),
        ({"attention.head_count_kv": ("array", ("u32", [2, 1]))}, r"layers that differ"),
        ({"attention.head_count": ("u32", 0)}, r"num_attention_heads is 0"),
        ({"attention.layer_norm_rms_epsilon": ("f32", float("inf"))}, r"epsilon is inf"),
        ({"vocab_size": ("u32", 41)}, r"vocab_size is 41: token_embd\.weight has 40 rows"),
        ({"general.type": ("str", "adapter")}, r"general\.type is 'adapter'"),
        ({"general.quantization_version": ("u32", 1)}, r"quantization_version is 1, only 2"),
    ],
)
def test_what_is_stated_and_not_read_is_refused_by_name(tmp_path, facts, message):
    with pytest.raises(CheckpointError, match=message):
        config_of(tmp_path, facts=facts)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"logit_scale": ("f32", 0.0)}, r"granite\.logit_scale is 0\.0: missing or 0"),
        ({"rope.scaling.finetuned": ("bool", False)}, r"finetuned is False, only True is read"),
        ({"attention.clamp_kqv": ("f32", 8.0)}, r"clamp_kqv is 8\.0, only 0"),
    ],
)
def test_numbers_of_one_architecture_are_checked(tmp_path, facts, message):
    with pytest.raises(CheckpointError, match=message):
        config_of(tmp_path, "granite", "granite", facts)


def test_facts_without_sense(tmp_path):
    """A table of embeddings without rows, and a scale so small that its square is nothing."""
    model = random_model("llama")
    tensors = tensors_of(model, "llama") | {"token_embd.weight": np.float32(1)}
    with pytest.raises(CheckpointError, match="vocab_size is 0, not a positive number"):
        hf_config(read_gguf(write_model(tmp_path / "m.gguf", model, "llama", tensors=tensors)))
    with pytest.raises(CheckpointError, match=r"attention\.scale is -0\.5: below zero"):
        config_of(tmp_path, "gemma2", "gemma2", {"attention.scale": ("f32", -0.5)})
    for scale in (1e-45, 0.3):
        with pytest.raises(CheckpointError, match=r"attention\.scale is .* of a whole number"):
            config_of(tmp_path, "gemma2", "gemma2", {"attention.scale": ("f32", scale)})


@pytest.mark.parametrize("value", [("str", "x"), ("array", ("f32", [0.5])), ("i32", -3)])
def test_no_key_that_decides_takes_what_has_no_sense(tmp_path, value):
    model = random_model("llama")
    tensors = tensors_of(model, "llama")
    for key in sorted({*FIELDS, *RULED, *NEUTRAL}):
        path = write_model(tmp_path / "m.gguf", model, "llama", {key: value}, tensors=tensors)
        if key.startswith("rope.scaling.yarn_beta") and value[0] == "i32":
            continue  # a number, of no effect without yarn
        with pytest.raises(CheckpointError, match=re.escape(f"llama.{key}") + "|not a positive"):
            hf_config(read_gguf(path))


def test_all_that_is_refused_is_named_at_once(tmp_path):
    facts = {"decoder_block_count": ("u32", 2), "odd": ("u32", 1), "swin_norm": ("bool", True)}
    with pytest.raises(
        CheckpointError, match=r"decoder_block_count(.|\n)*swin_norm(.|\n)*llama\.odd"
    ):
        config_of(tmp_path, facts=facts)


@pytest.mark.parametrize("name", ["attention.layer_norm_rms_epsilon", "context_length"])
def test_what_llama_cpp_needs_is_needed(tmp_path, name):
    with pytest.raises(CheckpointError, match=rf"the key llama\.{name} is missing"):
        config_of(tmp_path, without=[f"llama.{name}"])


def test_neutral_and_harmless_keys_change_nothing(tmp_path):
    kinds = {bool: "bool", int: "u32", str: "str"}
    facts = {n: (kinds[type(v[0])], v[0]) for n, v in NEUTRAL.items() if v[0] != []}
    facts |= {name: ("str", "x") for name in HARMLESS if name != "rope.scaling.finetuned"}
    facts["general.odd"] = ("u32", 1)
    model = random_model("llama")
    path = write_model(tmp_path / "n.gguf", model, "llama", facts)
    assert hf_config(read_gguf(path)).to_dict() == config_of(tmp_path).to_dict()
    assert config_of(tmp_path).rms_norm_eps == EPS


def test_every_key_that_the_package_knows_is_in_the_table_or_refused():
    """A key is in one table only; those of `gguf` that decide on tokens are all in one."""
    tables = [set(FIELDS), RULED, set(HARMLESS), set(NEUTRAL)]
    assert sum(map(len, tables)) == len(set().union(*tables))
    from gguf.constants import Keys

    for name in ("BOS_ID", "EOS_ID", "EOT_ID", "EOM_ID", "UNK_ID", "PAD_ID", "ADD_BOS", "PRE"):
        assert getattr(Keys.Tokenizer, name) in TOKENIZER_USED
    rotary = {v.removeprefix("{arch}.") for k, v in vars(Keys.Rope).items() if k.isupper()}
    assert rotary <= set().union(*tables)
