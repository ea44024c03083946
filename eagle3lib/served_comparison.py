"""Served against replayed: whether a server's numbers are the replay's, and what the shape of a difference suggests.

Both sides are counted alike: drafts accepted a round, bonus included in lengths, each turn's last round counted where
the server counts it. What its verifier accepted beyond a response's end no recording shows, so a replayed rate lies
between none and all of those drafts.

    gap      = AL(served) - AL(replayed)
    ratio_k  = c_k(served) / c_k(replayed),      c_k = S_k / S_(k-1)
    Var(log ratio_k) = (1 - c_k) / (n_k c_k) + (e_k / r_k)²        n_k rounds that reached k, e_k the replay's error

    ratio_1 is 1, later ones are not             the engine's loop: feedback, positions, keys
    all ratios are one factor                    other text: data, template, system prompt, numerics of the target
    short responses agree, long ones do not      the context
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from eagle3lib.acceptance import Rates
from eagle3lib.bootstrap import Estimate, Z, chi_square, estimate, ratio
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Chances, walk
from eagle3lib.served_numbers import Numbers
from eagle3lib.served_rates import ServedRates
from eagle3lib.tree_shapes import TreeShape

#: An interval wider than this share of the length to either side tells too little: the speed may differ by as much.
MATTERS = 0.15
#: Accepted drafts at a position below which its rate is left out of ratios.
FEWEST_ACCEPTED = 5
#: Requests of each kind, short and long, before they are told apart.
FEWEST_REQUESTS = 8

Kind = Literal["agrees", "cannot tell", "other wiring", "context", "loop", "one factor", "differs"]


def server_rates(rollouts: Sequence[Rollout | Chances], steps: int, last_rounds: bool, system: str = "") -> Rates:
    """A replayed greedy run's rates as a server counts them.

    Args:
        last_rounds: whether each turn's last round counts.
        system: SGLang's lengths are of tokens that stand in responses, others' of accepted drafts.

    Raises:
        ValueError: if a rollout has fewer steps, or accepts by chance.
    """
    rows = np.array([_row(rollout, steps, last_rounds) for rollout in rollouts])  # [n, 2, K + 3]
    # Without last rounds none is cut by the end of its turn, and both sides are one.
    sides = (rows[:, 0], rows[:, 1]) if last_rounds else (rows[:, 0],)
    column = steps + 2 if system == "SGLang" and last_rounds else steps + 1

    def between(numerator: int, denominator: int) -> Estimate:
        found = [estimate(side, ratio(numerator, denominator), int(rows[:, 0, denominator].sum())) for side in sides]
        return replace(found[0], low=min(e.low for e in found), high=max(e.high for e in found))

    accepted = between(column, 0)
    length = replace(accepted, value=1 + accepted.value, low=1 + accepted.low, high=1 + accepted.high)
    positions = range(1, steps + 1)
    return Rates(tuple(between(k, 0) for k in positions), tuple(between(k, k - 1) for k in positions), length)


def _row(rollout: Rollout | Chances, steps: int, last_rounds: bool) -> np.ndarray:
    """[2, K + 3]: rounds, rounds that accepted at least k drafts, accepted drafts, committed tokens less rounds; with
    drafts beyond a turn's end all refused, and all accepted."""
    rounds = [item for item in walk(rollout, steps) if last_rounds or not item.last]
    row = np.zeros((2, steps + 3))
    for side, most in zip(row, (False, True), strict=True):
        accepted = np.array([steps if most and item.cut else item.accepted for item in rounds], dtype=int)
        side[: steps + 1] = np.bincount(accepted, minlength=steps + 1)[::-1].cumsum()[::-1]
        side[steps + 1] = accepted.sum()
        side[steps + 2] = side[steps + 1] if most else sum(item.committed - 1 for item in rounds)
    return row


