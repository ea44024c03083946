"""What the lines of one shape say, with intervals from the server's own counts.

Windows are resampled in runs of consecutive ones, for what one request does in one window it does in the next. Too few
windows leave the rounds themselves, drawn as if independent, or the widest interval that the counts allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lib.bootstrap import LEVEL, RESAMPLES, SEED, Estimate, Z, estimate, ratio
from eagle3lib.ecosystems._logs import Shape, Window
from eagle3lib.served_rates import ServedRates
from eagle3lib.tally import Tally

#: Windows that a bootstrap resamples at least; fewer say too little of how windows differ.
FEWEST_WINDOWS = 8
#: Runs of consecutive windows that are resampled at most.
MOST_BLOCKS = 512
#: Mean drafts a round, in K, below which an engine shortens them by more than the ends of responses.
SHORTENED = 0.8


@dataclass(frozen=True)
class Load:
    """Windows of one number of running requests, with or without others that waited."""

    running: int
    queued: bool
    windows: int
    length: float


@dataclass(frozen=True)
class Served:
    """What the lines of one shape say.

    Attributes:
        shape: whose lines, and how their numbers count.
        windows: how many lines, requests or differences of totals.
        rounds: verifications; None where none were counted.
        length: tokens a round, bonus included; `length.value - 1` drafts were accepted a round.
        interval: what the interval of `length` was made from.
        survival: S_k with intervals; () where nothing was counted by position.
        rates: the same for `served_evidence`; None without counts by position. Whether drafts were chains or trees,
            greedy or sampled, no line tells; the server's arguments do.
        steps: drafts that a round can have at most, as the lines show it, K where the draft is a chain; None where
            they do not, or where it changed.
        drafted: mean drafts a round by the server's own count, None where it has none.
        speed: tokens per second, median of windows; of the server or of one request, as `shape.speed` says.
        running: requests at once, median of windows.
        loads: the windows by load, most frequent first.
        tally: the sums behind all this.
    """

    shape: Shape
    windows: int
    rounds: int | None
    length: Estimate
    interval: str
    survival: tuple[Estimate, ...]
    rates: ServedRates | None
    steps: int | None
    drafted: float | None
    speed: Estimate | None
    running: float | None
    loads: tuple[Load, ...]
    tally: Tally

    @property
    def shortened(self) -> float | None:
        """Mean drafts a round, where an engine drafts fewer than K on purpose."""
        if self.steps is None or self.drafted is None or self.drafted >= SHORTENED * self.steps:
            return None
        return self.drafted


def served(tally: Tally) -> Served:
    """Rates and intervals of a tally."""
    # K is one number where every window that tells it tells the same.
    steps = next(iter(tally.nodes)) if len(tally.nodes) == 1 else None
    length, interval = _length(tally, steps)
    survival, rates = _survival(tally)
    running = [w.running for w in tally.kept if w.running is not None]
    return Served(
        tally.shape, tally.windows, round(tally.rounds) if tally.counted else None, length, interval, survival, rates,
        steps, tally.drafted / tally.drafting if tally.drafting and tally.counted else None,
        _median([w.speed for w in tally.kept if w.speed is not None and w.speed > 0]),
        float(np.median(running)) if running else None, _loads(tally.kept), tally,
    )  # fmt: skip


def _length(tally: Tally, steps: int | None) -> tuple[Estimate, str]:
    """AL = 1 + Σ accepted / Σ rounds, and what its interval was made from."""
    value, count = 1 + tally.accepted / tally.rounds, round(tally.rounds) if tally.counted else tally.windows
    if len(tally.kept) >= FEWEST_WINDOWS:
        blocks = np.array_split(
            np.array([(w.rounds, w.accepted) for w in tally.kept]), min(len(tally.kept), MOST_BLOCKS)
        )
        found = estimate(np.stack([block.sum(0) for block in blocks]), lambda s: 1 + ratio(1, 0)(s), count)
        low, high = (bound + value - found.value for bound in (found.low, found.high))
        made = f"bootstrap over {len(blocks)} windows" if tally.shape.over != "requests" else \
            f"bootstrap over {len(blocks)} requests"  # fmt: skip
    elif tally.counted and tally.survived and tally.surviving == tally.rounds:
        low, high = np.percentile(1 + _resampled(np.array(tally.survived), tally.surviving).sum(1), _TAILS)
        made = f"multinomial, {count:,} rounds as if independent"
    elif tally.counted and steps is not None:
        # A number between 0 and K of mean m has a variance of at most m (K - m). (Bhatia and Davis 2000)
        mean = min(value - 1, float(steps))
        error = Z * (mean * (steps - mean) / tally.rounds) ** 0.5
        low, high, made = (
            max(1.0, value - error),
            min(1.0 + steps, value + error),
            "the widest that K and the rounds allow",
        )
    else:
        return Estimate(value, -np.inf, np.inf, count), "none: too few windows"
    if low == high and tally.counted:
        most = max(steps or 0, len(tally.survived), 1)
        low, high = (1 + most * bound for bound in _unseen((value - 1) / most, tally.rounds))
        made = f"{count:,} rounds alike: what none of so many showed"
    if tally.half:
        made += ", widened by the rounding"
    return Estimate(value, float(low) - tally.half, float(high) + tally.half, count), made


def _unseen(share: float, rounds: float) -> tuple[float, float]:
    """An interval around a share that never varied: of n rounds none would show what happens in 1 - (1 - LEVEL)^(1/n).

    (Hanley and Lippman-Hand 1983)
    """
    reach = 1 - (1 - LEVEL) ** (1 / rounds)
    return max(0.0, share - reach), min(1.0, share + reach)


_TAILS = (100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2)


def _resampled(survived: np.ndarray, rounds: float) -> np.ndarray:
    """[RESAMPLES, K] survival of as many rounds drawn from those counted."""
    reached = np.minimum.accumulate(np.clip(np.array([rounds, *survived, 0.0]), 0, rounds))
    exactly = -np.diff(reached)  # rounds by accepted drafts, 0 .. K
    drawn = np.random.default_rng(SEED).multinomial(round(rounds), exactly / exactly.sum(), RESAMPLES)
    return drawn[:, ::-1].cumsum(1)[:, ::-1][:, 1:] / round(rounds)


def _survival(tally: Tally) -> tuple[tuple[Estimate, ...], ServedRates | None]:
    """S_k over the windows that tell it; a position that no round accepted is a zero like others."""
    if not tally.survived or tally.surviving < 1:
        return (), None
    longest = max(len(tally.survived), max(tally.nodes, default=0))
    survived = np.array([*tally.survived, *[0.0] * (longest - len(tally.survived))])
    values = np.minimum.accumulate(np.clip(survived / tally.surviving, 0, 1))
    telling = [w for w in tally.kept if w.survived]
    if len(telling) >= FEWEST_WINDOWS:
        rows = np.array([(w.rounds, *w.survived, *[0.0] * (longest - len(w.survived))) for w in telling])
        blocks = np.stack([b.sum(0) for b in np.array_split(rows, min(len(rows), MOST_BLOCKS))])
        spread = [estimate(blocks, ratio(k, 0), 0) for k in range(1, longest + 1)]
        bounds = [(e.low + v - e.value, e.high + v - e.value) for e, v in zip(spread, values, strict=True)]
    else:
        bounds = np.percentile(_resampled(survived, tally.surviving), _TAILS, axis=0).T.tolist()
    count = round(tally.surviving)
    bounds = [b if b[0] < b[1] else _unseen(v, count) for b, v in zip(bounds, values, strict=True)]
    survival = [Estimate(float(v), max(0.0, low), min(1.0, high), count) for v, (low, high) in
                zip(values, bounds, strict=True)]  # fmt: skip
    return tuple(survival), ServedRates(tuple(map(float, values)), count)


def _median(values: Sequence[float]) -> Estimate | None:
    """The median, with the order statistics that hold it at `LEVEL` whatever the distribution."""
    if not values:
        return None
    ordered, n = sorted(values), len(values)
    reach = Z * n**0.5 / 2
    first, last = int(n / 2 - reach), int(np.ceil(n / 2 + reach))
    whole = first >= 0 and last < n and n >= FEWEST_WINDOWS
    low, high = (ordered[first], ordered[last]) if whole else (-np.inf, np.inf)
    return Estimate(float(np.median(ordered)), low, high, n)


def _loads(kept: Sequence[Window]) -> tuple[Load, ...]:
    groups: dict[tuple[int, bool], list[Window]] = {}
    for window in kept:
        if window.running is not None:
            groups.setdefault((round(window.running), (window.queued or 0) > 0), []).append(window)
    found = [
        Load(running, queued, len(group), 1 + sum(w.accepted for w in group) / sum(w.rounds for w in group))
        for (running, queued), group in groups.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda load: -load.windows))
