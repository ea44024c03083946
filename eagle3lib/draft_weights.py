"""The pass's weights, and which tensor of a checkpoint each of them is. Names as `dialects` makes them canonical."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from eagle3lib.config import DraftConfig

Shapes = dict[str, tuple[int, ...]]
Read = Callable[[str], Tensor | None]


class Linear(NamedTuple):
    """x W^T + b, the weight [out, in] as stored."""

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None = None

    def __call__(self, x: Float[Tensor, "*T in"]) -> Float[Tensor, "*T out"]:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class HeadsWeights:
    """Multi-head attention, kv heads shared or not; with Qwen3's norms of each query and key head or without."""

    q: Linear  # [h*d, C], C = 2H in the first layer and H in the others
    k: Linear  # [kv*d, C]
    v: Linear  # [kv*d, C]
    q_norm: Float[Tensor, " d"] | None = None
    k_norm: Float[Tensor, " d"] | None = None


@dataclass(frozen=True)
class LatentWeights:
    """Multi-head latent attention: queries and keys by way of low-rank latents, one turned key for all heads."""

    q_down: Linear | None  # [q_rank, C]; None where `q_up` reads the layer's input
    q_norm: Float[Tensor, " q_rank"] | None
    q_up: Linear  # [h*(nope + rope), q_rank]
    kv_down: Linear  # [kv_rank + rope, C]
    kv_norm: Float[Tensor, " kv_rank"]
    kv_up: Linear  # [h*(nope + value), kv_rank]


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Only the first reads an embedding beside the hidden state."""

    embed_norm: Float[Tensor, " H"] | None
    hidden_norm: Float[Tensor, " H"]
    attention: HeadsWeights | LatentWeights
    o: Linear  # [H, h*dv]
    mlp_norm: Float[Tensor, " H"]
    gate: Linear  # [I, H]
    up: Linear  # [I, H]
    down: Linear  # [H, I]


@dataclass(frozen=True)
class DraftWeights:
    """All weights in one dtype on one device. Symbols as in `forward`; the embedding is read by rows elsewhere."""

    fc: Float[Tensor, "H A*Ht"] | None
    fc_bias: Float[Tensor, " H"] | None
    input_norms: tuple[Float[Tensor, " _"], ...]  # one for norm_before_fc, A for fc_norm, none otherwise
    layers: tuple[LayerWeights, ...]
    norm: Float[Tensor, " H"]
    head: Float[Tensor, "Vd H"]


def layer_prefix(layer: int) -> str:
    """The canonical beginning of a layer's tensor names."""
    return f"layers.{layer}."


def expected_shapes(config: DraftConfig) -> Shapes:
    """Canonical name → shape of every weight that a pass of this config reads; biases and q/k norms may be absent.

    The embedding, the head and the vocabulary maps, which have stand-ins, are `substitutable_shapes`.
    """
    hidden, width = config.hidden_size, config.n_slots * config.target_hidden_size
    shapes: Shapes = {"norm.weight": (hidden,)}
    if config.uses_fc:
        shapes |= {"fc.weight": (hidden, width)}
    if config.input_norm == "concat":
        shapes["input_norm.weight"] = (width,)
    if config.input_norm == "slots":
        shapes |= {f"fc_norm.{i}.weight": (config.target_hidden_size,) for i in range(config.n_slots)}
    for i in range(config.n_layers):
        shapes |= {layer_prefix(i) + name: shape for name, shape in _layer_shapes(config, i).items()}
    return shapes


def substitutable_shapes(config: DraftConfig) -> Shapes:
    """The tensors that a draft may leave to its target."""
    head, vocab = config.draft_vocab_size, config.vocab_size
    return {
        "embed_tokens.weight": (vocab, config.hidden_size),
        "lm_head.weight": (head, config.hidden_size),
        "d2t": (head,),
        "t2d": (vocab,),
    }


def optional_shapes(config: DraftConfig) -> Shapes:
    """Biases, and norms of query and key heads: used where present."""
    shapes = {
        name.removesuffix("weight") + "bias": shape[:1]
        for name, shape in expected_shapes(config).items()
        if len(shape) == 2 and name.endswith("weight")
    }
    if config.mla is None:
        for i in range(config.n_layers):
            shapes |= {f"{layer_prefix(i)}self_attn.{x}_norm.weight": (config.head_dim,) for x in "qk"}
    return shapes


