"""Attention of a draft layer: causal over the prefix, plus the few keys of a round's own chain.

At step k, query i sees the step-0 keys j <= i and its own chain's keys of steps 1..k. The two parts are
computed apart and merged by their log-sum-exp, so no [T, k*T] score matrix or mask is ever built:

    out = (e^lse · out_prefix + Σ_j e^s_j · v_j) / (e^lse + Σ_j e^s_j),   s_j = q · k_j / sqrt(d)

Heads are split as [heads, T, d]; kv heads are shared by groups of query heads (GQA, arXiv 2305.13245), and
values may be narrower than keys (MLA). A window bounds how far back a query sees; scores are then made in bands.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

#: Queries whose scores are held at a time where no fused kernel reports a log-sum-exp.
QUERY_BLOCK = 256


def causal(
    q: Float[Tensor, "h T d"],
    k: Float[Tensor, "kv T d"],
    v: Float[Tensor, "kv T dv"],
    scale: float | None = None,
    window: int | None = None,
) -> tuple[Float[Tensor, "h T dv"], Float[Tensor, "h T"]]:
    """Query i over keys j <= i, the last `window` of them. Returns the output and each query's log-sum-exp.

    Args:
        scale: of the scores; None for 1 / sqrt(d).
    """
    if q.device.type == "cpu" and window is None:
        short = q.shape[-1] - v.shape[-1]  # the fused kernel wants values as wide as keys
        padded = pad(v, (0, short)) if short else v
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = kernel(q[None], k[None], padded[None], 0.0, True, scale=scale)
        return out[0, ..., : v.shape[-1]], lse[0]
    return rows(q, torch.arange(q.shape[1], device=q.device), k, v, scale, window)


def rows(
    q: Float[Tensor, "h R d"],
    positions: Int[Tensor, " R"],
    k: Float[Tensor, "kv T d"],
    v: Float[Tensor, "kv T dv"],
    scale: float | None = None,
    window: int | None = None,
) -> tuple[Float[Tensor, "h R dv"], Float[Tensor, "h R"]]:
    """As `causal` for the queries at the given positions only, in blocks of `QUERY_BLOCK`.

    A window of 0 or less sees nothing: the output is 0, the log-sum-exp -inf.
    """
    if window is not None and window <= 0:
        return q.new_zeros(*q.shape[:2], v.shape[-1]), q.new_full(q.shape[:2], -torch.inf, dtype=torch.float32)
    outs, lses = [], []
    for block in torch.arange(len(positions), device=q.device).split(QUERY_BLOCK):
        own = positions[block]
        end = int(own.max()) + 1 if len(block) else 0  # a sample may want no row
        begin = max(int(own.min()) + 1 - window, 0) if window is not None and len(block) else 0
        scores = _grouped(q[:, block], k) @ k[:, None, begin:end].transpose(-1, -2)  # [kv, h/kv, R, end - begin]
        scores = scores.float() * _scale(q, scale)
        ages = own[:, None] - torch.arange(begin, end, device=q.device)  # [R, end - begin]
        hidden = ages < 0 if window is None else (ages < 0) | (ages >= window)
        scores = scores.masked_fill(hidden, -torch.inf)
        lses.append(scores.logsumexp(-1).flatten(0, 1))
        outs.append((scores.softmax(-1).to(v.dtype) @ v[:, None, begin:end]).flatten(0, 1))
    return torch.cat(outs, 1), torch.cat(lses, 1)


def with_chain(
    out: Float[Tensor, "h R dv"],
    lse: Float[Tensor, "h R"],
    q: Float[Tensor, "h R d"],
    chain_k: Float[Tensor, "kv R n d"],
    chain_v: Float[Tensor, "kv R n dv"],
    scale: float | None = None,
) -> Float[Tensor, "h R dv"]:
    """The prefix's attention merged with each query's own n chain keys."""
    scores = torch.einsum("ghrd,grnd->ghrn", _grouped(q, chain_k), chain_k).float() * _scale(q, scale)
    scores = scores.flatten(0, 1)  # [h, R, n]
    top = torch.maximum(lse, scores.amax(-1))  # [h, R], so that no exponential overflows
    prefix_weight = (lse - top).exp()
    chain_weights = (scores - top[..., None]).exp()
    total = prefix_weight + chain_weights.sum(-1)
    chain_out = torch.einsum("ghrn,grnd->ghrd", _grouped(chain_weights, chain_v), chain_v.float()).flatten(0, 1)
    return ((prefix_weight[..., None] * out + chain_out) / total[..., None]).to(out.dtype)


def _scale(q: Float[Tensor, "h R d"], scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _grouped(x: Float[Tensor, "h R d"], shared: Tensor) -> Float[Tensor, "kv g R d"]:
    """Query heads by the kv head that they share."""
    return x.unflatten(0, (shared.shape[0], -1))
