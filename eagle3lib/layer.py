"""One decoder layer of a draft, in parts: what it reads, its queries and keys, and what it gives.

    x = cat(rms(embed), rms(g))    the first layer, 2H wide
    x = rms(g)                     any further layer, H wide
    r = rms(g) in a first layer with norm_before_residual, else g; with residual_embedding the embedding in g's place
    y = r + o(attention(x))
    u = y + down(silu(gate(rms(y))) · up(rms(y)))

Every part calls `tap(name, value)` with what it made, so that a server's activations can be compared.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import silu

from eagle3lib import rope
from eagle3lib.config import DraftConfig
from eagle3lib.draft_weights import LatentWeights, LayerWeights, Linear
from eagle3lib.norm import rms_norm

Tap = Callable[[str, Tensor], None]
Turns = tuple[Float[Tensor, "R r/2"], Float[Tensor, "R r/2"]]  # cosines and sines


def untapped(name: str, value: Tensor) -> None:
    """The tap that keeps nothing."""


def layer_input(
    config: DraftConfig,
    w: LayerWeights,
    g: Float[Tensor, "R H"],
    embedding: Float[Tensor, "R H"] | None,
    tap: Tap = untapped,
) -> tuple[Float[Tensor, "R C"], Float[Tensor, "R H"]]:
    """x and the residual source r; `embedding` for the first layer only."""
    normed = rms_norm(g, w.hidden_norm, config.norm_eps)
    if embedding is None:
        tap("hidden_normed", normed)
        return normed, g
    embed_normed = rms_norm(embedding, w.embed_norm, config.norm_eps)
    tap("embed_normed", embed_normed)
    tap("hidden_normed", normed)
    halves = [normed, embed_normed] if config.hidden_first else [embed_normed, normed]
    x = torch.cat(halves, dim=-1)  # [R, 2H]
    sources = (embedding, embed_normed) if config.residual_embedding else (g, normed)
    return x, sources[config.norm_before_residual]


def queries(config: DraftConfig, w: LayerWeights, x: Float[Tensor, "R C"], turns: Turns) -> Float[Tensor, "h R d"]:
    """q of every row, normed and turned.

    q = rope(rms_head(W_q x))                                multi-head; the norm in Qwen3 only
    q = cat(q_nope, rope(q_rope)),  W_up rms(W_down x)       latent
    """
    a = w.attention
    if not isinstance(a, LatentWeights):
        return _turned_heads(config, a.q, a.q_norm, config.n_heads, x, turns)
    latent = x if a.q_down is None else rms_norm(a.q_down(x), a.q_norm, config.mla.norm_eps)  # [R, q_rank]
    q = _heads(a.q_up(latent), config.n_heads)  # [h, R, nope + rope]
    nope, turned = q.split([config.mla.nope_dim, config.mla.rope_dim], dim=-1)
    return torch.cat([nope, rope.rotate(turned, *turns, config.rope.interleaved)], dim=-1)


def keys_values(
    config: DraftConfig, w: LayerWeights, x: Float[Tensor, "R C"], turns: Turns
) -> tuple[Float[Tensor, "kv R d"], Float[Tensor, "kv R dv"]]:
    """k, normed and turned, and v of every row.

    k = rope(rms_head(W_k x)),  v = W_v x                                      multi-head
    c, k_rope = W_down x;  k_nope, v = W_up rms(c);  k = cat(k_nope, rope(k_rope))     latent
    """
    a = w.attention
    if not isinstance(a, LatentWeights):
        k = _turned_heads(config, a.k, a.k_norm, config.n_kv_heads, x, turns)
        return k, _heads(a.v(x), config.n_kv_heads)
    mla = config.mla
    latent, shared = a.kv_down(x).split([mla.kv_rank, mla.rope_dim], dim=-1)
    expanded = _heads(a.kv_up(rms_norm(latent, a.kv_norm, mla.norm_eps)), config.n_heads)  # [h, R, nope + value]
    nope, v = expanded.split([mla.nope_dim, mla.value_dim], dim=-1)
    turned = rope.rotate(shared[None], *turns, config.rope.interleaved).expand(config.n_heads, -1, -1)
    return torch.cat([nope, turned], dim=-1), v


def score_scale(config: DraftConfig) -> float:
    """1 / sqrt(d), and for latent attention under yarn times the square of its mscale_all_dim's scale.

    (transformers, models/deepseek_v3 `yarn_apply_mscale`; the engines do the same)
    """
    scale = config.head_dim**-0.5
    if config.mla and config.rope.kind != "default" and config.rope.mscale_all_dim:
        scale *= rope.yarn_scale(config.rope.factor, config.rope.mscale_all_dim) ** 2
    return scale


def layer_output(
    config: DraftConfig,
    w: LayerWeights,
    residual: Float[Tensor, "R H"],
    heads_out: Float[Tensor, "h R dv"],
    tap: Tap = untapped,
) -> Float[Tensor, "R H"]:
    """u, from the residual source and the heads' outputs."""
    attended = w.o(heads_out.transpose(0, 1).flatten(1))
    tap("attention", attended)
    y = residual + attended
    normed = rms_norm(y, w.mlp_norm, config.norm_eps)
    tap("post_attention", normed)
    mixed = w.down(silu(w.gate(normed)) * w.up(normed))
    tap("mlp", mixed)
    return y + mixed


def _turned_heads(
    config: DraftConfig, projection: Linear, norm: Tensor | None, n: int, x: Float[Tensor, "R C"], turns: Turns
) -> Float[Tensor, "n R d"]:
    heads = _heads(projection(x), n)
    if norm is not None:
        heads = rms_norm(heads, norm, config.norm_eps)
    return rope.rotate(heads, *turns, config.rope.interleaved)


def _heads(x: Float[Tensor, "T n*d"], n: int) -> Float[Tensor, "n T d"]:
    return x.unflatten(-1, (n, -1)).transpose(0, 1)
