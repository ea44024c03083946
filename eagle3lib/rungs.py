"""A repair's rungs, judged: what each brings back on prompts that it has not seen, against the true wiring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eagle3lib.acceptance import Acceptance, acceptance, length_difference, walk_histograms
from eagle3lib.bootstrap import Estimate, estimate, share_back
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.material import Material
from eagle3lib.rollout import Rollout

#: Tokens a round that may be lost without a word.
MARGIN = 0.05


@dataclass(frozen=True, eq=False)
class Rung:
    """A draft on the ladder, judged.

    Attributes:
        found: its acceptance on the judged prompts.
        gain: acceptance length above the last offered rung, paired; None for the first.
        lost: what the true wiring has more, paired.
        recovered: share of what the served wiring lost that came back.
        worst: what the quarter of the prompts that lose most lose, in tokens a round.
        offered: the gain is told apart from none.
        suffices: what is still lost is below the margin.
    """

    name: str
    draft: Draft = field(repr=False)
    rollouts: list[Rollout] = field(repr=False)
    found: Acceptance = field(repr=False)
    gain: Estimate | None
    lost: Estimate
    recovered: Estimate
    worst: float
    offered: bool = False
    suffices: bool = False

    def to_json(self) -> dict:
        """Plain data for a results file."""
        return {
            "length": self.found.walk.length.to_json(),
            "gain": self.gain.to_json() if self.gain else None,
            "lost": self.lost.to_json(),
            "recovered": self.recovered.to_json(),
            "worst_quarter_loses": self.worst,
            "conditional": [c.value for c in self.found.walk.conditional],
            "offered": self.offered,
            "suffices": self.suffices,
        }


class Judge:
    """Holds drafts against the true wiring on prompts that they have not seen."""

    def __init__(self, draft: Draft, trained: Wiring, served: Wiring, judged: Material, steps: int) -> None:
        self.served, self.judged, self.steps = served, judged, steps
        self.true = judged.true_rollouts(draft, trained, steps)
        self.broken = judged.rollouts(draft, served, steps)

    def rung(self, name: str, draft: Draft, below: Rung | None = None, margin: float = MARGIN) -> Rung:
        """A draft as it is served, judged; without a rung below it is the served one, whose rollouts are at hand."""
        rollouts = self.judged.rollouts(draft, self.served, self.steps) if below else self.broken
        gain = length_difference(rollouts, below.rollouts, self.steps) if below else None
        lost = length_difference(self.true, rollouts, self.steps)
        return Rung(
            name,
            draft,
            rollouts,
            acceptance(rollouts, self.steps),
            gain,
            lost,
            recovered_share(self.true, self.broken, rollouts, self.steps),
            _worst_quarter(self.true, rollouts, self.steps),
            offered=bool(gain and gain.low > 0),
            suffices=lost.high < margin,
        )


def recovered_share(
    true: Sequence[Rollout], broken: Sequence[Rollout], mended: Sequence[Rollout], steps: int
) -> Estimate:
    """(AL mended - AL broken) / (AL true - AL broken) along the walk, by prompt; NaN where nothing is lost."""
    sums = np.concatenate([_walked(rollouts, steps) for rollouts in (true, broken, mended)], axis=1)  # [n, 6]
    return estimate(sums, share_back, int(sums[:, 5].sum()))


def _walked(rollouts: Sequence[Rollout], steps: int) -> np.ndarray:
    """[n, 2] tokens and rounds of each prompt along the walk, each turn's last round left out."""
    histograms = np.stack([walk_histograms(rollout, steps)[0] for rollout in rollouts])  # [n, K + 1]
    return np.stack([histograms @ np.arange(1, steps + 2), histograms.sum(1)], axis=1).astype(float)


def _worst_quarter(true: Sequence[Rollout], rollouts: Sequence[Rollout], steps: int) -> float:
    """Tokens a round that the quarter of the prompts loses which loses most; NaN without a round."""
    whole, own = _walked(true, steps), _walked(rollouts, steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = whole[:, 0] / whole[:, 1] - own[:, 0] / own[:, 1]
    order = np.argsort(-np.nan_to_num(losses, nan=-np.inf))[: max(len(losses) // 4, 1)]
    (tokens, rounds), (own_tokens, own_rounds) = whole[order].sum(0), own[order].sum(0)
    return float(tokens / rounds - own_tokens / own_rounds) if rounds and own_rounds else float("nan")