def _layer_shapes(config: DraftConfig, layer: int) -> Shapes:
    hidden, inter, heads, mla = config.hidden_size, config.intermediate_size, config.n_heads, config.mla
    columns = hidden if layer else 2 * hidden
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inter, hidden),
        "mlp.up_proj.weight": (inter, hidden),
        "mlp.down_proj.weight": (hidden, inter),
    }
    if layer == 0:
        shapes["hidden_norm.weight"] = (hidden,)
    if mla is None:
        shapes |= {
            "self_attn.q_proj.weight": (heads * config.head_dim, columns),
            "self_attn.k_proj.weight": (config.n_kv_heads * config.head_dim, columns),
            "self_attn.v_proj.weight": (config.n_kv_heads * config.head_dim, columns),
            "self_attn.o_proj.weight": (hidden, heads * config.head_dim),
        }
        return shapes
    if mla.q_rank is None:
        shapes["self_attn.q_proj.weight"] = (heads * config.head_dim, columns)
    else:
        shapes |= {
            "self_attn.q_a_proj.weight": (mla.q_rank, columns),
            "self_attn.q_a_layernorm.weight": (mla.q_rank,),
            "self_attn.q_b_proj.weight": (heads * config.head_dim, mla.q_rank),
        }
    return shapes | {
        "self_attn.kv_a_proj_with_mqa.weight": (mla.kv_rank + mla.rope_dim, columns),
        "self_attn.kv_a_layernorm.weight": (mla.kv_rank,),
        "self_attn.kv_b_proj.weight": (heads * (mla.nope_dim + mla.value_dim), mla.kv_rank),
        "self_attn.o_proj.weight": (hidden, heads * mla.value_dim),
    }


def gather(config: DraftConfig, read: Read, head: Tensor) -> DraftWeights:
    """The weights of a pass of this config, each read by its canonical name; `read` gives None for an absent one."""
    norms = {"none": [], "concat": ["input_norm"], "slots": [f"fc_norm.{i}" for i in range(config.n_slots)]}
    return DraftWeights(
        fc=read("fc.weight") if config.uses_fc else None,
        fc_bias=read("fc.bias") if config.uses_fc else None,
        input_norms=tuple(read(f"{name}.weight") for name in norms[config.input_norm]),
        layers=tuple(_gather_layer(config, read, i) for i in range(config.n_layers)),
        norm=read("norm.weight"),
        head=head,
    )


def _gather_layer(config: DraftConfig, read: Read, layer: int) -> LayerWeights:
    def weight(name: str) -> Tensor | None:
        return read(f"{layer_prefix(layer)}{name}.weight")

    def affine(name: str) -> Linear:
        return Linear(weight(name), read(f"{layer_prefix(layer)}{name}.bias"))

    if config.mla is None:
        q, k, v = (affine(f"self_attn.{name}_proj") for name in "qkv")
        attention = HeadsWeights(q, k, v, weight("self_attn.q_norm"), weight("self_attn.k_norm"))
    else:
        low_rank = config.mla.q_rank is not None
        attention = LatentWeights(
            q_down=affine("self_attn.q_a_proj") if low_rank else None,
            q_norm=weight("self_attn.q_a_layernorm") if low_rank else None,
            q_up=affine("self_attn.q_b_proj" if low_rank else "self_attn.q_proj"),
            kv_down=affine("self_attn.kv_a_proj_with_mqa"),
            kv_norm=weight("self_attn.kv_a_layernorm"),
            kv_up=affine("self_attn.kv_b_proj"),
        )
    return LayerWeights(
        embed_norm=weight("input_layernorm") if layer == 0 else None,
        hidden_norm=weight("hidden_norm" if layer == 0 else "input_layernorm"),
        attention=attention,
        o=affine("self_attn.o_proj"),
        mlp_norm=weight("post_attention_layernorm"),
        gate=affine("mlp.gate_proj"),
        up=affine("mlp.up_proj"),
        down=affine("mlp.down_proj"),
    )
