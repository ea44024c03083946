"""Drafts of two known shapes with random weights, written tensor by tensor in speculators' form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class Shape:
    """The sizes of a one-layer Llama draft on three slots."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    dtype: torch.dtype

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of every tensor but d2t."""
        h, i = self.hidden_size, self.intermediate_size
        q, kv = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        layer = "layers.0."
        return {
            "embed_tokens.weight": (self.vocab_size, h),
            "lm_head.weight": (self.draft_vocab_size, h),
            "fc.weight": (h, 3 * h),
            "norm.weight": (h,),
            layer + "input_layernorm.weight": (h,),
            layer + "hidden_norm.weight": (h,),
            layer + "post_attention_layernorm.weight": (h,),
            layer + "self_attn.q_proj.weight": (q, 2 * h),
            layer + "self_attn.k_proj.weight": (kv, 2 * h),
            layer + "self_attn.v_proj.weight": (kv, 2 * h),
            layer + "self_attn.o_proj.weight": (h, q),
            layer + "mlp.gate_proj.weight": (i, h),
            layer + "mlp.up_proj.weight": (i, h),
            layer + "mlp.down_proj.weight": (h, i),
        }


#: The bundled SmolLM2-135M draft's, and that of a draft for Kimi-K2.5.
SHAPES = {
    "bundled": Shape(576, 1536, 9, 3, 64, 49152, 4096, torch.float32),
    "kimi": Shape(7168, 18432, 64, 8, 128, 163840, 32000, torch.bfloat16),
    "small": Shape(64, 128, 4, 2, 16, 512, 128, torch.float32),
}


def write_draft(shape: Shape, folder: Path) -> Path:
    """The draft's folder, one file a tensor so that only one is in memory; left alone where it is whole."""
    if (folder / "config.json").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    source, weight_map = torch.Generator().manual_seed(0), {}
    for name, size in shape.tensors().items():
        scale = size[-1] ** -0.5 if len(size) == 2 and name != "embed_tokens.weight" else 1.0
        tensor = torch.empty(size, dtype=shape.dtype)
        for rows in tensor.split(4096):
            rows.copy_(scale * torch.randn(rows.shape, generator=source) if len(size) == 2 else torch.ones(rows.shape))
        weight_map[name] = f"{name}.safetensors"
        save_file({name: tensor}, folder / weight_map[name])
    spread = torch.arange(shape.draft_vocab_size) * (shape.vocab_size // shape.draft_vocab_size)
    save_file({"d2t": spread - torch.arange(shape.draft_vocab_size)}, folder / "d2t.safetensors")
    weight_map["d2t"] = "d2t.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    layer = {k: v for k, v in asdict(shape).items() if k not in ("dtype", "draft_vocab_size")}
    config = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": shape.draft_vocab_size,
        "transformer_layer_config": {
            **layer,
            "model_type": "llama",
            "num_hidden_layers": 1,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        },
    }
    (folder / "config.json").write_text(json.dumps(config))  # last: its presence says that the rest is whole
    return folder
