"""Tiny random causal language models of transformers, by their types, through `LLM`.

Run as a script it generates with each in a process of its own, one prompt alone and three together,
and says which give the tokens of eager, the most likely ones:

    python -m tilewright.tests.models.causal_types [--only llama,gpt2] [--out FILE.jsonl] [--jobs 4]
    python docs/causal_types.py FILE.jsonl...

`--stage` says where: on a target, or by the reference, which needs no compiler. The second command
writes docs/causal_types.md.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

from . import apart

Prompts = list[list[int]]

TOKENS = 12  # that are generated
PROMPTS = (5, 12, 19)  # how long they are

# attributes of configs that have them: tiny values
SMALL: dict[str, Any] = {
    **dict.fromkeys(
        "hidden_size n_embd d_model embed_dim dim word_embed_proj_dim embedding_size d_embed"
        " hidden_dim shared_intermediate_size mamba_d_ssm lru_width".split(),
        64,
    ),
    **dict.fromkeys(
        "intermediate_size ffn_dim n_inner d_ff feed_forward_size decoder_ffn_dim encoder_ffn_dim"
        " dff ffn_hidden_size".split(),
        128,
    ),
    **dict.fromkeys(
        "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_blocks"
        " num_key_value_heads num_kv_heads num_experts_per_tok moe_k top_k_experts moe_topk"
        " n_mamba_heads linear_num_key_heads".split(),
        2,
    ),
    **dict.fromkeys(
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads"
        " encoder_attention_heads num_experts num_local_experts n_routed_experts moe_num_experts"
        " mamba_n_heads mamba_num_heads time_step_rank mamba_dt_rank"
        " linear_num_value_heads".split(),
        4,
    ),
    **dict.fromkeys(
        "first_k_dense_replace n_group topk_group num_expert_group n_shared_experts mamba_n_groups"
        " n_groups mamba_ngroups".split(),
        1,
    ),
    **dict.fromkeys(
        "max_position_embeddings n_positions n_ctx max_seq_len seq_length".split(), 256
    ),
    **dict.fromkeys(
        "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size expert_dim"
        " q_lora_rank mamba_d_head".split(),
        32,
    ),
    **dict.fromkeys(
        "head_dim kv_lora_rank qk_nope_head_dim v_head_dim mamba_head_dim mamba_headdim"
        " linear_key_head_dim linear_value_head_dim block_size".split(),
        16,
    ),
    **dict.fromkeys(
        "rotary_dim qk_rope_head_dim state_size ssm_state_size mamba_d_state mamba_chunk_size"
        " chunk_size sliding_window attention_window".split(),
        8,
    ),
    "qk_head_dim": 24,
    "vocab_size": 512,
    "unpadded_vocab_size": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# of these the value is set although the class says None
UNSET = frozenset("pad_token_id bos_token_id eos_token_id".split())

_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
_CONV = {"layer_types": ["conv", "full_attention"]}
_PART = {"vocab_size": 512, "hidden_size": 64, "hidden_size_global": 64, "intermediate_size": 64}
_PART |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
# what a type needs besides
MORE: dict[str, dict[str, Any]] = {
    "bailing_hybrid": _LINEAR
    | {"num_experts_per_token": 2, "linear_head_dim": 16, "num_nextn_predict_layers": 0},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16},
    "blt": {f"{part}_config": _PART for part in ("patcher", "encoder", "decoder", "global")}
    | {"encoder_hash_byte_group_vocab": 100},
    "cohere2": _SLIDING,
    "cohere_compass_text": _SLIDING
    | {
        "rope_parameters": {
            layer: {"rope_type": "default", "rope_theta": 10000.0}
            for layer in _SLIDING["layer_types"]
        }
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "exaone4": _SLIDING,
    "falcon": {"num_kv_heads": 4},
    "falcon_h1": {"mamba_d_head": 16},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": _SLIDING | {"query_pre_attn_scalar": 16},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": 2 * _SLIDING["layer_types"],
        "num_kv_shared_layers": 2,
        "intermediate_size": [128] * 4,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 512,
        "laurel_rank": 8,
    },
    "gemma4_text": {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 512},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
    },
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "jetmoe": {"kv_channels": 16},
    "kimi_linear": _LINEAR
    | {"num_experts_per_token": 2, "linear_head_dim": 16, "linear_num_heads": 4},
    "lfm2": _CONV,
    "lfm2_moe": _CONV | {"num_dense_layers": 1},
    "llama4_text": {
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "no_rope_layers": [1, 0],
        "attention_chunk_size": 8,
        "intermediate_size_mlp": 128,
    },
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8},
    "minimax": _LINEAR | {"block_size": 4},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"mamba_num_heads": 8, "moe_shared_expert_intermediate_size": 32},
    "olmo3": _SLIDING,
    "qwen3_5_moe_text": _LINEAR,
    "qwen3_5_text": _LINEAR,
    "qwen3_next": _LINEAR,
    "qwen4_exp_text": _LINEAR
    | {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 32,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 8},
    "smollm3": {"no_rope_layers": [1, 0]},
    "zamba": {
        "num_hidden_layers": 5,  # two of them share their attention
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_key_value_heads": 4,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        "n_mamba_heads": 8,
        "num_key_value_heads": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
        "adapter_rank": 8,
    },
    "zaya": {"num_experts_per_tok": 1},
}

# registered for the decoder of an encoder-decoder, for a masked model, or for a model of several
# modalities, whose text part is a type of its own
OTHERS = frozenset(
    """bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert
    data2vec-text electra emu3 ernie fuyu git got_ocr2 marian mbart megatron-bert mllama moshi
    musicgen musicgen_melody mvp pegasus plbart prophetnet rembert roberta roberta-prelayernorm
    roc_bert roformer trocr whisper xlm xlm-roberta xlm-roberta-xl xmod gemma3 gemma3n gemma4
    gemma4_unified gemma4_assistant gemma4_unified_assistant llama4 qwen3_5 qwen3_5_moe qwen4_exp
    dots3_note moss_transcribe_diarize reformer phi4_multimodal""".split()
)


def types() -> list[str]:
    """The types of causal language models that transformers knows."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return [kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if kind not in OTHERS]