@dataclass(frozen=True)
class Comparison:
    """A server's numbers beside the replays.

    Attributes:
        shape: the round of both, in words.
        tree: whether it is one.
        replayed: rates by wiring, counted as the server counts.
        believed: the wiring that the server is taken to have.
        kind: what the numbers show.
        explained_by: the wirings whose replay gives the server's numbers.
        gap: AL(served) - AL(replayed), of `believed`.
        ratios: c_k(served) / c_k(replayed); NaN where too few were accepted; () without counts by position.
        factor: the common ratio of all positions; None where there is none.
        rounds_to_tell: independent rounds of the server that would bring its interval within `MATTERS`;
            infinite where the replay's own interval is wider.
        long: length of responses longer than `split` tokens, less that of the others; None where not compared.
        split: tokens.
    """

    numbers: Numbers
    shape: str
    tree: bool
    replayed: Mapping[str, Rates]
    believed: str
    kind: Kind
    explained_by: tuple[str, ...]
    gap: Estimate
    ratios: tuple[Estimate, ...]
    factor: Estimate | None
    rounds_to_tell: float
    long: Estimate | None
    split: int | None

    @property
    def theirs(self) -> Rates:
        """The believed replay."""
        return self.replayed[self.believed]


def compare(
    numbers: Numbers, shape: TreeShape, replayed: Mapping[str, Rates], believed: str, longest: int | None = None
) -> Comparison:
    """Hold numbers against replays of the same shape of round.

    Args:
        replayed: as `server_rates` gives them, with `last_rounds` as the numbers have it.
        believed: a name among them.
        longest: tokens of the longest replayed response.
    """
    ours = replayed[believed]
    gap = _gap(numbers.length, ours.length)
    ratios = _ratios(numbers.rates, ours) if numbers.rates else ()
    explained = tuple(name for name, rates in replayed.items() if explains(numbers, rates))
    long, split = _along(numbers, ours, longest)
    factor = _one_factor(ratios)
    kind: Kind
    if believed in explained:
        wide = max(gap.high - gap.value, gap.value - gap.low) > MATTERS * numbers.length.value
        kind = "cannot tell" if wide or not ours.length.has_interval else "agrees"
    elif not ours.length.has_interval:
        kind = "cannot tell"
    elif explained:
        kind = "other wiring"
    elif long is not None:
        kind = "context"
    elif numbers.rates and _loop(numbers.rates, ours):
        kind = "loop"
    else:
        kind = "one factor" if factor is not None else "differs"
    tell = _rounds_to_tell(numbers, ours)
    return Comparison(
        numbers,
        shape.label,
        shape.topk > 1,
        replayed,
        believed,
        kind,
        explained,
        gap,
        ratios,
        factor,
        tell,
        long,
        split,
    )


def explains(numbers: Numbers, replayed: Rates) -> bool:
    """Whether a replay gives the numbers: by position where they were counted so, else by the length alone."""
    if numbers.rates is not None:
        return numbers.rates.distance(replayed.conditional) <= numbers.rates.expected
    gap = _gap(numbers.length, replayed.length)
    return gap.low <= 0 <= gap.high


def _gap(served: Estimate, replayed: Estimate) -> Estimate:
    """The difference of two independent lengths; of one without an interval the other's alone counts."""
    value = served.value - replayed.value
    if not replayed.has_interval:
        return Estimate(value, -np.inf, np.inf, served.count)
    # Each side of a difference has the other's opposite side. (Newcombe 1998, method 10)
    below, above = (
        (served.value - served.low, served.high - served.value) if served.has_interval else (0.0, 0.0)
    )  # fmt: skip
    low = value - np.hypot(below, replayed.high - replayed.value)
    high = value + np.hypot(above, replayed.value - replayed.low)
    return Estimate(value, float(low), float(high), served.count)


