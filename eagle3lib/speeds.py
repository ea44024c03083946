"""Measured speeds: what a round took, what it yielded, and what it has to yield.

round time        = batch · AL / tokens per second
break-even AL     = round time / time of a token without speculation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from eagle3lib.bootstrap import Estimate
from eagle3lib.case import CostPoint, CostSection
from eagle3lib.errors import InputError
from eagle3lib.recorded_speeds import RecordedSpeeds


class Source(StrEnum):
    """Where a quantity comes from, the surest first."""

    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Quantity:
    """A number, its unit, and where it comes from."""

    name: str
    value: Estimate
    unit: str
    source: Source
    why: str = ""

    def row(self) -> dict:
        """One row of a table; a number that was typed in has no interval."""
        known = self.value.low < self.value.high
        low, high = (self.value.low, self.value.high) if known else (None, None)
        return {
            "quantity": self.name, "value": self.value.value, "low": low, "high": high, "unit": self.unit,
            "source": str(self.source), "how": self.why,
        }  # fmt: skip


def exact(value: float) -> Estimate:
    """A number without an interval, as someone typed it in."""
    return Estimate(value, value, value, 1)


@dataclass(frozen=True)
class Speed:
    """One measured speed.

    Attributes:
        steps: draft length; 0: without a draft; None: not known.
        nodes: verified nodes of a round, root included; None: not known.
        length: tokens that a round yields, bonus included.
        round_ms: of one round of all sequences together.
        draft_ms: of it, drafting; None where no round was profiled.
        verify_ms: of it, verification, where a profile tells it from the rest.
    """

    steps: int | None
    topk: int | None
    nodes: int | None
    batch: int
    length: Estimate
    round_ms: Estimate
    draft_ms: Estimate | None = None
    verify_ms: Estimate | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return self.batch * self.length.value / self.round_ms.value * 1e3

    @property
    def label(self) -> str:
        """The shape in words."""
        if self.steps == 0:
            return "no draft"
        if self.topk == 1 and self.steps is not None:
            return f"K = {self.steps}"
        told = {"steps": self.steps, "topk": self.topk, "draft tokens": self.nodes}
        return ", ".join(f"{name} {value}" for name, value in told.items() if value is not None) or "shape unknown"


def round_ms(tokens_per_second: float, length: float, batch: int = 1) -> float:
    """Milliseconds of a round that yields `length` tokens to each of `batch` sequences."""
    return batch * length / tokens_per_second * 1e3


def break_even(round_ms: Estimate, token_ms: Estimate) -> Estimate:
    """Acceptance length at which a round is worth its time."""
    return quotient(round_ms, token_ms)


def quotient(a: Estimate, b: Estimate) -> Estimate:
    """One over the other, their intervals taken as independent; none where the first has none."""
    value = a.value / b.value
    if not a.has_interval:
        return Estimate(value, -np.inf, np.inf, a.count)
    return within(value, value * np.hypot(_relative(a), _relative(b)), a.count)


def speed(length: Estimate, round_ms: Estimate, batch: int = 1) -> Estimate:
    """Tokens a second; intervals of length and time taken as independent, none where the length has none."""
    value = batch * length.value / round_ms.value * 1e3
    if not length.has_interval:
        return Estimate(value, -np.inf, np.inf, length.count)
    return within(value, value * np.hypot(_relative(length), _relative(round_ms)), length.count)


def from_point(point: CostPoint) -> Speed:
    """A speed as a case states it; topk 1 makes the verified nodes steps + 1, as engines do.

    Raises:
        InputError: if it has no acceptance length, or one without a draft, or one that its shape cannot yield, or a
            profile longer than its round.
    """
    if (point.acceptance_length is None) != (point.steps == 0):
        found = "none" if point.acceptance_length is None else f"{point.acceptance_length} at steps = 0"
        raise InputError(
            f"[[cost.points]] of {point.tokens_per_second} tokens/s: expected acceptance_length, bonus token included,"
            f" wherever a draft was served and only there, found {found}."
        )
    length = point.acceptance_length or 1.0
    steps, topk, nodes = point.steps, point.topk, point.draft_tokens
    if steps == 0:
        topk, nodes = 1, 1
    elif topk == 1 and steps is not None:
        nodes = steps + 1
    elif topk == 1 and nodes is not None:
        steps = nodes - 1
    longest = min((n for n in (None if steps is None else steps + 1, nodes) if n is not None), default=np.inf)
    if length > longest + 0.01:  # printed lengths are rounded
        raise InputError(
            f"[[cost.points]] of {point.tokens_per_second} tokens/s: expected an acceptance_length of at most"
            f" {longest}, which steps and draft_tokens allow with the bonus token, found {length}."
        )
    profiled = {name: exact(value) for name in ("draft_ms", "verify_ms") if (value := getattr(point, name))}
    took = round_ms(point.tokens_per_second, length, point.batch)
    if sum(e.value for e in profiled.values()) > took * 1.02:
        raise InputError(
            f"[[cost.points]] of {point.tokens_per_second} tokens/s at {length} tokens a round takes"
            f" {took:.1f} ms a round, and its draft_ms and verify_ms are {sum(e.value for e in profiled.values()):.1f};"
            " state those of one round of all sequences, and the speed of all sequences together."
        )
    return Speed(steps, topk, nodes, point.batch, exact(length), exact(took), **profiled)


def measured_speeds(section: CostSection, recording: RecordedSpeeds | None) -> list[Speed]:
    """Every speed that a case states or its recording holds, without a draft first.

    Raises:
        InputError: as `from_point`, or if a speed without a draft, or of one draft shape, is stated twice.
    """
    found = [from_point(point) for point in section.points]
    if section.baseline is not None:
        found.append(Speed(0, 1, 1, section.batch, exact(1.0), exact(round_ms(section.baseline, 1.0, section.batch))))
    for point in recording.points if recording else ():
        drafted = point.draft_ms if point.steps else None
        found.append(Speed(point.steps, 1, point.steps + 1, 1, point.acceptance_length, point.pass_ms, drafted))
    alone = [s.batch for s in found if s.steps == 0]
    if len(set(alone)) != len(alone):
        raise InputError(
            "[cost] states the speed without a draft more than once at one batch size; keep one of baseline, speeds and"
            " the points of steps = 0."
        )
    shapes = [(s.batch, s.steps, s.topk, s.nodes) for s in found if s.nodes is not None and s.steps != 0]
    twice = next((s for s in found if shapes.count((s.batch, s.steps, s.topk, s.nodes)) > 1), None)
    if twice is not None:
        raise InputError(
            f"[cost] states a speed of {twice.label} more than once at batch {twice.batch}; keep one, or their mean."
        )
    return sorted(found, key=lambda s: (s.batch, s.nodes or np.inf))


def beyond_reading(found: Speed, token_ms: Estimate) -> float:
    """Milliseconds of a round that no reading of weights explains: draft and overhead.

    Verifying m tokens reads at most m times what one token reads, all experts of a sparse target included.
    """
    return max(found.round_ms.value - found.nodes * token_ms.value, 0.0)


def profiled(speeds: Sequence[Speed]) -> list[Quantity]:
    """Verification and overhead of each round whose profile states both draft and verify milliseconds."""
    found = []
    for s in speeds:
        if s.draft_ms is not None and s.verify_ms is not None:
            left = s.round_ms.value - s.draft_ms.value - s.verify_ms.value
            found.append(Quantity(f"verification at {s.label}", s.verify_ms, "ms", Source.MEASURED, "profiled"))
            why = "round less draft less verification"
            found.append(Quantity(f"overhead at {s.label}", exact(left), "ms", Source.MEASURED, why))
    return found


def shown(e: Estimate, spec: str = ".1f") -> str:
    """The value, and its interval where there is one with a width."""
    return f"{e:{spec}}" if e.low < e.high else f"{e.value:{spec}}"


def half(e: Estimate) -> float:
    """Half the width of an interval; 0 where there is none."""
    return (e.high - e.low) / 2 if e.has_interval else 0.0


def _relative(e: Estimate) -> float:
    return half(e) / e.value if e.value else 0.0


def within(value: float, off: float, count: int) -> Estimate:
    """A value with an interval of `off` to either side."""
    return Estimate(float(value), float(value - off), float(value + off), count)
