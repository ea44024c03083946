"""Acceptance: survival, conditional rates and lengths, along the server's walk and over all starts.

    S_k = P(the first k drafts are all accepted),  S_0 = 1
    c_k = S_k / S_{k-1}
    AL(K) = 1 + S_1 + ... + S_K                    with the bonus token

Along the walk a round starts only where the last one ended, t -> t + L(t), so every K is walked again; all
S_k share one denominator, every round but each turn's last, so that AL is exactly the mean round length.
Over all starts, step k counts the starts whose recorded token lies in the turn. Trainers report the second
average and servers the first: they are never mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.rollout import Rollout


@dataclass(frozen=True)
class Round:
    """One round of the walk: it started at pair `start`, and `accepted` drafts were kept.

    `last` marks a turn's last round; `cut` that the turn ended before a draft was rejected or K was reached.
    """

    start: int
    turn: int
    accepted: int
    last: bool
    cut: bool

    @property
    def length(self) -> int:
        """Tokens that the round yields: accepted drafts and the bonus token."""
        return self.accepted + 1


@dataclass(frozen=True)
class Rates:
    """One kind of average. `survival[k - 1]` is S_k and `conditional[k - 1]` is c_k."""

    survival: tuple[Estimate, ...]
    conditional: tuple[Estimate, ...]
    length: Estimate


@dataclass(frozen=True)
class Acceptance:
    """What a draft of length `steps` yields: chain, greedy match, bonus token included.

    Attributes:
        walk: along the server's walk, each turn's last round left out.
        all_starts: over every start.
        round_lengths: `round_lengths[a]` counts the walk's rounds that accepted a drafts, last rounds left out.
        last_rounds: the same of each turn's last round.
        ceiling: share of recorded tokens inside the draft vocabulary; no rate can exceed it.
    """

    steps: int
    walk: Rates
    all_starts: Rates
    round_lengths: tuple[int, ...]
    last_rounds: tuple[int, ...]
    ceiling: Estimate


def walk(rollout: Rollout, steps: int) -> list[Round]:
    """The server's rounds, one by one, for drafts of length `steps`.

    Raises:
        ValueError: if the rollout has fewer steps.
    """
    _check_steps(rollout, steps)
    accepted = _accepted(rollout, steps)
    possible = rollout.valid[:, :steps].sum(1).numpy()
    starts, turns = rollout.starts.tolist(), rollout.turns.tolist()
    rounds, row = [], 0
    while row < len(starts):
        # Starts of one turn are consecutive pairs, so a step of L pairs is a step of L rows.
        following = row + int(accepted[row]) + 1
        last = following >= len(starts) or turns[following] != turns[row]
        cut = int(accepted[row]) == int(possible[row]) < steps
        rounds.append(Round(starts[row], turns[row], int(accepted[row]), last, cut))
        row = _next_turn(turns, row) if last else following
    return rounds


def acceptance(rollouts: Sequence[Rollout], steps: int) -> Acceptance:
    """Rates and lengths of a draft of length `steps`, with intervals by bootstrap over samples.

    Raises:
        ValueError: if there are no rollouts or one has fewer steps.
    """
    if not rollouts:
        raise ValueError("acceptance needs at least one rollout")
    histograms = np.stack([_walk_histograms(rollout, steps) for rollout in rollouts])  # [n, 2, K + 1]
    counts = histograms.sum(0)
    known = np.stack([_in_vocabulary(rollout) for rollout in rollouts])
    return Acceptance(
        steps=steps,
        walk=_walk_rates(histograms[:, 0]),
        all_starts=_all_start_rates(np.stack([_start_sums(rollout, steps) for rollout in rollouts])),
        round_lengths=tuple(counts[0].tolist()),
        last_rounds=tuple(counts[1].tolist()),
        ceiling=estimate(known, ratio(0, 1), known[:, 1].sum()),
    )


def length_difference(first: Sequence[Rollout], second: Sequence[Rollout], steps: int) -> Estimate:
    """AL of `first` less AL of `second` along the walk, paired by sample.

    Raises:
        ValueError: if the two are not of the same samples in the same order.
    """
    if [r.sample for r in first] != [r.sample for r in second]:
        raise ValueError("a paired difference needs rollouts of the same samples in the same order")
    sums = np.stack(
        [
            np.concatenate([_walk_histograms(a, steps)[0], _walk_histograms(b, steps)[0]])
            for a, b in zip(first, second, strict=True)
        ]
    )
    half = sums.shape[1] // 2
    return estimate(sums, lambda s: _mean_length(s[..., :half]) - _mean_length(s[..., half:]), sums[:, :half].sum())


def length_by_distance(rollouts: Sequence[Rollout], steps: int, edges: Sequence[int]) -> list[tuple[float, Estimate]]:
    """Mean round length along the walk, by how far into its turn a round starts.

    Args:
        edges: limits of the distance bins, in tokens, ascending.

    Returns:
        The middle of each bin that holds a round, and its mean length.
    """
    n_bins = len(edges) - 1
    sums = np.zeros((len(rollouts), 2 * n_bins))
    for i, rollout in enumerate(rollouts):
        firsts: dict[int, int] = {}  # a turn's first round starts at its first start
        for item in walk(rollout, steps):
            firsts.setdefault(item.turn, item.start)
            bin_ = int(np.searchsorted(edges, item.start - firsts[item.turn], side="right")) - 1
            if not item.last and 0 <= bin_ < n_bins:
                sums[i, 2 * bin_] += item.length
                sums[i, 2 * bin_ + 1] += 1
    return [
        ((edges[b] + edges[b + 1]) / 2, estimate(sums, ratio(2 * b, 2 * b + 1), int(sums[:, 2 * b + 1].sum())))
        for b in range(n_bins)
        if sums[:, 2 * b + 1].sum()
    ]


def length_rows(by_wiring: Mapping[str, Mapping[int, Acceptance]]) -> list[dict]:
    """One row a wiring and K: acceptance length along the walk, with its interval, and over all starts."""
    rows = []
    for name, by_steps in by_wiring.items():
        for k, found in by_steps.items():
            walked, starts = found.walk.length, found.all_starts.length
            row = {"wiring": name, "K": k, "walk": walked.value, "low": walked.low, "high": walked.high}
            rows.append({**row, "rounds": walked.count, "all starts": starts.value, "starts": starts.count})
    return rows


def rate_rows(by_wiring: Mapping[str, Acceptance]) -> list[dict]:
    """One row a wiring and draft position: S_k with its interval and c_k along the walk, both over all starts."""
    rows = []
    for name, found in by_wiring.items():
        for k in range(found.steps):
            survival, conditional = found.walk.survival[k], found.walk.conditional[k]
            row = {"wiring": name, "k": k + 1, "S_k": survival.value, "low": survival.low, "high": survival.high}
            row |= {"c_k": conditional.value, "of rounds": conditional.count}
            row["S_k all starts"] = found.all_starts.survival[k].value
            rows.append({**row, "c_k all starts": found.all_starts.conditional[k].value})
    return rows


def _check_steps(rollout: Rollout, steps: int) -> None:
    if rollout.hit.shape[1] < steps:
        raise ValueError(f"the rollout of {rollout.sample} has {rollout.hit.shape[1]} steps, {steps} were asked for")


def _accepted(rollout: Rollout, steps: int) -> np.ndarray:
    """[n] leading hits of each start."""
    return rollout.hit[:, :steps].int().cumprod(1).sum(1).numpy()


def _next_turn(turns: list[int], row: int) -> int:
    following = row
    while following < len(turns) and turns[following] == turns[row]:
        following += 1
    return following


def _walk_histograms(rollout: Rollout, steps: int) -> np.ndarray:
    """[2, K + 1] rounds by accepted drafts: all but the last of each turn, and the last ones."""
    histograms = np.zeros((2, steps + 1), dtype=np.int64)
    for item in walk(rollout, steps):
        histograms[int(item.last), item.accepted] += 1
    return histograms


def _start_sums(rollout: Rollout, steps: int) -> np.ndarray:
    """[3, K] by step: starts whose drafts up to it are accepted, starts that reach it, starts that could."""
    _check_steps(rollout, steps)
    valid = rollout.valid[:, :steps].numpy()
    alive = rollout.hit[:, :steps].int().cumprod(1).numpy().astype(bool)
    before = np.concatenate([np.ones((len(alive), 1), dtype=bool), alive[:, :-1]], axis=1)
    return np.stack([(alive & valid).sum(0), (before & valid).sum(0), valid.sum(0)])


def _in_vocabulary(rollout: Rollout) -> np.ndarray:
    """[2] recorded first tokens inside the draft vocabulary, and all of them."""
    valid = rollout.valid[:, 0]
    return np.array([int((valid & rollout.logprob[:, 0].isfinite()).sum()), int(valid.sum())])


def _mean_length(histogram: np.ndarray) -> np.ndarray:
    """Mean of accepted + 1 over a histogram of accepted drafts [..., K + 1]."""
    rounds = histogram.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rounds > 0, 1 + histogram @ np.arange(histogram.shape[-1]) / rounds, np.nan)


def _walk_rates(histograms: np.ndarray) -> Rates:
    """Rates from [n, K + 1] rounds by accepted drafts."""
    # Column k holds the rounds that accepted at least k drafts; column 0 is every round.
    reached = histograms[:, ::-1].cumsum(1)[:, ::-1]
    totals = reached.sum(0)
    steps = range(1, histograms.shape[1])
    return Rates(
        survival=tuple(estimate(reached, ratio(k, 0), totals[0]) for k in steps),
        conditional=tuple(estimate(reached, ratio(k, k - 1), totals[k - 1]) for k in steps),
        length=estimate(histograms, _mean_length, totals[0]),
    )


def _all_start_rates(sums: np.ndarray) -> Rates:
    """Rates from [n, 3, K] of `_start_sums`."""
    n, _, steps = sums.shape
    flat, totals = sums.reshape(n, -1), sums.sum(0)

    def length(s: np.ndarray) -> np.ndarray:
        # A step that no start reaches adds nothing; without any start there is no length.
        reached = sum(np.nan_to_num(ratio(k, 2 * steps + k)(s)) for k in range(steps))
        return np.where(s[..., 2 * steps] > 0, 1 + reached, np.nan)

    return Rates(
        survival=tuple(estimate(flat, ratio(k, 2 * steps + k), totals[2, k]) for k in range(steps)),
        conditional=tuple(estimate(flat, ratio(k, steps + k), totals[1, k]) for k in range(steps)),
        length=estimate(flat, length, totals[2, 0]),
    )
