"""Recorded tokens as evidence: the pass that makes the draft best is the one that it was trained with.

A family shows by its own score (see `hypotheses.FAMILIES`), and whatever improves by it is replayed: the changes
are ordered by the acceptance length over all starts, and among those that tie in it, by cross-entropy over all
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from eagle3lib import draft_head, forward, fusion
from eagle3lib.acceptance import start_sums
from eagle3lib.battery import Change, Tie, Trial, look, widened
from eagle3lib.bootstrap import Estimate, Statistic, estimate, ratio
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.ground import Ground
from eagle3lib.hypotheses import Hypothesis, Scored
from eagle3lib.rollout import Rollout, rollout
from eagle3lib.rounds import chances
from eagle3lib.sample import Sample
from eagle3lib.scores import columns
from eagle3lib.until_miss import rollout_until_miss

#: Samples of the first look, starts of each, and the steps by which it sees a later step.
LOOK_SAMPLES, LOOK_STARTS, LOOK_STEPS = 4, 100, 2
#: A glance first, at every so manyth start of one sample. A hypothesis is left out where its gain lies so many
#: standard errors below zero there, and where it is not so many above on the look.
GLANCE_STRIDE, RULED_OUT, AHEAD = 3, -2.0, 1.0
LEAST_ERROR = 1e-6  # where every position gains the same
#: How many hypotheses of a kind of score go from the look to all positions.
LEADERS = 3


class RecordedTokens:
    """Hypotheses held against the recorded tokens of samples."""

    def __init__(self, samples: Sequence[Sample], steps: int = 3) -> None:
        self.samples, self.steps = list(samples), steps
        self._look = look(self.samples, LOOK_SAMPLES, LOOK_STARTS)

    def best(self, ground: Ground, tried: Sequence[Hypothesis]) -> tuple[Change | None, list[Trial]]:
        """The change that lengthens acceptance most, of those that improve their family's score beyond the interval."""
        ahead = self._likely(ground, tried)
        if not ahead:
            return None, []
        gains = self._gains(ground, ahead, self.samples, self.steps)
        trials = [Trial(h, gain) for h, gain in zip(ahead, gains, strict=True)]
        improved = [t for t in trials if widened(t.gain, len(tried), len(self.samples)).low > 0]
        if not improved:
            return None, trials
        believed = _chain(ground, self.samples, self.steps)
        chains = {t.hypothesis.label: _chain(t.hypothesis, self.samples, self.steps) for t in improved}
        replayed = []
        for trial in improved:
            length = _difference(chains[trial.hypothesis.label], believed, _length)
            replayed.append(Trial(trial.hypothesis, trial.gain, length))
        others = [t for t in trials if t not in improved]
        longer = [t for t in replayed if t.length.value > 0]
        if not longer:
            return None, [*replayed, *others]
        first = self._first(longer, chains)
        ties = tuple(
            Tie(other.hypothesis, tell.count_to_tell)
            for other in longer
            if other is not first
            and not (
                tell := _difference(chains[first.hypothesis.label], chains[other.hypothesis.label], _length)
            ).excludes_zero
        )
        after = chains[first.hypothesis.label]
        return Change(first, _estimate(believed, _length), _estimate(after, _length), ties), [*replayed, *others]

    def _first(self, trials: Sequence[Trial], chains: dict[str, list[Rollout]]) -> Trial:
        """The longest; of those that tie with it in length, the one of lowest cross-entropy over all steps."""
        longest = max(trials, key=lambda t: t.length.value)
        if longest.hypothesis.family == "vocabulary":
            return longest

        def ties(trial: Trial) -> bool:
            ours, theirs = (chains[t.hypothesis.label] for t in (trial, longest))
            same = trial.hypothesis.family != "vocabulary"
            return trial is longest or (same and not _difference(ours, theirs, _length).excludes_zero)

        tied = list(filter(ties, trials))
        return tied[0] if len(tied) == 1 else min(tied, key=lambda t: self._nats(t.hypothesis))

    def _nats(self, hypothesis: Hypothesis) -> float:
        """Cross-entropy over all steps, which takes whole rollouts."""
        whole = (rollout(hypothesis.draft, sample, hypothesis.wiring, self.steps).logprob for sample in self.samples)
        logprobs = torch.cat(list(whole))
        return float(-logprobs[logprobs.isfinite()].mean())

    def _likely(self, ground: Ground, tried: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Those that a glance at one sample does not rule out and that are ahead on the look."""
        glanced = [h for h in tried if h.scored == "conditional"]
        rest = [h for h in tried if h.scored != "conditional"]
        for samples, stride, least in ((self._look[:1], GLANCE_STRIDE, RULED_OUT), (self._look, 1, AHEAD)):
            believed = _first_step(ground.draft, ground.wiring, samples, stride) if rest else []
            scores = {h: _token_score(h, _first_step(h.draft, h.wiring, samples, stride), believed) for h in rest}
            rest = [h for h in rest if scores[h] > least]
        for kind in ("cross-entropy", "accuracy"):
            by_score = sorted((h for h in rest if h.scored == kind), key=scores.get, reverse=True)
            rest = [h for h in rest if h.scored != kind or h in by_score[:LEADERS]]
        chains = self._gains(ground, glanced, self._look, LOOK_STEPS)
        ahead = [h for h, gain in zip(glanced, chains, strict=True) if gain.value > AHEAD * gain.error]
        return [h for h in tried if h in ahead or h in rest]

    def _gains(
        self, ground: Ground, tried: Sequence[Hypothesis], samples: Sequence[Sample], steps: int
    ) -> list[Estimate]:
        """Each hypothesis's gain over the believed pass by its family's score, paired by sample."""
        kinds = {h.scored for h in tried}
        first = _sums(_first_step(ground.draft, ground.wiring, samples)) if kinds - {"conditional"} else None
        chain = _chain(ground, samples, steps) if "conditional" in kinds else None
        found = []
        for h in tried:
            if h.scored == "conditional":
                found.append(_difference(_chain(h, samples, steps), chain, _conditional))
            else:
                found.append(_gain(h.scored, _sums(_first_step(h.draft, h.wiring, samples)), first))
        return found


def _chain(what: Ground | Hypothesis, samples: Sequence[Sample], steps: int) -> list[Rollout]:
    """Each chain up to its first miss, which is all that lengths and conditional rates ask."""
    return rollout_until_miss(what.draft, samples, what.wiring, steps)


@torch.inference_mode()
def _first_step(draft: Draft, wiring: Wiring, samples: Sequence[Sample], stride: int = 1) -> list[np.ndarray]:
    """Of each sample, a row [4] a start as `Score` sums them."""
    config = draft.config.under(wiring)
    found = []
    for sample in samples:
        starts = torch.tensor(sample.starts[::stride], dtype=torch.long)
        if not len(starts):
            found.append(np.zeros((0, 4)))
            continue
        g, following = fusion.paired(config, fusion.fuse(draft, sample, wiring), draft.embed(sample.token_ids))
        rows = [starts.to(draft.device)]
        u, _ = forward.packed_first_step(draft, config, g, following[: len(g)], [len(g)], rows)
        recorded = sample.token_ids[starts + 2].to(draft.device)
        choices = draft_head.choose(draft, u, recorded, config)
        found.append(columns(choices.logprob, choices.predicted == recorded).cpu().numpy())
    return found


def cross_entropy_gain(draft: Draft, samples: Sequence[Sample], wiring: Wiring, believed: Wiring) -> Estimate:
    """Nats a token fewer at step 0 than under the believed wiring, paired by sample."""
    ours, theirs = (_sums(_first_step(draft, w, samples)) for w in (wiring, believed))
    return _gain("cross-entropy", ours, theirs)


def _sums(rows: Sequence[np.ndarray]) -> np.ndarray:
    """[n, 4] by sample."""
    return np.stack([own.sum(0) for own in rows])


def _token_score(hypothesis: Hypothesis, ours: Sequence[np.ndarray], believed: Sequence[np.ndarray]) -> float:
    """The mean gain a token in standard errors, as if tokens were independent: good enough to leave some out by."""
    column, sign = (2, 1) if hypothesis.scored == "accuracy" else (0, -1)
    gain = sign * (np.concatenate(ours) - np.concatenate(believed))[:, column]
    if not gain.any():
        return 0.0  # the same everywhere, or no position
    error = max(gain.std(), LEAST_ERROR) / len(gain) ** 0.5
    return float(gain.mean() / error)


def _gain(scored: Scored, ours: np.ndarray, believed: np.ndarray) -> Estimate:
    """Nats a token fewer, or share of positions more, than the believed pass."""
    both = np.concatenate([ours, believed], axis=1)
    if scored == "accuracy":
        return estimate(both, lambda s: ratio(2, 3)(s) - ratio(6, 7)(s), int(ours[:, 3].sum()))
    return estimate(both, lambda s: ratio(4, 5)(s) - ratio(0, 1)(s), int(ours[:, 1].sum()))


def _chain_sums(found: Rollout) -> np.ndarray:
    """[3K] by step, as `start_sums`."""
    return start_sums(chances(found)).reshape(-1)


def _length(s: np.ndarray) -> np.ndarray:
    """1 + S_1 + ... + S_K over all starts, from sums [..., 3K]."""
    steps = s.shape[-1] // 3
    return 1 + sum(np.nan_to_num(ratio(k, 2 * steps + k)(s)) for k in range(steps))


def _conditional(s: np.ndarray) -> np.ndarray:
    """The rates of steps >= 1 pooled: of all starts that reach one, the share accepted there."""
    steps = s.shape[-1] // 3
    both = np.stack([s[..., 1:steps].sum(-1), s[..., steps + 1 : 2 * steps].sum(-1)], axis=-1)
    return np.nan_to_num(ratio(0, 1)(both))


def _estimate(chain: Sequence[Rollout], statistic: Statistic) -> Estimate:
    sums = np.stack([_chain_sums(found) for found in chain])
    return estimate(sums, statistic, int(sums[:, -(sums.shape[1] // 3)].sum()))


def _difference(
    ours: Sequence[Rollout], theirs: Sequence[Rollout], statistic: Callable[[np.ndarray], np.ndarray]
) -> Estimate:
    """The statistic of one chain less that of another, paired by sample."""
    sums = np.stack([np.concatenate([_chain_sums(a), _chain_sums(b)]) for a, b in zip(ours, theirs, strict=True)])
    half = sums.shape[1] // 2
    count = int(sums[:, 2 * half // 3].sum())
    return estimate(sums, lambda s: statistic(s[..., :half]) - statistic(s[..., half:]), count)
