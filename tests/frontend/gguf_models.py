"""Random transformers models of every architecture that is read, written as GGUF for tests."""

import numpy as np
import torch
import transformers

from .gguf_writer import f32, gguf

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.down_proj": "ffn_down_exps",
}
POST = {**NAMES, "post_attention_layernorm": "post_attention_norm"}
BETWEEN = {
    **POST,
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OTHERS = {"gemma2": BETWEEN, "gemma3": BETWEEN, "olmo2": BETWEEN, "seed_oss": POST}
EPS = float(np.float32(1e-5))
VOCAB = 40


def random_model(model_type, **fields):
    """A model of 2 layers and 2 KV heads of 8, float32, with weights that make errors show."""
    torch.manual_seed(1)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": EPS,
        "pad_token_id": None,
        "tie_word_embeddings": "gemma" in model_type,
    }
    config = transformers.CONFIG_MAPPING[model_type](**{**sizes, **fields})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.2 if p.ndim > 1 else 0.1))
    return model


def facts_of(config, arch):
    """What every converter states, as entries by name."""
    numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
    }
    facts = {f"{arch}.{name}": ("u32", value) for name, value in numbers.items()}
    facts[f"{arch}.attention.layer_norm_rms_epsilon"] = ("f32", config.rms_norm_eps)
    if hasattr(config, "num_local_experts"):
        facts[f"{arch}.expert_count"] = ("u32", config.num_local_experts)
        facts[f"{arch}.expert_used_count"] = ("u32", config.num_experts_per_tok)
    if arch == "granite":
        facts["granite.logit_scale"] = ("f32", config.logits_scaling)
    return {"general.architecture": ("str", arch), **facts}


def tensors_of(model, arch):
    """The arrays of a model under llama.cpp's names and in its layout."""
    config, tensors = model.config, {}
    state = {name: p.detach().numpy() for name, p in model.named_parameters()}
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    names = OTHERS.get(arch, NAMES)
    for full, array in state.items():
        stem, _, suffix = full.rpartition(".")
        if ".experts." in full:
            stem, suffix = full, "weight"
        if stem.endswith("experts.gate_up_proj"):
            layer = stem.removeprefix("model.layers.").split(".")[0]
            for part, half in zip(("gate", "up"), np.split(array, 2, axis=1)):
                tensors[f"blk.{layer}.ffn_{part}_exps.weight"] = half
            continue
        if stem in whole:
            name = whole[stem]
        else:
            layer, _, part = stem.removeprefix("model.layers.").partition(".")
            name = f"blk.{layer}.{names[part]}"
            if arch in ("llama", "granite") and names[part] in ("attn_q", "attn_k"):
                q = names[part] == "attn_q"
                heads = config.num_attention_heads if q else config.num_key_value_heads
                split = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
                array = split.swapaxes(1, 2).reshape(array.shape)
        tensors[f"{name}.{suffix}"] = array + 1 if "gemma" in arch and "norm" in name else array
    return tensors


def write_model(path, model, arch, facts=(), *, tensors=None, without=()):
    """A GGUF file of the model; `facts` by name within the architecture come on top."""
    every = facts_of(model.config, arch) | {
        name
        if "." in name and name.split(".")[0] in ("general", "tokenizer")
        else f"{arch}.{name}": v
        for name, v in dict(facts).items()
    }
    entries = [(name, *v) for name, v in every.items() if name not in without]
    arrays = tensors_of(model, arch) if tensors is None else tensors
    path.write_bytes(gguf(entries, [(n, a.shape, "F32", f32(a)) for n, a in arrays.items()]))
    return path
