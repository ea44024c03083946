"""A server's numbers as evidence: the pass whose replay accepts as the server did is what the engine does.

A server that counts tells how many of its rounds accepted the first k drafts. The replay's conditional rates
along the walk are held against the server's,

    D = Σ_k (c_k - r_k)² / (r_k (1 - r_k) / n_k + e_k²),    n_k rounds that reached draft k

c_k the server's, r_k the replay's with its standard error e_k: about χ² with K degrees of freedom where the
replay does what the server does and the responses are of one kind. Both count the same rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from eagle3lib.acceptance import Acceptance, acceptance
from eagle3lib.battery import Change, Tie, Trial, look
from eagle3lib.bootstrap import LEVEL, Estimate
from eagle3lib.ground import Ground
from eagle3lib.hypotheses import Hypothesis
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample
from eagle3lib.served_comparison import server_rates
from eagle3lib.served_rates import ServedRates

#: Samples of the first look and starts of each; later steps are reached by few of them.
LOOK_SAMPLES, LOOK_STARTS = 4, 100
#: How many hypotheses are replayed in full, the nearest of the look.
REPLAYED = 6


class ServedNumbers:
    """Hypotheses held against what a server counted.

    Args:
        last_rounds: whether the server counts each response's last round.
    """

    def __init__(self, samples: Sequence[Sample], rates: ServedRates, last_rounds: bool = False) -> None:
        self.samples, self.rates, self.last_rounds = list(samples), rates, last_rounds
        self._look = look(self.samples, LOOK_SAMPLES, LOOK_STARTS)

    def best(self, ground: Ground, tried: Sequence[Hypothesis]) -> tuple[Change | None, list[Trial]]:
        """The nearest change, while the believed pass does not explain the numbers and another comes nearer."""
        believed = self._replay(ground, self.samples)
        distance = self.rates.distance(believed.walk.conditional)
        if distance <= self.rates.expected:
            return None, []
        glimpse = self._replay(ground, self._look)
        glances = [self._replay(h, self._look) for h in tried]
        nearest = np.argsort([self._guessed(believed, glimpse, glance) for glance in glances], kind="stable")[:REPLAYED]
        replays = [(tried[i], self._replay(tried[i], self.samples)) for i in nearest]
        distances = {h: self.rates.distance(found.walk.conditional) for h, found in replays}
        trials = [Trial(h, _plain(distance - distances[h]), found.walk.length) for h, found in replays]
        trials.sort(key=lambda t: -t.gain.value)
        first = trials[0]
        # A change has one degree of freedom, and the nearest of many was taken.
        if first.gain.value <= NormalDist().inv_cdf(1 - (1 - LEVEL) / 2 / len(tried)) ** 2:
            return None, trials
        ties = tuple(Tie(t.hypothesis, np.nan) for t in trials[1:] if distances[t.hypothesis] <= self.rates.expected)
        return Change(first, believed.walk.length, first.length, ties), trials

    def _replay(self, what: Ground | Hypothesis, samples: Sequence[Sample]) -> Acceptance:
        steps = len(self.rates.survival)
        rollouts = [rollout(what.draft, sample, what.wiring, steps) for sample in samples]
        return replace(acceptance(rollouts, steps), walk=server_rates(rollouts, steps, self.last_rounds))

    def _guessed(self, believed: Acceptance, glimpse: Acceptance, glance: Acceptance) -> float:
        """The distance of the whole walk, from what a change did to the rates over all starts of the look."""
        guessed = []
        rates = (believed.walk.conditional, glimpse.all_starts.conditional, glance.all_starts.conditional)
        for whole, before, after in zip(*rates, strict=True):
            moved = np.nan_to_num(after.value) - np.nan_to_num(before.value)
            value = float(np.clip(np.nan_to_num(whole.value) + moved, 0, 1))
            guessed.append(Estimate(value, value - GUESSED, value + GUESSED, after.count))
        return self.rates.distance(guessed)


#: Half the width of the interval that a rate of the look is given.
GUESSED = 0.1


def _plain(value: float) -> Estimate:
    """A distance, which has no interval of its own."""
    return Estimate(value, value, value, 1)
