"""K draft steps from every start of a sample at once, teacher-forced on the recorded tokens.

A draft token is accepted exactly when it equals the recorded token, so forcing the recorded tokens loses
nothing: after the first miss a chain's later steps no longer matter. Prefix keys come from target states
everywhere, as servers rewrite them after each verification.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eagle3lib import draft_head, forward, fusion
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.layer import Tap, untapped
from eagle3lib.sample import Sample
from eagle3lib.sampling import Sampling
from eagle3lib.starts import starts_of


@dataclass(frozen=True)
class Rollout:
    """Step k of the round that starts at pair `starts[s]` predicts x[starts[s] + 2 + k].

    Attributes:
        sample: the sample's name.
        starts: [n] every pair at which a round may start, in order.
        turns: [n] which assistant turn each start lies in.
        recorded: [n, K] the recorded tokens, -1 where not valid.
        predicted: [n, K] target ids.
        hit: [n, K] predicted equals recorded, False where not valid.
        logprob: [n, K] natural log-probability of the recorded token, -inf outside the draft vocabulary.
        valid: [n, K] whether the recorded token lies in the start's turn.
        sampling: how the draft draws, where it does not take its likeliest token.
        sampled: [n, K] as `logprob`, under `sampling`.
    """

    sample: str
    starts: Int[Tensor, " n"]
    turns: Int[Tensor, " n"]
    recorded: Int[Tensor, "n K"]
    predicted: Int[Tensor, "n K"]
    hit: Bool[Tensor, "n K"]
    logprob: Float[Tensor, "n K"]
    valid: Bool[Tensor, "n K"]
    sampling: Sampling | None = None
    sampled: Float[Tensor, "n K"] | None = None


@torch.inference_mode()
def rollout(draft: Draft, sample: Sample, wiring: Wiring, steps: int, sampling: Sampling | None = None) -> Rollout:
    """Roll the draft out for `steps` steps from every start of the sample.

    Args:
        sampling: how the draft draws its tokens, for rules that need its probabilities.

    Raises:
        InputError: as `fusion.fuse`.
        ValueError: if steps is below 1.
    """
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, found {steps}")
    starts = starts_of(sample, steps)
    recorded, valid = starts.recorded, starts.valid
    device = draft.device
    predicted = torch.full(valid.shape, -1, device=device)
    logprob = torch.full(valid.shape, -torch.inf, device=device)
    sampled = logprob.clone() if sampling else None
    config = draft.config.under(wiring)
    for k, u in enumerate(chain_states(draft, sample, wiring, steps)):
        rows = valid[:, k].nonzero().flatten()
        own = u[starts.pairs[rows].to(device)]
        choices = draft_head.choose(draft, own, recorded[rows, k].to(device), config, sampling)
        predicted[rows.to(device), k] = choices.predicted
        logprob[rows.to(device), k] = choices.logprob
        if sampling:
            sampled[rows.to(device), k] = choices.sampled
    predicted, logprob, sampled = predicted.cpu(), logprob.cpu(), sampled.cpu() if sampling else None
    hit = (predicted == recorded) & valid
    return Rollout(sample.name, starts.pairs, starts.turns, recorded, predicted, hit, logprob, valid, sampling, sampled)


@torch.inference_mode()
def chain_states(
    draft: Draft, sample: Sample, wiring: Wiring, steps: int, tap: Tap = untapped
) -> Iterator[Float[Tensor, "R H"]]:
    """u of every pair, step by step: row i of step k is pair i's, and predicts x[i + 2 + k].

    Step k has a row for every pair whose input x[i + 1 + k] was recorded; fewer steps come where none was.
    `tap` is called with the name and value of every activation on the way (see `taps`).

    Raises:
        InputError: as `fusion.fuse`.
    """
    if sample.n_pairs < 1:
        return  # the fused kernel divides by the number of pairs
    config = draft.config.under(wiring)
    embedding = draft.embed(sample.token_ids)  # [T, H]
    g, following = fusion.paired(config, fusion.fuse(draft, sample, wiring), embedding)  # [P, H], [T - 1, H]
    u, prefix = forward.first_step(draft, config, g, following[: len(g)], tap)
    yield u
    for k in range(1, steps):
        n = min(len(g), len(following) - k)
        if n <= 0:
            return
        g_back = forward.feedback(draft, config, u[:n])
        u = forward.next_step(draft, config, g_back, following[k : k + n], prefix, tap)
        yield u
