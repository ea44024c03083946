"""Confidence intervals by bootstrap over samples.

Tokens of one response are no independent draws, so whole samples are resampled: each sample contributes a
row of sums, a resample weighs the rows, and the statistic is a function of the weighted sums. Two variants
scored on the same samples share the weights, which makes their difference paired. (Efron 1979)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

RESAMPLES = 2000
SEED = 0
LEVEL = 0.95
#: How many standard errors lie between a value and either end of its interval.
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval, and how many trials are behind it."""

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return format(self)

    def __format__(self, spec: str) -> str:
        """The value and its interval, each number by `spec`, as in `1.66 [1.61, 1.71]`; one sample has no interval."""
        spec = spec or ".3f"
        if not self.has_interval:
            return f"{self.value:{spec}} (no interval: too few samples)"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    @property
    def has_interval(self) -> bool:
        """Whether there were samples enough for an interval: one says nothing of how samples differ."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero: for a difference, whether it is told apart."""
        return self.low > 0 or self.high < 0

    @property
    def error(self) -> float:
        """The standard error that the interval speaks of; infinite for one sample."""
        return (self.high - self.low) / (2 * Z)

    @property
    def count_to_tell(self) -> float:
        """About how many trials would put zero outside the interval, whose width falls with their square root."""
        return self.count * ((self.high - self.low) / (2 * self.value)) ** 2 if self.value else np.inf

    @property
    def numbers(self) -> list[float]:
        """Value, low and high, as a finding's evidence holds them."""
        return [self.value, self.low, self.high]

    def to_json(self) -> dict:
        """A plain dictionary for a results file."""
        return {"value": self.value, "low": self.low, "high": self.high, "count": self.count}


def chi_square(freedom: int, level: float = LEVEL) -> float:
    """χ²'s quantile. (Wilson and Hilferty 1931)"""
    return freedom * (1 - 2 / (9 * freedom) + NormalDist().inv_cdf(level) * (2 / (9 * freedom)) ** 0.5) ** 3


Statistic = Callable[[np.ndarray], np.ndarray]


@lru_cache(maxsize=2)  # most of a case's estimates are over the same samples
def weights(n_samples: int) -> np.ndarray:
    """[RESAMPLES, n] how often each resample holds each sample; the same for every call, and read-only."""
    generator = np.random.default_rng(SEED)
    drawn = generator.multinomial(n_samples, np.full(n_samples, 1 / n_samples), size=RESAMPLES)
    drawn.flags.writeable = False
    return drawn


def estimate(sums: np.ndarray, statistic: Statistic, count: int) -> Estimate:
    """The statistic of the summed rows, with a percentile interval.

    Args:
        sums: [n, m] one row of sums a sample.
        statistic: maps sums [..., m] to values [...]; must yield NaN where it is undefined.
        count: the number of trials, for display.
    """
    if len(sums) == 0:
        return Estimate(np.nan, np.nan, np.nan, 0)
    low, high = -np.inf, np.inf  # one sample says nothing of how samples differ
    if len(sums) > 1:
        values = statistic(weights(len(sums)) @ sums)
        values = values[np.isfinite(values)]
        tail = 100 * (1 - LEVEL) / 2
        low, high = np.percentile(values, [tail, 100 - tail]) if len(values) else (np.nan, np.nan)
    return Estimate(float(statistic(sums.sum(0))), float(low), float(high), int(count))


def ratio(numerator: int, denominator: int) -> Statistic:
    """Column `numerator` over column `denominator`, NaN where that is zero."""

    def statistic(sums: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(sums[..., denominator] > 0, sums[..., numerator] / sums[..., denominator], np.nan)

    return statistic


def share_back(sums: np.ndarray) -> np.ndarray:
    """(AL mended - AL broken) / (AL true - AL broken), NaN where nothing is lost.

    Args:
        sums: [..., 6] tokens and rounds of the true, the broken and the mended draft.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        best, worst, found = (sums[..., 2 * i] / sums[..., 2 * i + 1] for i in range(3))
        return np.where(best > worst, (found - worst) / (best - worst), np.nan)