def tiny_config(kind: str) -> Any:
    """The config of a model with tiny sizes."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[kind]
    default = cls()
    default.allow_global_per_layer_attribute_access = True
    known = default.to_dict().keys() - getattr(cls, "attribute_map", {}).keys()
    given = {}
    for name in SMALL.keys() & known:
        now = getattr(default, name, None)
        if name in UNSET if now is None else not isinstance(now, list | tuple | bool):
            given[name] = SMALL[name]
    if "kv_lora_rank" in given:  # the size of heads follows from others, and all have keys
        given.pop("head_dim", None)
        given["num_key_value_heads"] = given["num_attention_heads"]
    return cls(**given | MORE.get(kind, {}))


def tiny_model(kind: str) -> Any:
    """A model with random weights, in eval mode."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(kind))
    return apart.perturb(model.float().eval())


def check(kind: str, stage: str = "cpu") -> apart.Row:
    """What happens to one type: each step's outcome, or the error that ended it."""
    import torch

    import tilewright

    row: apart.Row = {"stage": stage, "step": "eager"}
    start = time.perf_counter()
    torch.set_num_threads(1)
    try:
        model = tiny_model(kind)
        rng = torch.Generator().manual_seed(1)
        prompts = [torch.randint(3, 500, (n,), generator=rng).tolist() for n in PROMPTS]
        right = [eager(model, prompt) for prompt in prompts]
        row["step"] = "compile"
        by = by_reference(model) if stage == "reference" else by_engine(model, stage)
        row["step"] = "generate"
        row["is_right"] = by(prompts[1:2]) == right[1:2], by(prompts) == right
        row["step"] = "done"
    except Exception as error:  # noqa: BLE001  a row of the table
        row["error"] = apart.described(error)
        row["is_refused"] = isinstance(error, tilewright.TilewrightError)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def eager(model: Any, prompt: list[int]) -> list[int]:
    """The most likely next tokens, all computed anew for each."""
    import torch

    ids = list(prompt)
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def by_engine(model: Any, target: str) -> Callable[[Prompts], Prompts]:
    """The same by the engine, for all prompts in one batch."""
    import tilewright

    llm = tilewright.LLM(
        model, dtype="float32", kv_cache_bytes=1 << 24, target=target, max_model_len=64
    )
    options = tilewright.SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)

    def generated(prompts: Prompts) -> Prompts:
        results = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], options)
        return [list(result.outputs[0].token_ids) for result in results]

    return generated


def by_reference(model: Any) -> Callable[[Prompts], Prompts]:
    """The same by the paged graph, node by node in NumPy."""
    from tilewright import passes
    from tilewright.frontend.huggingface import capture_causal_lm
    from tilewright.ir.evaluate import evaluate

    from ..passes.test_page_kv import PAGE, Engine

    captured = capture_causal_lm(model)
    pipeline = passes.PIPELINES["language-model"](page_size=PAGE, samples=False)
    result = passes.run(captured.graph, pipeline)
    names = [weight.name for weight in result.graph.weights]
    prepared, _ = evaluate(result.prepare, {}, captured.weights)

    def generated(prompts: Prompts) -> Prompts:
        engine = Engine(result.graph, dict(zip(names, prepared, strict=True)))
        found: Prompts = [[] for _ in prompts]
        new = list(prompts)
        for _ in range(TOKENS):
            (logits, *_), lengths = engine.step(list(enumerate(new))), map(len, new)
            new = [[int(logits[end - 1].argmax())] for end in itertools.accumulate(lengths)]
            found = [tokens + more for tokens, more in zip(found, new)]
        return found

    return generated


if __name__ == "__main__":
    import tilewright.api.build_model
    import tilewright.frontend.huggingface  # noqa: F401  before forking

    apart.main(str(__doc__), check, types(), ("reference", "sm_90", "cpu"))
