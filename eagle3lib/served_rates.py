"""What a server counted by position, and how far a replay's rates lie from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lib.bootstrap import Estimate, chi_square


@dataclass(frozen=True)
class ServedRates:
    """What a server counted, chain and greedy.

    Attributes:
        survival: share of all rounds whose first k drafts were accepted, k = 1 .. K.
        rounds: how many rounds it counted.
    """

    survival: tuple[float, ...]
    rounds: int

    def __post_init__(self) -> None:
        falling = all(a >= b for a, b in zip((1.0, *self.survival), (*self.survival, 0.0), strict=True))
        if not self.survival or not falling or self.rounds < 1:
            raise ValueError(f"expected survival falling from 1 to 0 over 1 round or more, found {self}")

    @property
    def length(self) -> float:
        """Acceptance length, bonus included."""
        return 1 + sum(self.survival)

    def distance(self, replayed: Sequence[Estimate]) -> float:
        """D of `served_evidence`, over the steps that both reached.

        Args:
            replayed: r_k with its interval.
        """
        total, before = 0.0, 1.0
        for survived, rate in zip(self.survival, replayed, strict=True):
            if before == 0 or not np.isfinite(rate.value):
                break
            # Variance of the server's rate if the replay's were the true one, as in a score test: few rounds that all
            # failed say less than their own rate of zero would. Half an acceptance either way keeps it above zero.
            reached = self.rounds * before
            smooth = (reached * rate.value + 0.5) / (reached + 1)
            error = rate.error if np.isfinite(rate.error) else 0.0
            total += (survived / before - rate.value) ** 2 / (smooth * (1 - smooth) / (reached + 1) + error**2)
            before = survived
        return total

    @property
    def expected(self) -> float:
        """The distance that `LEVEL` of right replays stay within."""
        return chi_square(len(self.survival))
