"""The draft's head: logits over the draft vocabulary, a few rows at a time, and what it chooses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear

from eagle3lib.checkpoint import Draft
from eagle3lib.config import DraftConfig
from eagle3lib.norm import rms_norm
from eagle3lib.sampling import Sampling, distribution

#: Logits that are held at a time, in float32: 16 MiB.
HEAD_BLOCK = 2**22


def logits(draft: Draft, u: Float[Tensor, "R H"], config: DraftConfig | None = None) -> Float[Tensor, "R Vd"]:
    """lm_head(rms(u)), or lm_head(u) without norm_head, in the draft's dtype."""
    config = config or draft.config
    return linear(rms_norm(u, draft.weights.norm, config.norm_eps) if config.norm_head else u, draft.weights.head)


@dataclass(frozen=True)
class Choices:
    """What the draft says at each row: its choice and what it gives the recorded token."""

    predicted: Int[Tensor, " R"]  # target ids
    logprob: Float[Tensor, " R"]  # of the recorded token, -inf outside the draft vocabulary
    sampled: Float[Tensor, " R"] | None = None  # the same under a sampling, where one was asked for


def choose(
    draft: Draft,
    u: Float[Tensor, "R H"],
    recorded: Int[Tensor, " R"],
    config: DraftConfig | None = None,
    sampling: Sampling | None = None,
) -> Choices:
    """Greedy choice and log-probability of the recorded token, a few rows of logits at a time.

    Args:
        sampling: how the draft draws its tokens, where it does not take the likeliest.
    """
    predicted, logprob, sampled = [], [], []
    labels = draft.draft_ids[recorded]  # [R], -1 outside the draft vocabulary
    for block, label in zip(_blocks(draft, u), _blocks(draft, labels), strict=True):
        z = logits(draft, block, config).float()
        predicted.append(draft.target_ids[z.argmax(-1)])
        value = z.gather(-1, label.clamp_min(0)[:, None])[:, 0] - z.logsumexp(-1)
        logprob.append(value.masked_fill(label < 0, -torch.inf))
        if sampling:
            sampled.append(distribution(z, label[:, None], sampling).logprob[:, 0])
    return Choices(torch.cat(predicted), torch.cat(logprob), torch.cat(sampled) if sampling else None)


def greedy(draft: Draft, u: Float[Tensor, "R H"], config: DraftConfig | None = None) -> Int[Tensor, " R"]:
    """The choice alone, as target ids, a few rows of logits at a time."""
    return draft.target_ids[torch.cat([logits(draft, block, config).argmax(-1) for block in _blocks(draft, u)])]


def best(
    draft: Draft, u: Float[Tensor, "R H"], n: int, config: DraftConfig | None = None
) -> tuple[Int[Tensor, "R n"], Float[Tensor, "R n"]]:
    """The n likeliest tokens of each row, best first, as target ids, and their natural log-probabilities.

    Of equal ones the lower draft id comes first. All of the draft vocabulary where it is smaller than n.
    """
    ids, logprobs = [], []
    for block in _blocks(draft, u):
        z = logits(draft, block, config).float()
        values, found = z.topk(min(n, z.shape[-1]))
        found, order = found.sort(-1)
        values, again = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
        ids.append(draft.target_ids[found.gather(-1, again)])
        logprobs.append((values - z.logsumexp(-1, keepdim=True)).clamp_max(0))  # rounding may leave it above
    return torch.cat(ids), torch.cat(logprobs)


def _blocks(draft: Draft, rows: Tensor) -> tuple[Tensor, ...]:
    return rows.split(max(HEAD_BLOCK // draft.config.draft_vocab_size, 1))
