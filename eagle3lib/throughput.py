"""What a round of speculation costs, and what it has to yield.

    round time        = verify(batch, nodes) + draft(steps, topk) + overhead        nodes = draft tokens, root included
    tokens per second = batch · AL / round time
    break-even AL     = round time / time of a token without speculation

A speed and an acceptance length measured together give one round time. Two give a line in verified nodes, which
holds drafting and verification in one sum: what they cost apart is known only where a round was profiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from eagle3lib.bootstrap import Estimate
from eagle3lib.speeds import Quantity, Source, Speed, exact, half, within


@dataclass(frozen=True)
class Curve:
    """Milliseconds by a count: as measured where it was, else on the line through the two nearest that were."""

    known: tuple[tuple[int, Estimate], ...]  # ascending

    def at(self, x: int) -> Estimate | None:
        """None where fewer than two are known and x is none of them."""
        counts = [count for count, _ in self.known]
        if x in counts:
            return self.known[counts.index(x)][1]
        if len(counts) < 2:
            return None
        right = min(max(int(np.searchsorted(counts, x)), 1), len(counts) - 1)
        (x0, y0), (x1, y1) = self.known[right - 1], self.known[right]
        w = (x - x0) / (x1 - x0)
        off = np.hypot((1 - w) * half(y0), w * half(y1))
        return within((1 - w) * y0.value + w * y1.value, off, min(y0.count, y1.count))

    def rising(self, x: int, least: float) -> Estimate | None:
        """As `at`, of what does not fall with the count and is never below `least`.

        A line that is drawn on beyond what is known would: to the right it stays above all that is, to the left below.
        """
        found = self.at(x)
        if found is None or self.known[0][0] <= x <= self.known[-1][0]:
            return found
        values = [e.value for _, e in self.known]
        low, high = (max(values), np.inf) if x > self.known[-1][0] else (min(least, *values), min(values))
        return within(min(max(found.value, low), high), half(found), found.count)

    def changed(self, by: Callable[[int, float], float]) -> Curve:
        """Milliseconds changed, each from its count and itself, the width of their intervals kept."""
        return Curve(tuple((n, within(by(n, e.value), (e.high - e.low) / 2, e.count)) for n, e in self.known))

    @property
    def slope(self) -> Estimate | None:
        """Milliseconds of one more, on average over what is known."""
        if len(self.known) < 2:
            return None
        (x0, y0), (x1, y1) = self.known[0], self.known[-1]
        off = np.hypot(half(y0), half(y1)) / (x1 - x0)
        return within((y1.value - y0.value) / (x1 - x0), off, min(y0.count, y1.count))


@dataclass(frozen=True)
class CostModel:
    """What a round of any shape takes at one batch size.

    Attributes:
        token_ms: a step without speculation; None where it was not measured.
        rounds: whole rounds by verified nodes.
        steps: draft length of each of these.
        draft: by steps, `rest` by verified nodes: verification and overhead. Both None where no profile told them
            apart.
        measured: rounds by shape (steps, topk, nodes) as measured; of two with as many nodes `rounds` has the chain.
        assumed: what had to be assumed, in words.
        token_assumed: whether `token_ms` is.
    """

    batch: int
    token_ms: Estimate | None
    rounds: Curve
    steps: Curve
    draft: Curve | None
    rest: Curve | None
    measured: Mapping[tuple[int | None, int | None, int], Estimate] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    token_assumed: bool = False

    @property
    def separated(self) -> bool:
        """Whether drafting and the rest are known apart."""
        return self.draft is not None

    def round_ms(self, steps: int, topk: int = 1, nodes: int | None = None) -> Quantity | None:
        """A round's time by shape; a chain unless `nodes` says otherwise. None where too little was measured."""
        nodes = steps + 1 if nodes is None else nodes
        name = f"round of steps {steps}, topk {topk}, draft tokens {nodes}"
        if (measured := self.measured.get((steps, topk, nodes))) is not None:
            return Quantity(name, measured, "ms", Source.MEASURED)
        why = "; ".join(self.assumed)
        source = Source.ASSUMED if self.assumed else Source.FITTED
        whole = self._whole(steps, nodes)
        if whole is None or whole.value <= 0:  # a steep line, drawn on to the left
            return None
        if topk > 1:
            source, why = Source.ASSUMED, "; ".join(filter(None, [why, "a draft step costs as much for a wider beam"]))
        return Quantity(name, whole, "ms", source, why)

    def _whole(self, steps: int, nodes: int) -> Estimate | None:
        """Drafting and the rest, each by its own curve; or the curve of whole rounds.

        Not separated, of the slope, d a step and v a node, only the sum is known, and both are 0 or more: a shape with
        other steps than the measured rounds' of as many nodes lies between the time with d = 0 and that with v = 0.
        """
        least = self.token_ms.value if self.token_ms else 0.0
        along, usual = self.rounds.rising(nodes, least), self.steps.at(nodes)
        if self.separated:
            drafted, rest = self.draft.at(steps), self.rest.rising(nodes, least)
            if drafted is None or rest is None:
                return None
            return within(drafted.value + rest.value, np.hypot(half(drafted), half(rest)), rest.count)
        if along is None:
            return None
        other, slope = steps - usual.value, self.rounds.slope
        if abs(other) < 1e-9:
            return along
        if slope is None:
            return None
        more = self.steps.slope.value
        most = other * max(slope.value, 0) / more if more else 0.0
        low, high = sorted((0.0, most))
        off = half(along)
        return Estimate(along.value + (low + high) / 2, along.value + low - off, along.value + high + off, along.count)


