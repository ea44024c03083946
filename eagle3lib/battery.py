"""The battery: every hypothesis held against the evidence, the best one taken, and again from there.

Faults come in twos: shifted ids and an ignored norm, a wrong feedback and a wrong theta. After the best single
change all hypotheses are tried again on the changed pass, until none improves it beyond the interval. Intervals
are widened for the number of hypotheses tried, so that a right pass stays unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Protocol

from eagle3lib.bootstrap import LEVEL, Estimate
from eagle3lib.boundaries import Boundary, Wiring, in_depth_order
from eagle3lib.checkpoint import Draft
from eagle3lib.ground import Ground, Slots
from eagle3lib.hypotheses import Hypothesis, hypotheses
from eagle3lib.sample import Sample
from eagle3lib.target import Target

#: Changes that are taken one after another; more than this many faults are another draft.
MOST_CHANGES = 4


@dataclass(frozen=True)
class Trial:
    """A hypothesis that the first look let through, scored on every position.

    Attributes:
        gain: by its family's score, above the believed pass; paired.
        length: acceptance length gained over all starts; None where the score already did not improve.
    """

    hypothesis: Hypothesis
    gain: Estimate
    length: Estimate | None = None


@dataclass(frozen=True)
class Tie:
    """A hypothesis that the evidence cannot tell from the one taken, and about how many trials would."""

    hypothesis: Hypothesis
    count_to_tell: float


@dataclass(frozen=True)
class Change:
    """A hypothesis that was taken.

    Attributes:
        before, after: the evidence's own measure of the pass without and with it.
    """

    trial: Trial
    before: Estimate
    after: Estimate
    ties: tuple[Tie, ...] = ()

    @property
    def hypothesis(self) -> Hypothesis:
        """What was changed."""
        return self.trial.hypothesis


class Evidence(Protocol):
    """What hypotheses are held against: recorded tokens, or a server's numbers."""

    samples: Sequence[Sample]

    def best(self, ground: Ground, tried: Sequence[Hypothesis]) -> tuple[Change | None, list[Trial]]:
        """The change to take, None where none improves, and every trial that was scored on all positions."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What the battery found.

    Attributes:
        believed: the wiring that it began from.
        changes: what was taken, in order; empty where nothing improves.
        tried: hypotheses of the first round.
        trials: of the last round, which improved nothing.
        ground: the pass that the changes led to.
    """

    believed: Wiring
    changes: tuple[Change, ...]
    tried: int
    trials: tuple[Trial, ...]
    ground: Ground

    @property
    def labels(self) -> tuple[str, ...]:
        """The changes in words, the strongest first."""
        return tuple(change.hypothesis.label for change in self.changes)


def battery(
    draft: Draft,
    wiring: Wiring,
    evidence: Evidence,
    *,
    target: Target | None = None,
    searched: Slots | None = None,
) -> Outcome:
    """Try every hypothesis against the evidence, take the best, and go on from there.

    Args:
        wiring: what is believed, with its flags.
        searched: the slots that a search put first, tried as one hypothesis.

    Raises:
        ValueError: without samples.
    """
    if not evidence.samples:
        raise ValueError("the battery needs at least one sample")
    longest = max(sample.n_pairs for sample in evidence.samples)
    ground = Ground(draft, wiring, common_boundaries(evidence.samples), target, searched, longest)
    changes: list[Change] = []
    tried, trials = 0, []
    while len(changes) < MOST_CHANGES:
        candidates = hypotheses(ground)
        tried = tried or len(candidates)
        change, trials = evidence.best(ground, candidates)
        if change is None:
            break
        changes.append(change)
        ground = replace(ground, draft=change.hypothesis.draft, wiring=change.hypothesis.wiring)
    return Outcome(wiring, tuple(changes), tried, tuple(trials), ground)


def common_boundaries(samples: Sequence[Sample]) -> tuple[Boundary, ...]:
    """What every sample holds, in depth order."""
    held = set.intersection(*(set(sample.states) for sample in samples))
    return in_depth_order(held)


def look(samples: Sequence[Sample], n: int, starts: int) -> list[Sample]:
    """`n` samples spread evenly over all, each cut behind its first so many starts."""
    chosen = [samples[i * len(samples) // n] for i in range(n)] if n < len(samples) else list(samples)
    return [_cut(sample, starts) for sample in chosen]


def _cut(sample: Sample, starts: int) -> Sample:
    places = [t for turn in sample.turns for t in turn.starts]
    if len(places) <= starts:
        return sample
    end = places[starts - 1] + 3  # the last start's recorded token is x[t + 2]
    states = {b: state[:end] for b, state in sample.states.items()}
    return replace(
        sample, token_ids=sample.token_ids[:end], loss_mask=sample.loss_mask[:end], states=states, logprobs=None
    )


def widened(estimate: Estimate, trials: int, samples: int) -> Estimate:
    """The interval at the level that holds for `trials` of them at once, from so few samples.

    Bonferroni's level on Student's t with samples - 1 degrees of freedom, against the normal quantile that a
    percentile interval stands for; t by the expansion in 1 / v. (Abramowitz and Stegun 26.7.5)
    """
    if samples < 2:
        return Estimate(estimate.value, -math.inf, math.inf, estimate.count)
    one, z = (NormalDist().inv_cdf(1 - (1 - LEVEL) / 2 / n) for n in (1, max(trials, 1)))
    v = samples - 1
    t = z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    below, above = ((estimate.value - edge) * t / one for edge in (estimate.low, estimate.high))
    return Estimate(estimate.value, estimate.value - below, estimate.value - above, estimate.count)
