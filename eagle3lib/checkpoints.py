"""Several drafts or training checkpoints over one dump: which one serves best, and when training stopped helping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lib.acceptance import acceptance, length_difference
from eagle3lib.bootstrap import Estimate
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Chances


@dataclass(frozen=True)
class Contender:
    """One draft of several.

    Attributes:
        step: of training, None where the drafts are no checkpoints of one run.
        loss: as the trainer reported it for this step, None unknown.
        behind: the best draft's length less this one's, paired by sample; zero width for the best itself.
        best: the longest.
        tie: cannot be told from the best.
    """

    name: str
    length: Estimate
    behind: Estimate
    best: bool
    tie: bool
    step: int | None = None
    loss: float | None = None


def compare(
    rollouts: Mapping[str, Sequence[Rollout | Chances]],
    steps: int,
    training: Mapping[str, tuple[int, float | None]] | None = None,
) -> list[Contender]:
    """Every draft's acceptance length along the walk, and how far it is behind the best, in the order given.

    Args:
        rollouts: by draft, of the same samples in the same order.
        training: step and loss of the drafts that are checkpoints.

    Raises:
        ValueError: if there is no draft, or they were rolled out on other samples.
    """
    if not rollouts:
        raise ValueError("compare needs at least one draft")
    lengths = {name: acceptance(own, steps).walk.length for name, own in rollouts.items()}
    best = max(lengths, key=lambda name: np.nan_to_num(lengths[name].value, nan=-np.inf))
    found = []
    for name, own in rollouts.items():
        behind = length_difference(rollouts[best], own, steps)
        step, loss = (training or {}).get(name, (None, None))
        tie = name != best and not behind.excludes_zero
        found.append(Contender(name, lengths[name], behind, name == best, tie, step, loss))
    return found


def contender_rows(found: Sequence[Contender]) -> list[dict]:
    """One row a draft, for a table."""
    return [
        {
            "draft": c.name,
            "step": c.step,
            "loss": c.loss,
            "length": c.length.value,
            "low": c.length.low,
            "high": c.length.high,
            "behind the best": c.behind.value,
            "verdict": "best" if c.best else verdict_of(c.behind),
            "rounds": c.length.count,
        }
        for c in found
    ]


def verdict_of(difference: Estimate) -> str:
    """A difference in words: told apart, or how many rounds would tell."""
    if difference.excludes_zero:
        return "told apart"
    if not difference.value:
        return "cannot tell: no difference seen"
    if not np.isfinite(difference.count_to_tell):
        return "cannot tell: needs two samples or more"
    return f"cannot tell; about {difference.count_to_tell:.0f} rounds would"
