"""Attention of a draft layer: causal over the prefix, plus the few keys of a round's own chain.

At step k, query i sees the step-0 keys j <= i and its own chain's keys of steps 1..k. The two parts are
computed apart and merged by their log-sum-exp, so no [T, k*T] score matrix or mask is ever built:

    out = (e^lse · out_prefix + Σ_j e^s_j · v_j) / (e^lse + Σ_j e^s_j),   s_j = q · k_j / sqrt(d)

Heads are split as [heads, T, d]; kv heads are shared by groups of query heads (GQA, arXiv 2305.13245).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Queries whose scores are held at a time where no fused kernel reports a log-sum-exp.
QUERY_BLOCK = 256


def causal(
    q: Float[Tensor, "h T d"], k: Float[Tensor, "kv T d"], v: Float[Tensor, "kv T d"]
) -> tuple[Float[Tensor, "h T d"], Float[Tensor, "h T"]]:
    """Query i over keys j <= i. Returns the output and the log-sum-exp of each query's scores."""
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q[None], k[None], v[None], 0.0, True)
        return out[0], lse[0]
    return rows(q, torch.arange(q.shape[1], device=q.device), k, v)


def rows(
    q: Float[Tensor, "h R d"],
    positions: Int[Tensor, " R"],
    k: Float[Tensor, "kv T d"],
    v: Float[Tensor, "kv T d"],
) -> tuple[Float[Tensor, "h R d"], Float[Tensor, "h R"]]:
    """As `causal` for the queries at the given positions only, in blocks of `QUERY_BLOCK`."""
    outs, lses = [], []
    for block in torch.arange(len(positions), device=q.device).split(QUERY_BLOCK):
        seen = int(positions[block].max()) + 1 if len(block) else 0  # a sample may want no row
        scores = _grouped(q[:, block], k) @ k[:, None, :seen].transpose(-1, -2)  # [kv, h/kv, R, seen]
        scores = scores.float() / q.shape[-1] ** 0.5
        hidden = torch.arange(seen, device=q.device) > positions[block, None]  # [R, seen]
        scores = scores.masked_fill(hidden, -torch.inf)
        lses.append(scores.logsumexp(-1).flatten(0, 1))
        outs.append((scores.softmax(-1).to(v.dtype) @ v[:, None, :seen]).flatten(0, 1))
    return torch.cat(outs, 1), torch.cat(lses, 1)


def with_chain(
    out: Float[Tensor, "h R d"],
    lse: Float[Tensor, "h R"],
    q: Float[Tensor, "h R d"],
    chain_k: Float[Tensor, "kv R n d"],
    chain_v: Float[Tensor, "kv R n d"],
) -> Float[Tensor, "h R d"]:
    """The prefix's attention merged with each query's own n chain keys."""
    scores = torch.einsum("ghrd,grnd->ghrn", _grouped(q, chain_k), chain_k).float() / q.shape[-1] ** 0.5
    scores = scores.flatten(0, 1)  # [h, R, n]
    top = torch.maximum(lse, scores.amax(-1))  # [h, R], so that no exponential overflows
    prefix_weight = (lse - top).exp()
    chain_weights = (scores - top[..., None]).exp()
    total = prefix_weight + chain_weights.sum(-1)
    chain_out = torch.einsum("ghrn,grnd->ghrd", _grouped(chain_weights, chain_v), chain_v.float()).flatten(0, 1)
    return ((prefix_weight[..., None] * out + chain_out) / total[..., None]).to(out.dtype)


def _grouped(x: Float[Tensor, "h R d"], shared: Tensor) -> Float[Tensor, "kv g R d"]:
    """Query heads by the kv head that they share."""
    return x.unflatten(0, (shared.shape[0], -1))
