"""Tiny language models with random weights: one for each variant the compiler must know."""

import torch
import transformers

BASE = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=1024,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)

# name -> (config class, what differs from BASE)
VARIANTS = {
    "llama": ("LlamaConfig", dict(tie_word_embeddings=False)),
    "llama-tied": ("LlamaConfig", dict(tie_word_embeddings=True)),
    "qwen3": ("Qwen3Config", dict(tie_word_embeddings=True)),  # QK norm
    "gemma2": (  # softcaps, sliding window on every other layer, post norms, scaled embedding
        "Gemma2Config",
        dict(sliding_window=24, query_pre_attn_scalar=16, attn_logit_softcapping=5.0),
    ),
    "mistral": ("MistralConfig", dict(sliding_window=24, tie_word_embeddings=False)),
    "phi3": (  # joined projections, partial rotary
        "Phi3Config",
        dict(partial_rotary_factor=0.5, tie_word_embeddings=False),
    ),
}

# those whose graphs are checked elsewhere on the CPU, and whose kernels are built and run on GPUs
MORE = {
    "gemma3": (  # norms of queries and keys, two rotary bases
        "Gemma3TextConfig",
        dict(sliding_window=24, layer_types=["sliding_attention", "full_attention"]),
    ),
    "gpt2": ("GPT2Config", dict(num_key_value_heads=4)),  # biases, learned positions, layer norms
}


def make(variant: str, seed: int = 0, **changes) -> torch.nn.Module:
    """A model in float32 and evaluation mode."""
    name, more = {**VARIANTS, **MORE}[variant]
    fields = {**BASE, **more, **changes}
    if variant == "phi3":
        fields.pop("head_dim")
    config = getattr(transformers, name)(**fields)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    # random weights of the usual size make nearly uniform attention: sharpen what tests look at
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.dim() > 1 else parameter.add_(
                0.1 * torch.randn_like(parameter)
            )
    return model


def eager_logits(model: torch.nn.Module, tokens: list[int], dtype=torch.float64) -> torch.Tensor:
    """Logits [tokens, V] of transformers eager in `dtype`."""
    import copy

    wide = copy.deepcopy(model).to(dtype)
    wide.set_attn_implementation("eager")
    with torch.no_grad():
        return wide(torch.tensor([tokens]), use_cache=False).logits[0]


def greedy(model: torch.nn.Module, tokens: list[int], count: int) -> list[int]:
    """The next `count` tokens of transformers eager, greedily."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model.generate(
            torch.tensor([tokens]),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, len(tokens) :].tolist()
