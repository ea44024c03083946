"""Acceptance along the context: by position in the sequence, and on the two sides of the draft's own limit.

A draft says how far it goes by `max_position_embeddings`. The replay computes every angle, as an engine does that
raises the number; whether the draft is any good beyond what it was trained on is then a matter of measuring:

    a start t lies beyond the limit when its last step's position does:   t + K - 1 >= limit
    AL = 1 + S_1 + ... + S_K over the starts of one side,  lost = AL before - AL beyond, in samples that have both

Positions differ in content too: what precedes the limit is not what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lib.acceptance import length_by_bin
from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Round


@dataclass(frozen=True)
class Sides:
    """Acceptance length over all starts, chain, greedy, bonus included, before and beyond a limit.

    Attributes:
        before, beyond: over the starts of each side, of all samples.
        lost: the first less the second, over the samples that have starts on both sides, resampled together.
        paired: how many samples those are.
    """

    limit: int
    steps: int
    before: Estimate
    beyond: Estimate
    lost: Estimate
    paired: int


def length_by_position(walks: Sequence[Sequence[Round]], edges: Sequence[int]) -> list[tuple[float, Estimate]]:
    """Mean round length along the walk, by the pair at which a round starts; each turn's last round is left out.

    Args:
        walks: the rounds of each sample.
        edges: limits of the position bins, in tokens, ascending.

    Returns:
        The middle of each bin that holds a round, and its mean length with the bonus token.
    """
    return length_by_bin([[(item.start, item) for item in rounds] for rounds in walks], edges)


def sides(rollouts: Sequence[Rollout], limit: int, steps: int) -> Sides:
    """Acceptance before and beyond a limit of positions.

    Raises:
        ValueError: if there are no rollouts or one has fewer steps.
    """
    if not rollouts or min(r.hit.shape[1] for r in rollouts) < steps:
        raise ValueError(f"the two sides of a limit need at least one rollout, each of {steps} steps or more")
    sums = np.stack([_side_sums(rollout, limit, steps) for rollout in rollouts])  # [n, 2, 2, K]
    flat, counts = sums.reshape(len(sums), -1), sums[:, :, 1, 0]  # [n, 4K]; starts of each side [n, 2]
    both = (counts > 0).all(1)
    return Sides(
        limit,
        steps,
        estimate(flat, lambda s: _length(s, 0, steps), counts[:, 0].sum()),
        estimate(flat, lambda s: _length(s, 1, steps), counts[:, 1].sum()),
        estimate(flat[both], lambda s: _length(s, 0, steps) - _length(s, 1, steps), counts[both, 1].sum()),
        int(both.sum()),
    )


def _side_sums(rollout: Rollout, limit: int, steps: int) -> np.ndarray:
    """[2, 2, K]: before and beyond; by step, starts whose drafts up to it are accepted, and starts that could."""
    beyond = (rollout.starts + steps - 1 >= limit).numpy()
    accepted = rollout.hit[:, :steps].int().cumprod(1).numpy()
    possible = rollout.valid[:, :steps].numpy()
    return np.stack([[accepted[side].sum(0), possible[side].sum(0)] for side in (~beyond, beyond)])


def _length(sums: np.ndarray, side: int, steps: int) -> np.ndarray:
    """1 + Σ S_k of one side, NaN without a start; a step that no start reaches adds nothing."""
    first = 2 * steps * side
    reached = sum(np.nan_to_num(ratio(first + k, first + steps + k)(sums)) for k in range(steps))
    return np.where(sums[..., first + steps] > 0, 1 + reached, np.nan)