def fit(speeds: Iterable[Speed], batch: int = 1) -> CostModel:
    """The model that the speeds at one batch size allow.

    What is not known is filled in and said: a shape's steps as a chain's, and where a single round was profiled,
    the root alone as a token without speculation.
    """
    mine = [s for s in speeds if s.batch == batch]
    alone = next((s.round_ms for s in mine if s.steps == 0), None)
    shaped = [s for s in mine if s.steps != 0 and s.nodes is not None]
    shaped.sort(key=lambda s: (s.nodes, s.topk != 1))
    rounds = [s for i, s in enumerate(shaped) if i == 0 or s.nodes != shaped[i - 1].nodes]
    assumed = []
    unknown = [s for s in rounds if s.steps is None and s.nodes > 2]
    if unknown:
        listed = ", ".join(str(s.nodes) for s in unknown)
        assumed.append(f"the round of {listed} draft tokens was a chain's")
    steps = Curve(tuple((s.nodes, exact(s.steps if s.steps is not None else s.nodes - 1)) for s in rounds))
    profiled = [s for s in rounds if s.draft_ms is not None and s.steps is not None]
    draft = rest = None
    if profiled:
        drafted = {0: exact(0.0)} | {s.steps: s.draft_ms for s in profiled}
        left = {s.nodes: _less(s.round_ms, s.draft_ms) for s in profiled}
        if len(left) == 1 and alone is not None and 1 not in left:
            left[1] = alone
            assumed.append("verifying the root alone costs a token without speculation")
        draft, rest = (Curve(tuple(sorted(known.items(), key=lambda k: k[0]))) for known in (drafted, left))
    measured = {(s.steps, s.topk, s.nodes): s.round_ms for s in shaped}
    whole = Curve(tuple((s.nodes, s.round_ms) for s in rounds))
    return CostModel(batch, alone, whole, steps, draft, rest, measured, tuple(assumed))


#: A quantity's name: the fixed cost of a round.
BEYOND = "of it beyond a token"


def quantities(model: CostModel) -> list[Quantity]:
    """What the model knows, each with its source: token, root alone, and what one more of each adds."""
    found, line = [], Source.ASSUMED if model.assumed else Source.FITTED
    if model.token_ms is not None:
        source = Source.ASSUMED if model.token_assumed else Source.MEASURED
        found.append(Quantity("a token without speculation", model.token_ms, "ms", source))
    if model.separated:
        parts = (("a draft step", model.draft, "steps"), ("a verified node", model.rest, "nodes"))
    else:
        parts = (("a node, drafted and verified: not separable", model.rounds, "nodes"),)
    for name, curve, counted in parts:
        if curve.slope is not None:
            ends = f"on average from {curve.known[0][0]} to {curve.known[-1][0]} {counted}"
            found.append(Quantity(name, curve.slope, "ms", line, _why(model, ends)))
    root = model.round_ms(0)
    if root is not None:
        why = _why(model, "the line through the two nearest rounds")
        found.append(Quantity("a round with the root alone", root.value, "ms", root.source, why))
        if model.token_ms is not None:
            off = np.hypot(half(root.value), half(model.token_ms))
            extra = within(root.value.value - model.token_ms.value, off, root.value.count)
            found.append(Quantity(BEYOND, extra, "ms", root.source, "the round's fixed cost"))
    return found


def _why(model: CostModel, how: str) -> str:
    return "; ".join((how, *model.assumed))


def left_out(speeds: Sequence[Speed]) -> list[dict]:
    """Each round predicted from the others: milliseconds, and the error of the predicted speed.

    A verification of two tokens is often served by other kernels than a wider one's: it is predicted, and never used
    to predict.
    """
    rows = []
    for left in speeds:
        if left.steps in (None, 0) or left.nodes is None:
            continue
        others = [s for s in speeds if s is not left and s.batch == left.batch and (s.steps == 0 or (s.nodes or 0) > 2)]
        found = fit(others, left.batch).round_ms(left.steps, left.topk or 1, left.nodes)
        if found is not None:
            predicted = left.batch * left.length.value / found.value.value * 1e3
            rows.append(
                {
                    "left out": left.label,
                    "fitted on": ", ".join(s.label for s in others if s.steps != 0),
                    "ms a round": left.round_ms.value,
                    "predicted ms": found.value.value,
                    "tokens/s": left.tokens_per_second,
                    "predicted tokens/s": predicted,
                    "error": predicted / left.tokens_per_second - 1,
                }
            )
    return rows


def _less(a: Estimate, b: Estimate) -> Estimate:
    """A part taken from its whole, measured together: the whole's interval."""
    return within(a.value - b.value, half(a), a.count)
