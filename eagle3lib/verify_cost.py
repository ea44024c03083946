"""Chains and trees side by side: what each shape of draft yields for the nodes that it makes the target verify."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.rounds import counted, walk
from eagle3lib.sample import Sample
from eagle3lib.tree import TreeRollout, tree_rollout
from eagle3lib.tree_shapes import TreeShape

#: A chain and three trees of eight verified nodes.
EIGHT_NODES = (
    TreeShape.chain(7), TreeShape.sglang(3, 2, 8), TreeShape.sglang(4, 4, 8), TreeShape.sglang(2, 8, 8),
)  # fmt: skip


@dataclass(frozen=True)
class ShapeLength:
    """What one shape yields, greedy, bonus token included.

    Attributes:
        walk: mean round length along the server's walk, each turn's last round left out.
        all_starts: mean of accepted drafts + 1 over every start.
        gain: `walk` less the first shape's, paired by sample.
        ties: starts with a cut that equal scores could have turned; each may accept other drafts in an engine.
        starts: how many trees were drafted.
        seconds: that this took.
    """

    shape: TreeShape
    walk: Estimate
    all_starts: Estimate
    gain: Estimate
    ties: int
    starts: int
    seconds: float

    def row(self) -> dict:
        """One row of a table."""
        lengths = {"walk": self.walk.value, "low": self.walk.low, "high": self.walk.high}
        gain = {"gain": self.gain.value, "gain low": self.gain.low, "gain high": self.gain.high}
        counts = {"rounds": self.walk.count, "all starts": self.all_starts.value, "starts": self.starts}
        shape = {"shape": self.shape.label, "steps": self.shape.levels, "topk": self.shape.topk}
        shape["verified nodes"] = self.shape.verified
        return {**shape, **lengths, **gain, **counts, "starts with ties": self.ties, "seconds": self.seconds}


def shape_lengths(
    draft: Draft, samples: Sequence[Sample], wiring: Wiring, shapes: Sequence[TreeShape]
) -> list[ShapeLength]:
    """Acceptance length of every shape on the same samples, the first one being what the others are held against.

    Raises:
        InputError: as `tree_rollout`.
        ValueError: if there is no sample or no shape, and as `tree_rollout`.
    """
    if not samples or not shapes:
        raise ValueError("shape_lengths needs a sample and a shape at least")
    found, sums = [], []
    for shape in shapes:
        began = time.perf_counter()
        rollouts = [tree_rollout(draft, sample, wiring, shape) for sample in samples]
        seconds = time.perf_counter() - began
        sums.append(np.stack([_sums(rollout) for rollout in rollouts]))
        paired = np.concatenate([sums[0], sums[-1]], axis=1)
        rounds, starts = sums[-1][:, 1].sum(), sums[-1][:, 3].sum()
        found.append(
            ShapeLength(
                shape,
                estimate(sums[-1], ratio(0, 1), rounds),
                estimate(sums[-1], ratio(2, 3), starts),
                estimate(paired, lambda s: ratio(4, 5)(s) - ratio(0, 1)(s), rounds),
                sum(int((rollout.ties > 0).sum()) for rollout in rollouts),
                int(starts),
                seconds,
            )
        )
    return found


def _sums(rollout: TreeRollout) -> np.ndarray:
    """[4] tokens and rounds of the walk, tokens and rounds over all starts."""
    chances = counted(rollout.sample, rollout.starts, rollout.turns, rollout.accepted, rollout.valid)
    inner = [item.length for item in walk(chances, rollout.shape.levels) if not item.last]
    lengths = rollout.accepted.numpy() + 1
    return np.array([sum(inner), len(inner), lengths.sum(), len(lengths)], dtype=np.int64)
