"""How drafts are accepted: the chance of every step from every start, under each rule.

Given a recorded path x, sampled from the target's own distribution p, with q the draft's and d its choice:

    match            d = x                                          greedy decoding
    one-hot draft    d = x                                          at any temperature: the path is a sample
    target only      coin <= p(d), else p without d (SGLang)        the output is d with chance p(d), so d = x
    rejection        min(1, q(x)/p(x))                              Leviathan, arXiv 2211.17192
    block            w_k / w_(k-1),  w_k = min over j <= k of Π_(l<=j) q(x_l)/p(x_l)        arXiv 2403.10444
    thresholds < 1   min(1, p(d)/t_acc), or 1 where p(d) >= t_single                        lossy
    typical          p(d) > min(ε, α e^(-H(p)))                                             lossy, arXiv 2401.10774

Rejection: the draft is x and kept with probability min(q, p), and the output is x with probability p. Block: a
draft's first k tokens X are all kept with probability min(1, r_k, r_k r_(k-1), ...), r = p(X)/q(X); times q/p of
the path that is w_k, and what follows is drawn from p whether or not they were kept, so both rules' events are
independent given the path. Lossy rules also keep tokens that were not recorded, after which the path is
another: their later steps are approximate, as is their walk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.errors import InputError
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Chances
from eagle3lib.sample import Sample
from eagle3lib.sampling import Sampling
from eagle3lib.target import Target

#: Share of recorded tokens that may lie outside a stated truncation: rounding moves tokens over its edge.
OUTSIDE = 0.01


@dataclass(frozen=True)
class Scored:
    """What the target says along one recorded path, by start and step: the distribution at x[t + 1 + k].

    Attributes:
        recorded: log p of the recorded token, -inf where not valid.
        drafted: log p of the draft's choice, -inf where not valid.
        entropy: of p, nats.
        sampling: what p was made with.
    """

    recorded: Float[Tensor, "n K"]
    drafted: Float[Tensor, "n K"]
    entropy: Float[Tensor, "n K"]
    sampling: Sampling


@torch.inference_mode()
def score(
    rollout: Rollout, sample: Sample, target: Target, boundary: Boundary, sampling: Sampling, recorded: Sampling
) -> Scored:
    """The target's probabilities along a sample's path, from its last state.

    Args:
        boundary: of the last state: B(n), or `final_normed`.
        sampling: how the server draws.
        recorded: how the tokens were drawn, as the case states it.

    Raises:
        InputError: if the recording was drawn otherwise than the server draws, as stated or as its tokens show,
            or the sample lacks the state.
    """
    expect_recording(sample, sampling, recorded)
    last = sample.state(boundary)
    n, steps = rollout.valid.shape
    rows = rollout.starts[:, None] + 1 + torch.arange(steps)  # [n, K] the state that says x[t + 2 + k]
    valid = rollout.valid & (rows < len(last))
    used, place = rows[valid].unique(return_inverse=True)
    k = torch.arange(steps).expand(n, -1)[valid]
    # Step k asks each row for one choice; the recorded token is the same from every start that sees the row.
    ids = torch.full((len(used), 1 + steps), -1)
    ids[place, 0] = rollout.recorded[valid]
    ids[place, 1 + k] = rollout.predicted[valid]
    state = last[used].float()
    normed = state if boundary == FINAL_NORMED else target.final_norm(state)
    found = target.distribution(normed, ids, sampling)
    outside = float(found.logprob[:, 0].isinf().double().mean()) if len(used) else 0.0
    if outside > OUTSIDE:
        raise InputError(
            f"{outside:.1%} of the recorded tokens of {sample.name} cannot be drawn with {sampling}; they were drawn"
            " with another truncation. State how in the case, and ask for the same."
        )

    def by_start(found: Tensor) -> Float[Tensor, "n K"]:
        value = torch.full((n, steps), -torch.inf)
        value[valid] = found
        return value

    drafted = found.logprob[place, 1 + k]
    return Scored(by_start(found.logprob[place, 0]), by_start(drafted), by_start(found.entropy[place]), sampling)


def expect_recording(sample: Sample, sampling: Sampling, recorded: Sampling) -> None:
    """Refuse a recording that was drawn otherwise than the server draws.

    Raises:
        InputError: if the temperature or the truncation differs, or nobody stated the temperature.
    """
    if sample.temperature is None:
        raise InputError(
            f"The temperature at which {sample.name} was recorded is not stated; acceptance under {sampling} needs it."
            " State temperature for its dump in the case."
        )
    if sample.temperature != recorded.temperature or recorded != sampling:
        stated = recorded if sample.temperature == recorded.temperature else f"temperature {sample.temperature:g}"
        raise InputError(
            f"{sample.name} was recorded with {stated}, and acceptance was asked for under {sampling}: other tokens"
            " would have followed. Record responses as the server draws them."
        )


def one_hot(rollout: Rollout, sample: Sample, sampling: Sampling, recorded: Sampling) -> Chances:
    """A draft that proposes its likeliest token, verified against sampled tokens without loss: accepted iff d = x.

    So verify vLLM's default, EAGLE's, llama.cpp's and SGLang's default at thresholds 1.

    Raises:
        InputError: as `expect_recording`.
    """
    expect_recording(sample, sampling, recorded)
    return _chances(rollout, rollout.hit, f"one-hot draft, {sampling}")


def rejection_sampling(rollout: Rollout, scored: Scored) -> Chances:
    """Token by token: min(1, q(x)/p(x)).

    Raises:
        ValueError: if the rollout has no probabilities under a sampling.
    """
    ratio = _log_ratio(rollout, scored)
    return _chances(rollout, ratio.clamp_max(0).exp(), f"rejection sampling, {scored.sampling}")


def block_verification(rollout: Rollout, scored: Scored) -> Chances:
    """All drafts of a round at once: the chance w_k / w_(k-1) that one more is kept. It never keeps fewer.

    Raises:
        ValueError: as `rejection_sampling`.
    """
    total = _log_ratio(rollout, scored).cumsum(1)  # log Π q/p
    log_w = torch.cat([torch.zeros(len(total), 1), total], dim=1).double().cummin(1).values
    chance = (log_w[:, 1:] - log_w[:, :-1]).nan_to_num(nan=-torch.inf).exp()
    return _chances(rollout, chance, f"block verification, {scored.sampling}")


def thresholds(rollout: Rollout, scored: Scored, single: float, accumulated: float) -> Chances:
    """SGLang's target-only rule with --speculative-accept-threshold-single and -acc below 1: lossy.

    Raises:
        ValueError: at thresholds of 1, where it is `one_hot`, which is exact.
    """
    if min(single, accumulated) >= 1:
        raise ValueError("at thresholds of 1 the rule accepts exactly where a one-hot draft matches")
    p = scored.drafted.double().exp()
    chance = torch.where(p >= single, 1.0, (p / max(accumulated, 1e-9)).clamp_max(1))
    rule = f"target-only thresholds {single:g} and {accumulated:g}, {scored.sampling}"
    return _chances(rollout, chance, rule, exact_steps=1)


def typical_acceptance(rollout: Rollout, scored: Scored, epsilon: float = 0.09, alpha: float = 0.3) -> Chances:
    """Medusa's rule, with its defaults: the draft's choice is kept where p gives it enough. Lossy."""
    limit = torch.minimum(torch.tensor(epsilon), alpha * (-scored.entropy).exp())
    rule = f"typical acceptance, epsilon {epsilon:g}, alpha {alpha:g}, {scored.sampling}"
    return _chances(rollout, scored.drafted.exp() > limit, rule, exact_steps=1)


def _log_ratio(rollout: Rollout, scored: Scored) -> Float[Tensor, "n K"]:
    """log q(x)/p(x) in float64; a token that p cannot give is one that rounding moved out: q/p counts as 0."""
    if rollout.sampled is None:
        raise ValueError(f"the rollout of {rollout.sample} has no draft probabilities; roll out with a sampling")
    ratio = rollout.sampled.double() - scored.recorded.double()
    return ratio.masked_fill(rollout.sampled.isinf() | scored.recorded.isinf(), -torch.inf)


def _chances(
    rollout: Rollout, chance: Bool[Tensor, "n K"] | Float[Tensor, "n K"], rule: str, exact_steps: int | None = None
) -> Chances:
    chance = chance & rollout.valid if chance.dtype == torch.bool else chance.double().masked_fill(~rollout.valid, 0)
    return Chances(rollout.sample, rollout.starts, rollout.turns, chance, rollout.valid, rule, exact_steps)