def _ratios(rates: ServedRates, replayed: Rates) -> tuple[Estimate, ...]:
    found, before = [], 1.0
    for survived, theirs in zip(rates.survival, replayed.conditional, strict=True):
        accepted = rates.rounds * survived
        if accepted < FEWEST_ACCEPTED or not theirs.value > 0 or not np.isfinite(theirs.error):
            found.append(Estimate(np.nan, np.nan, np.nan, round(accepted)))
        else:
            served = survived / before
            error = ((1 - served) / accepted + (theirs.error / theirs.value) ** 2) ** 0.5
            value = served / theirs.value
            found.append(
                Estimate(value, value * np.exp(-Z * error), value * np.exp(Z * error), round(rates.rounds * before))
            )
        before = survived
    return tuple(found)


def _loop(rates: ServedRates, replayed: Rates) -> bool:
    """Whether the first position agrees and the others do not."""
    if len(rates.survival) < 2 or rates.survival[0] == 0:
        return False
    first = ServedRates(rates.survival[:1], rates.rounds)
    later = ServedRates(
        tuple(s / rates.survival[0] for s in rates.survival[1:]), max(1, round(rates.rounds * rates.survival[0]))
    )
    agrees = first.distance(replayed.conditional[:1]) <= first.expected
    return agrees and later.distance(replayed.conditional[1:]) > later.expected


def _one_factor(ratios: Sequence[Estimate]) -> Estimate | None:
    """The common ratio, where it is not 1 and the positions do not differ in it.

    Q = Σ_k (log ratio_k - m)² / v_k, m the weighted mean: χ² with one degree of freedom fewer than positions.
    """
    known = [r for r in ratios if r.value > 0]
    if len(known) < 2:
        return None
    logs = np.log([r.value for r in known])
    errors = (np.log([r.high for r in known]) - logs) / Z
    weights = 1 / np.maximum(errors, 1e-6) ** 2
    mean, error = float((weights * logs).sum() / weights.sum()), float(weights.sum() ** -0.5)
    spread = float((weights * (logs - mean) ** 2).sum())
    if spread > chi_square(len(known) - 1) or abs(mean) <= Z * error:
        return None
    low, value, high = np.exp([mean - Z * error, mean, mean + Z * error]).tolist()
    return Estimate(value, low, high, len(known))


def _along(numbers: Numbers, replayed: Rates, longest: int | None) -> tuple[Estimate | None, int | None]:
    """Whether short responses agree with the replay and long ones fall behind: the difference, and where it begins.

    The limit is the longest replayed response where enough requests lie on both sides of it, else the median one.
    """
    tokens = np.array([request.tokens for request in numbers.requests])
    if len(tokens) < 2 * FEWEST_REQUESTS:
        return None, None
    for split in (longest, int(np.median(tokens))):
        if split is not None and min((tokens <= split).sum(), (tokens > split).sum()) >= FEWEST_REQUESTS:
            break
    else:
        return None, None
    rows = np.array(
        [(r.rounds, r.accepted, 0, 0) if r.tokens <= split else (0, 0, r.rounds, r.accepted) for r in numbers.requests]
    )
    short = estimate(rows[tokens <= split], lambda s: 1 + ratio(1, 0)(s), int(rows[:, 0].sum()))
    long = estimate(rows, lambda s: ratio(3, 2)(s) - ratio(1, 0)(s), int(rows[:, 2].sum()))
    same = _gap(short, replayed.length)
    return (long, split) if long.high < 0 and same.low <= 0 <= same.high else (None, None)


def _rounds_to_tell(numbers: Numbers, replayed: Rates) -> float:
    """n of the server for which half the interval of the gap is `MATTERS` of the length."""
    if not numbers.counted or not replayed.length.has_interval:
        return np.inf
    wanted = (MATTERS * numbers.length.value) ** 2 - ((replayed.length.high - replayed.length.low) / 2) ** 2
    mine = ((numbers.length.high - numbers.length.low) / 2) ** 2
    return numbers.length.count * mine / wanted if wanted > 0 else np.inf
