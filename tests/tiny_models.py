"""Tiny random causal language models of many architectures, for the tests of capturing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

N_LAYERS = 3
VOCAB = 97
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS = {**COMMON, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
OLD = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": N_LAYERS, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
OPT = {"vocab_size": VOCAB, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": N_LAYERS, "num_attention_heads": 4}
LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}

#: config class of transformers → what makes it small
CAPTURED: dict[str, dict[str, Any]] = {
    "LlamaConfig": COMMON,
    "Qwen2Config": COMMON,
    "Qwen3Config": HEADS,
    "Qwen3MoeConfig": {**HEADS, **EXPERTS},
    "MixtralConfig": {
        **COMMON,
        "num_local_experts": N_LAYERS,
    },  # as many experts as blocks: another list of that length
    "Gemma2Config": HEADS,  # scaled embedding, soft-capped logits
    "Gemma3TextConfig": HEADS,
    "GPT2Config": OLD,
    "GPTNeoXConfig": COMMON,
    "PhiConfig": COMMON,  # attention and MLP in parallel, a head with a bias
    "Phi3Config": COMMON,
    "CohereConfig": COMMON,  # scaled logits
    "GraniteConfig": {**COMMON, "logits_scaling": 8.0, "embedding_multiplier": 12.0},
    "DeepseekV3Config": {**COMMON, **LATENT},
    "GptOssConfig": {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "OPTConfig": {**OPT, "word_embed_proj_dim": 32},
    "BloomConfig": {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": N_LAYERS, "n_head": 4},  # norms its embedding
}
#: what has no B(0) .. B(n), or not where it is looked for → config class, settings, what the sentence must say
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "projected": ("OPTConfig", {**OPT, "word_embed_proj_dim": 16}, "final_layer_norm, model.decoder.project_out"),
    "without a norm": ("OpenAIGPTConfig", OLD, "between its last block and its head runs nothing"),
    "several streams": (
        "Gemma3nTextConfig",
        {
            **HEADS,
            "intermediate_size": [48] * N_LAYERS,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "num_kv_shared_layers": 0,
            "layer_types": ["full_attention"] * N_LAYERS,
            "activation_sparsity_pattern": [0.0] * N_LAYERS,
        },
        "block 0 does not read one residual stream",
    ),
}


def tiny_model(kind: str, settings: dict[str, Any], edit: Callable[[Any], None] | None = None):
    """A model of a config class, its weights random but large enough that its logits differ."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, kind)(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    if edit:
        edit(model)
    return model
