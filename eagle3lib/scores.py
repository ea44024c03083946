"""What a wiring scores, and scored wirings in order.

A score is the cross-entropy of the recorded token over the draft vocabulary, on a fixed set of positions whose
recorded token lies in it, the same for all candidates; accuracy counts all positions, a token outside the
vocabulary being a miss. Differences are paired by sample; what an interval cannot separate from the best is a tie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.boundaries import Boundary

Slots = tuple[Boundary, ...]


def columns(logprob: Float[Tensor, " R"], hit: Bool[Tensor, " R"]) -> Float[Tensor, "R 4"]:
    """What a `Score` sums, a row a position: nats where the token is in the vocabulary, whether it is, hit, one."""
    known = logprob.isfinite()
    nats = torch.where(known, -logprob, 0.0).double()
    return torch.stack([nats, known, hit, torch.ones_like(known)], dim=1)


@dataclass(frozen=True, eq=False)
class Score:
    """One candidate's sums by sample: [n, 4] of cross-entropy, in-vocabulary positions, hits, positions."""

    slots: Slots
    sums: np.ndarray

    @property
    def cross_entropy_value(self) -> float:
        """Nats a token, over in-vocabulary positions, without the interval."""
        return float(self.sums[:, 0].sum() / max(self.sums[:, 1].sum(), 1))

    @property
    def cross_entropy(self) -> Estimate:
        """Nats a token, over in-vocabulary positions."""
        return estimate(self.sums, ratio(0, 1), self.sums[:, 1].sum())

    @property
    def accuracy(self) -> Estimate:
        """Share of all positions at which the draft's choice is the recorded token."""
        return estimate(self.sums, ratio(2, 3), self.sums[:, 3].sum())

    def excess(self, best: Score) -> Estimate:
        """Cross-entropy above another candidate's, in nats a token, paired by sample."""
        both = np.concatenate([self.sums, best.sums], axis=1)
        return estimate(both, lambda s: ratio(0, 1)(s) - ratio(4, 5)(s), self.sums[:, 1].sum())


@dataclass(frozen=True)
class Ranking:
    """Fully scored candidates, best first; `evaluated` counts the cheap looks too."""

    scores: tuple[Score, ...]
    evaluated: int
    candidates: int

    @property
    def best(self) -> Score:
        """The first."""
        return self.scores[0]

    @property
    def ties(self) -> tuple[Score, ...]:
        """The best, and every candidate whose excess over it includes zero."""
        return tuple(s for s in self.scores if s is self.best or not s.excess(self.best).excludes_zero)

    def to_json(self) -> dict:
        """What a results file keeps: the best, the ties, and how many were looked at."""
        ties = [list(score.slots) for score in self.ties]
        counts = {"candidates": self.candidates, "evaluated": self.evaluated}
        return {"best": list(self.best.slots), "ties": ties, **counts}
