"""Acceptance: survival, conditional rates and lengths, along the server's walk and over all starts.

    S_k = P(the first k drafts are all accepted),  S_0 = 1
    c_k = S_k / S_{k-1}
    AL(K) = 1 + S_1 + ... + S_K                    with the bonus token

Along the walk a round starts only where the last one ended, t -> t + L(t), so every K is walked again; all
S_k share one denominator, every round but each turn's last, so that AL is exactly the mean round length.
Over all starts, step k counts the starts whose recorded token lies in the turn. Trainers report the second
average and servers the first: they are never mixed. Rules that accept by chance give expected counts (`rounds`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Chances, Round, chances, expected_rounds, walk


@dataclass(frozen=True)
class Rates:
    """One kind of average. `survival[k - 1]` is S_k and `conditional[k - 1]` is c_k."""

    survival: tuple[Estimate, ...]
    conditional: tuple[Estimate, ...]
    length: Estimate


@dataclass(frozen=True)
class Acceptance:
    """What a draft of length `steps` yields, bonus token included.

    Attributes:
        walk: along the server's walk, each turn's last round left out.
        all_starts: over every start.
        round_lengths: `round_lengths[a]` counts the walk's rounds that accepted a drafts, last rounds left out.
        last_rounds: the same of each turn's last round.
        full: over every start, step k's rate whatever became of the steps before it (teacher-forced, marginal);
            empty for a tree.
        ceilings: over every start, how often the first k recorded tokens all lie in the draft vocabulary: no
            S_k over all starts can be above it; empty for a tree.
        requests: mean over responses of each one's own mean round length, every response counting alike.
        rule: how drafts are accepted.
        exact_steps: None where the numbers are the served ones; else they are so up to this step over all
            starts, and approximate beyond it and along the walk.
    """

    steps: int
    walk: Rates
    all_starts: Rates
    round_lengths: tuple[float, ...]
    last_rounds: tuple[float, ...]
    full: tuple[Estimate, ...]
    ceilings: tuple[Estimate, ...]
    requests: Estimate
    rule: str
    exact_steps: int | None

    @property
    def ceiling(self) -> Estimate:
        """Share of recorded first tokens inside the draft vocabulary; no rate over all starts can exceed it."""
        return self.ceilings[0] if self.ceilings else Estimate(np.nan, np.nan, np.nan, 0)

    @property
    def approximate(self) -> bool:
        """Whether some of it is approximate; see `exact_steps`."""
        return self.exact_steps is not None


def acceptance(rollouts: Sequence[Rollout | Chances], steps: int) -> Acceptance:
    """Rates and lengths of a draft of length `steps`, with intervals by bootstrap over samples.

    Args:
        rollouts: a draft token is accepted where it equals the recorded one; or chances by another rule.

    Raises:
        ValueError: if there are no rollouts or one has fewer steps.
    """
    if not rollouts:
        raise ValueError("acceptance needs at least one rollout")
    found = [chances(rollout).limited(steps) for rollout in rollouts]
    histograms = np.stack([walk_histograms(one, steps) for one in found])  # [n, 2, K + 1]
    counts = histograms.sum(0)
    chains = [rollout for rollout in rollouts if isinstance(rollout, Rollout)]
    alone = len(chains) == len(rollouts)
    return Acceptance(
        steps=steps,
        walk=_walk_rates(histograms[:, 0]),
        all_starts=_all_start_rates(np.stack([start_sums(one) for one in found])),
        round_lengths=tuple(counts[0].tolist()),
        last_rounds=tuple(counts[1].tolist()),
        full=_shares(np.stack([_full_sums(chain, steps) for chain in chains])) if alone else (),
        ceilings=_shares(np.stack([_known_sums(chain, steps) for chain in chains])) if alone else (),
        requests=_mean_of_requests(histograms[:, 0]),
        rule=found[0].rule,
        exact_steps=found[0].exact_steps,
    )


def walk_histograms(rollout: Rollout | Chances, steps: int) -> np.ndarray:
    """[2, K + 1] rounds by accepted drafts: all but the last of each turn, and the last ones."""
    found = chances(rollout)
    if not found.settled:
        return expected_rounds(found, steps).histogram
    histograms = np.zeros((2, steps + 1), dtype=np.int64)
    for item in walk(found, steps):
        histograms[int(item.last), item.accepted] += 1
    return histograms


def length_difference(first: Sequence[Rollout | Chances], second: Sequence[Rollout | Chances], steps: int) -> Estimate:
    """AL of `first` less AL of `second` along the walk, paired by sample.

    Raises:
        ValueError: if the two are not of the same samples in the same order.
    """
    if [r.sample for r in first] != [r.sample for r in second]:
        raise ValueError("a paired difference needs rollouts of the same samples in the same order")
    sums = np.stack(
        [
            np.concatenate([walk_histograms(a, steps)[0], walk_histograms(b, steps)[0]])
            for a, b in zip(first, second, strict=True)
        ]
    )
    half = sums.shape[1] // 2
    return estimate(sums, lambda s: mean_length(s[..., :half]) - mean_length(s[..., half:]), sums[:, :half].sum())


def length_by_distance(rollouts: Sequence[Rollout], steps: int, edges: Sequence[int]) -> list[tuple[float, Estimate]]:
    """Mean round length along the walk, by how far into its turn a round starts.

    Args:
        edges: limits of the distance bins, in tokens, ascending.

    Returns:
        The middle of each bin that holds a round, and its mean length.
    """
    placed = []
    for rollout in rollouts:
        firsts: dict[int, int] = {}  # a turn's first round starts at its first start
        rounds = walk(rollout, steps)
        placed.append([(item.start - firsts.setdefault(item.turn, item.start), item) for item in rounds])
    return length_by_bin(placed, edges)


def length_by_bin(placed: Sequence[Sequence[tuple[int, Round]]], edges: Sequence[int]) -> list[tuple[float, Estimate]]:
    """Mean length of the rounds in each bin, each turn's last round left out.

    Args:
        placed: the rounds of each sample, and the place by which each is put into a bin.
        edges: limits of the bins, ascending.

    Returns:
        The middle of each bin that holds a round, and its mean length with the bonus token.
    """
    n_bins = len(edges) - 1
    sums = np.zeros((len(placed), 2 * n_bins))
    for own, rounds in zip(sums, placed, strict=True):
        for place, item in rounds:
            bin_ = int(np.searchsorted(edges, place, side="right")) - 1
            if not item.last and 0 <= bin_ < n_bins:
                own[2 * bin_] += item.length
                own[2 * bin_ + 1] += 1
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


def start_sums(found: Chances) -> np.ndarray:
    """[3, K] by step: starts whose drafts up to it are accepted, starts that reach it, starts that could."""
    valid = found.valid.numpy()
    alive = found.chance.double().cumprod(1).numpy()
    before = np.concatenate([np.ones((len(alive), 1)), alive[:, :-1]], axis=1)
    return np.stack([(alive * valid).sum(0), (before * valid).sum(0), valid.sum(0)])


def _full_sums(rollout: Rollout, steps: int) -> np.ndarray:
    """[2, K] by step: starts whose draft of this step is right, and starts that have one."""
    return np.stack([rollout.hit[:, :steps].sum(0).numpy(), rollout.valid[:, :steps].sum(0).numpy()])


def _known_sums(rollout: Rollout, steps: int) -> np.ndarray:
    """[2, K] by step: starts whose recorded tokens up to it all lie in the draft vocabulary, and all starts."""
    valid = rollout.valid[:, :steps]
    known = rollout.logprob[:, :steps].isfinite().int().cumprod(1).bool()
    return np.stack([(known & valid).sum(0).numpy(), valid.sum(0).numpy()])


def _shares(sums: np.ndarray) -> tuple[Estimate, ...]:
    """First row over second, step by step, of [n, 2, K]."""
    totals = sums.sum(0)
    return tuple(estimate(sums[:, :, k], ratio(0, 1), totals[1, k]) for k in range(sums.shape[2]))


def _mean_of_requests(histograms: np.ndarray) -> Estimate:
    """Mean of the samples' own mean lengths; a sample without a whole round has none."""
    lengths = mean_length(histograms)
    known = np.isfinite(lengths)
    sums = np.stack([np.where(known, lengths, 0), known], axis=1)
    return estimate(sums, ratio(0, 1), known.sum())


def mean_length(histogram: np.ndarray) -> np.ndarray:
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
        length=estimate(histograms, mean_length, totals[0]),
    )


def _all_start_rates(sums: np.ndarray) -> Rates:
    """Rates from [n, 3, K] of `start_sums`."""
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
