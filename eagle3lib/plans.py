"""Which draft shape to serve: acceptance length by the replay, a round's time by the cost model, speed from both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle3lib.bootstrap import Estimate
from eagle3lib.speeds import Source, break_even, exact, half, speed, within
from eagle3lib.throughput import CostModel


@dataclass(frozen=True)
class Shape:
    """What the engine is told: draft length, beam, verified nodes with the root."""

    steps: int
    topk: int
    nodes: int

    @classmethod
    def chain(cls, steps: int) -> Shape:
        """A chain of so many drafts; 0 is no speculation."""
        return cls(steps, 1, steps + 1)

    @property
    def label(self) -> str:
        """In words."""
        if self.steps == 0:
            return "speculation off"
        return f"K = {self.steps}" if self.topk == 1 else f"steps {self.steps}, topk {self.topk}, nodes {self.nodes}"


OFF = Shape.chain(0)


@dataclass(frozen=True)
class Plan:
    """One shape, what a round of it yields and takes, and the speed that follows, of all sequences together."""

    shape: Shape
    length: Estimate
    round_ms: Estimate
    source: Source
    speed: Estimate
    why: str = ""

    def row(self, token_ms: Estimate | None) -> dict:
        """One row of a table; `token_ms` is a step without speculation."""
        needed = break_even(self.round_ms, token_ms).value if token_ms else None
        told = self.speed.has_interval
        return {
            "shape": self.shape.label, "steps": self.shape.steps, "topk": self.shape.topk,
            "draft tokens": self.shape.nodes, "AL": self.length.value, "ms a round": self.round_ms.value,
            "source": str(self.source), "break-even": needed, "tokens/s": self.speed.value,
            "low": self.speed.low if told else None, "high": self.speed.high if told else None,
        }  # fmt: skip


Lengths = Mapping[Shape, Estimate]


def replayed_lengths(numbers: Mapping[str, Any]) -> dict[str, dict[Shape, Estimate]]:
    """Acceptance length by wiring and shape, from what notebook 05 recorded; {} where it replayed nothing.

    Trees were replayed on fewer responses, so a tree's length is that of the chain of as many nodes on all of them and
    the paired gain; its own where that chain was not replayed. They belong to the first wiring.
    """
    found: dict[str, dict[Shape, Estimate]] = {}
    for row in numbers.get("acceptance_length", []):
        length = _estimate(row["walk"], row["low"], row["high"], row["rounds"])
        found.setdefault(row["wiring"], {})[Shape.chain(row["K"])] = length
    if not found:
        return {}
    first = next(iter(found.values()))
    for row in numbers.get("trees", []):
        shape = Shape(row["steps"], row["topk"], row["verified nodes"])
        if shape.topk == 1:
            continue
        chain = first.get(Shape.chain(shape.nodes - 1))
        gain = _estimate(row["gain"], row["gain low"], row["gain high"], row["rounds"])
        own = _estimate(row["walk"], row["low"], row["high"], row["rounds"])
        if chain is not None and chain.has_interval and gain.has_interval:
            own = within(chain.value + gain.value, np.hypot(half(chain), half(gain)), gain.count)
        first[shape] = own
    return found


def plans(model: CostModel, lengths: Lengths) -> list[Plan]:
    """Every shape whose round the model can time, and first serving without speculation where that was measured."""
    found = []
    if model.token_ms is not None:
        source = Source.ASSUMED if model.token_assumed else Source.MEASURED
        alone = speed(exact(1.0), model.token_ms, model.batch)
        found.append(Plan(OFF, exact(1.0), model.token_ms, source, alone))
    for shape, length in lengths.items():
        took = model.round_ms(shape.steps, shape.topk, shape.nodes)
        if took is not None and np.isfinite(length.value):
            found.append(Plan(shape, length, took.value, took.source, speed(length, took.value, model.batch), took.why))
    return found


def best(found: Sequence[Plan]) -> Plan | None:
    """The fastest, no speculation included. Trees only where they were measured: what a wider beam costs is assumed."""
    allowed = [p for p in found if p.shape.topk == 1 or p.source is Source.MEASURED]
    return max(allowed, key=lambda p: p.speed.value, default=None)


def told_apart(first: Plan, second: Plan) -> bool:
    """Whether the intervals of their speeds lie apart; never where one has none."""
    if not (first.speed.has_interval and second.speed.has_interval):
        return False
    return first.speed.low > second.speed.high or second.speed.low > first.speed.high


def against_break_even(found: Sequence[Plan], token_ms: Estimate) -> str:
    """Which chains yield more than they cost, which less, and of which the intervals cannot tell, in words."""
    above, below, unclear = [], [], []
    for plan in found:
        if plan.shape.topk == 1 and plan.shape.steps:
            needed = break_even(plan.round_ms, token_ms)
            if plan.length.has_interval and plan.length.low > needed.high:
                above.append(plan.shape.label)
            elif plan.length.has_interval and plan.length.high < needed.low:
                below.append(plan.shape.label)
            else:
                unclear.append(plan.shape.label)
    parts = (("above break-even", above), ("below break-even", below), ("cannot be told", unclear))
    return "; ".join(f"{words} at {_range(labels)}" for words, labels in parts if labels)


def _range(labels: Sequence[str]) -> str:
    """K = 1, or K = 3 to K = 8 where more than two follow each other."""
    return ", ".join(labels) if len(labels) < 3 else f"{labels[0]} to {labels[-1]}"


def plan_at(found: Sequence[Plan], shape: Shape) -> Plan | None:
    """The plan of that shape; None where its round cannot be timed or was not replayed."""
    return next((p for p in found if p.shape == shape), None)


def _estimate(value: float | None, low: float | None, high: float | None, count: int) -> Estimate:
    """As a results file holds it, where null stands for what was not finite."""
    nan = float("nan")
    return Estimate(
        nan if value is None else value, -np.inf if low is None else low, np.inf if high is None else high, count
    )
