"""Why one draft has two acceptance lengths, and what knowing each round's best K would save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3lib.acceptance import acceptance, walk_histograms
from eagle3lib.bootstrap import Estimate
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Chances, accepted_drafts, chances


@dataclass(frozen=True)
class Averages:
    """One length at every start, averaged twice: where rounds start, and everywhere alike.

        uniform = visited · walk + (1 - visited) · skipped
        all_starts - walk = (uniform - walk) + (all_starts - uniform)

    Attributes:
        walk: mean over the walk's rounds, each turn's last left out.
        all_starts: 1 + S_1 + ... + S_K over all starts; step k counts starts whose token lies in the turn.
        visited: share of the starts at which a counted round starts.
        skipped: mean length that a round would have at the other starts.
        uniform: mean length over all starts; where a turn ends early, drafts end with it.
    """

    steps: int
    walk: float
    all_starts: float
    visited: float
    skipped: float
    uniform: float

    @property
    def landing(self) -> float:
        """The part of the difference that comes from where rounds land."""
        return self.uniform - self.walk

    @property
    def ends(self) -> float:
        """The part that comes from turns that end before a draft does."""
        return self.all_starts - self.uniform

    def __str__(self) -> str:
        easier = "easier" if self.skipped > self.walk else "harder"
        return (
            f"At K = {self.steps} the walk starts a round at {self.visited:.0%} of the starts and gets"
            f" {self.walk:.3f} tokens there; the starts it skips lie behind accepted drafts and are {easier},"
            f" {self.skipped:.3f}."
            f" Every start alike: {self.uniform:.3f} ({self.landing:+.3f}). Leaving out steps beyond a turn's end"
            f" makes it {self.all_starts:.3f} over all starts ({self.ends:+.3f})."
        )


def averages(rollouts: Sequence[Rollout | Chances], steps: int) -> Averages:
    """The two averages and what lies between them, pooled over samples.

    Raises:
        ValueError: as `acceptance`.
    """
    found = acceptance(rollouts, steps)
    lengths = [1 + accepted_drafts(chances(r).limited(steps)) for r in rollouts]
    starts, total = sum(map(len, lengths)), sum(float(one.sum()) for one in lengths)
    rounds = float(sum(walk_histograms(r, steps)[0].sum() for r in rollouts))
    walk, left = found.walk.length.value, starts - rounds
    skipped = (total - rounds * walk) / left if left and rounds else float("nan")
    uniform = total / starts if starts else float("nan")
    visited = rounds / starts if starts else float("nan")
    return Averages(steps, walk, found.all_starts.length.value, visited, skipped, uniform)


@dataclass(frozen=True)
class Budget:
    """Tokens a round, and what the target verifies for them.

    Attributes:
        name: "K = 4", or the oracle.
        nodes: verified nodes a round, the root counted.
        tokens_per_node: of a hundred verified nodes, how many hundredths become tokens.
    """

    name: str
    length: Estimate
    nodes: float
    tokens_per_node: float


def oracle_gap(lengths: Sequence[Estimate]) -> list[Budget]:
    """Every fixed K up to the longest, and last the oracle that knows how many drafts each round will keep.

    The oracle drafts exactly those: it gets the length of the longest K and wastes no node. What lies between
    it and the fixed K is the most that an adaptive draft length can win.

    Args:
        lengths: the walk's length of K = 1 and so on.
    """
    fixed = [Budget(f"K = {k}", e, k + 1, e.value / (k + 1)) for k, e in enumerate(lengths, start=1)]
    best = lengths[-1]
    return [*fixed, Budget(f"best K each round, up to {len(lengths)}", best, best.value, 1.0)]
