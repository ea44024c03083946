"""How the cost of a round moves with the batch: measured where it was, else carried over by the roofline.

    token(b)    = token(b0) + c (step(b, 1) - step(b0, 1))
    rest(b, m)  = rest(b0, m) + c (step(b, m) - step(b0, m))              draft(b, s) = draft(b0, s)
    c           = token(b0) / step(b0, 1), 2 at most

What the roofline explains grows with the batch, the rest of a round, draft and overhead, is taken to stay. Kernels
reach half of a roofline or more, so what a token takes beyond twice its roofline is taken for overhead too. Without a
measured round, rounds are the roofline's alone: verification, and a draft that reads its weights once a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from eagle3lib.bootstrap import Estimate
from eagle3lib.plans import OFF, Lengths, Plan, Shape, best, plan_at, plans
from eagle3lib.roofline import Device, step
from eagle3lib.speeds import Source, Speed, exact, quotient, within
from eagle3lib.target_shape import TargetCost
from eagle3lib.throughput import CostModel, Curve, fit

#: Nodes and steps that a roofline's curves are made for.
WIDEST = 65
#: How many times its roofline a kernel takes at most.
SLOWEST = 2.0


@dataclass(frozen=True)
class Roofline:
    """A target on its devices, with the tokens that every sequence has in its cache."""

    target: TargetCost
    device: Device
    context: int = 0
    devices: int = 1

    def ms(self, tokens: int, batch: int) -> float:
        """The least time of a pass over `tokens` tokens of each sequence."""
        return step(self.target, self.device, tokens, batch, self.context, self.devices).ms

    def model(self, token_ms: float | None, draft_bytes: float, batch: int, known: Speed | None = None) -> CostModel:
        """Rounds where too few were measured.

        Args:
            token_ms: a step without speculation, which the roofline is made to give; None where it was not measured.
            draft_bytes: that a step of the draft reads.
            known: one measured round: what the roofline leaves of it is added to every round. Where it leaves less than
                nothing, as tokens that choose the same experts make it, what every round verifies beyond a token is
                taken for as much less.
        """
        scale = self._slowness(token_ms, batch) if token_ms else 1.0
        beyond = token_ms - scale * self.ms(1, batch) if token_ms else 0.0
        drafting = draft_bytes / (self.device.bandwidth * 1e9) * 1e3 * scale  # a draft runs on one device
        verifying = {m: beyond + self.ms(m, batch) * scale for m in range(1, WIDEST)}
        measured = {}
        left, why = 0.0, "a roofline's rounds" + (", scaled to decoding" if token_ms else "")
        if known is not None and known.nodes in verifying:
            steps = known.steps if known.steps is not None else known.nodes - 1
            left = known.round_ms.value - verifying[known.nodes] - steps * drafting
            token, wider = verifying[1], verifying[known.nodes] - verifying[1]
            share = max(wider + left, 0.0) / wider if left < 0 < wider else 1.0
            verifying = {m: token + share * (ms - token) for m, ms in verifying.items()}
            left = max(left, 0.0)
            measured = {(steps, known.topk or 1, known.nodes): known.round_ms}
            if share < 1:
                why += f", {share:.0%} of what they verify beyond a token, as the measured round has it"
            else:
                why += f", and {left:.1f} ms that it leaves of the measured round"
        else:
            why += ", without launches and synchronisation"
        rest = tuple((m, exact(ms + left)) for m, ms in verifying.items())
        draft = tuple((s, exact(s * drafting)) for s in range(WIDEST))
        rounds = tuple((m, exact(e.value + (m - 1) * drafting)) for m, e in rest)
        usual = tuple((m, exact(m - 1)) for m, _ in rest)
        return CostModel(
            batch, exact(token_ms or self.ms(1, batch)), Curve(rounds), Curve(usual), Curve(draft), Curve(rest),
            measured, (why,), token_ms is None,
        )  # fmt: skip

    def moved(self, model: CostModel, batch: int) -> CostModel:
        """A measured model at another batch size; the same at its own.

        Raises:
            ValueError: if it does not know a step without speculation.
        """
        if batch == model.batch:
            return model
        if model.token_ms is None:
            raise ValueError("a model is moved by its step without speculation, which this one does not know")
        scale = self._slowness(model.token_ms.value, model.batch)

        def more(nodes: int) -> float:
            return scale * (self.ms(nodes, batch) - self.ms(nodes, model.batch))

        def grown(curve: Curve) -> Curve:
            return curve.changed(lambda m, ms: ms + more(m))

        token = model.token_ms
        alone = within(token.value + more(1), (token.high - token.low) / 2, token.count)
        return replace(
            model, batch=batch, token_ms=alone, rounds=grown(model.rounds),
            rest=grown(model.rest) if model.separated else None, measured={}, token_assumed=True,
            assumed=(*model.assumed, "verification grows with the batch as the roofline does, the rest stays"),
        )  # fmt: skip

    def _slowness(self, token_ms: float, batch: int) -> float:
        """c: how many times the roofline the part of a step takes that grows with it."""
        return min(token_ms / self.ms(1, batch), SLOWEST)


@dataclass(frozen=True)
class AtBatch:
    """The fastest chain at one batch size, and what speculation gains there over serving without."""

    batch: int
    best: Plan
    off: Plan
    chain: Plan | None
    source: Source

    @property
    def gain(self) -> float:
        """Of the fastest plan; 0 where it is to switch speculation off."""
        return self.best.speed.value / self.off.speed.value - 1

    @property
    def ratio(self) -> Estimate:
        """Of the fastest plan's speed to that without speculation; exactly 1 where it is that."""
        return exact(1.0) if self.best is self.off else quotient(self.best.speed, self.off.speed)

    def row(self) -> dict:
        """One row of a table."""
        row = {"batch": self.batch, "off tokens/s": self.off.speed.value, "best": self.best.shape.label}
        row |= {"best tokens/s": self.best.speed.value, "gain": self.gain}
        if self.chain is not None:
            row[f"{self.chain.shape.label} over off"] = self.chain.speed.value / self.off.speed.value
        return {**row, "source": str(self.source)}


def by_batch(models: Iterable[CostModel], lengths: Lengths, shape: Shape) -> list[AtBatch]:
    """The answer at every batch size that has a model with a step without speculation."""
    found = []
    for model in models:
        here = plans(model, lengths)
        off, fastest = plan_at(here, OFF), best(here)
        if off is not None and len(here) > 1:
            chain = plan_at(here, shape)
            source = chain.source if chain else fastest.source
            found.append(AtBatch(model.batch, fastest, off, chain, source))
    return found


def measured_models(speeds: Sequence[Speed]) -> list[CostModel]:
    """One model a batch size at which something was measured."""
    return [fit(speeds, batch) for batch in sorted({s.batch for s in speeds})]


def gaining(found: Sequence[AtBatch]) -> str:
    """At which batch sizes speculation is faster than none, in words."""
    gains = [str(at.batch) for at in found if at.gain > 0]
    rest = [str(at.batch) for at in found if not at.gain > 0]
    if not gains:
        return f"Speculation gains nothing at batch {', '.join(rest)}: switch it off"
    return f"Speculation gains at batch {', '.join(gains)}" + (f", nothing at {', '.join(rest)}" if rest else "")
