"""What a case says of its server's speed, and all that follows: rounds, the model, plans by wiring, batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3lib.batches import AtBatch, Roofline, by_batch, measured_models
from eagle3lib.case import Case, CostSection
from eagle3lib.dialects import read_checkpoint
from eagle3lib.levers import Lever, better_rates, head_share, levers, rescaled, step_weights
from eagle3lib.plans import Lengths, Plan, Shape, plans, replayed_lengths
from eagle3lib.recorded_speeds import RecordedSpeeds, read_recorded_speeds
from eagle3lib.roofline import device_of
from eagle3lib.speeds import Source, Speed, break_even, measured_speeds
from eagle3lib.target_shape import read_target_cost
from eagle3lib.throughput import CostModel, fit

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class ServingCost:
    """A case's speeds and what they say.

    Attributes:
        recording: of a real engine, None where the case names none.
        speeds: every measured one, without a draft first.
        model: at the case's batch size; a roofline's where no round can be timed by what was measured.
        roofline: None where the case does not state the target's config and its device.
        lengths: replayed acceptance lengths, by wiring.
        conditional: c_1, c_2, ... along the walk, by wiring.
        head_share: of the weights that a draft step reads, the head's.
    """

    recording: RecordedSpeeds | None
    speeds: tuple[Speed, ...]
    model: CostModel
    roofline: Roofline | None
    lengths: Mapping[str, Lengths]
    conditional: Mapping[str, Sequence[float | None]]
    head_share: float | None

    @property
    def judged(self) -> str | None:
        """The wiring whose lengths are judged: as trained where that was replayed, so that a fault of the served
        wiring is not counted again as cost."""
        return "trained" if "trained" in self.lengths else next(iter(self.lengths), None)

    @property
    def plans(self) -> dict[str, list[Plan]]:
        """By wiring, as far as rounds can be timed."""
        found = {name: plans(self.model, lengths) for name, lengths in self.lengths.items()}
        return {name: made for name, made in found.items() if any(p.shape.steps for p in made)}

    @property
    def levers(self) -> list[Lever]:
        """What would make the judged wiring faster."""
        if self.judged is None:
            return []
        return levers(self.model, self.lengths[self.judged], self.conditional.get(self.judged, ()), self.head_share)

    def explored(self, rate: float, price: float) -> list[Plan]:
        """Plans of the judged wiring with conditional rates higher by `rate` and nodes at `price` of what they cost."""
        chains = better_rates(self.lengths[self.judged], self.conditional[self.judged], rate)
        alone = self.model.round_ms(0)
        if alone is None:  # of a single round, what its nodes cost is not known
            return plans(self.model, chains)
        root = alone.value.value
        return plans(rescaled(self.model, lambda n, ms: ms, lambda n, ms: root + (ms - root) * price), chains)

    def batches(self, shape: Shape) -> list[AtBatch]:
        """The answer by batch size: measured where two or more were, else by the roofline; [] without either."""
        if self.judged is None:
            return []
        measured = by_batch(measured_models(self.speeds), self.lengths[self.judged], shape)
        if len(measured) > 1 or self.roofline is None or self.model.token_ms is None:
            return measured if len(measured) > 1 else []
        return by_batch((self.roofline.moved(self.model, b) for b in BATCHES), self.lengths[self.judged], shape)

    def speed_rows(self) -> list[dict]:
        """One row a measured speed."""
        alone = {s.batch: s.round_ms for s in self.speeds if s.steps == 0}
        return [
            {
                "shape": s.label, "batch": s.batch, "tokens/s": s.tokens_per_second, "AL": s.length.value,
                "ms a round": s.round_ms.value, **_interval(s),
                "drafting": s.draft_ms.value if s.draft_ms else None,
                "break-even": break_even(s.round_ms, alone[s.batch]).value if s.batch in alone else None,
                "source": str(Source.MEASURED),
            }
            for s in self.speeds
        ]  # fmt: skip


def serving_cost(case: Case, replayed: Mapping[str, Any]) -> ServingCost | None:
    """All that a case states of speed, None where it has no `[cost]` section.

    Args:
        replayed: the numbers of notebook 05, {} where it did not run.

    Raises:
        InputError: if a file that the section names is not what it should be, or two statements contradict.
    """
    section = case.cost
    if section is None:
        return None
    recording = read_recorded_speeds(section.speeds) if section.speeds else None
    speeds = measured_speeds(section, recording)
    model, roofline = fit(speeds, section.batch), _roofline(section)
    draft = read_checkpoint(case.draft.path)
    if roofline is not None and model.round_ms(0) is None:
        weights = step_weights(draft)
        known = next((s for s in speeds if s.steps and s.nodes and s.batch == section.batch), None)
        token = model.token_ms.value if model.token_ms else None
        model = roofline.model(token, 2 * weights if weights else 0, section.batch, known)
    conditional: dict[str, list[float | None]] = {}
    for row in replayed.get("rates", []):
        conditional.setdefault(row["wiring"], []).append(row["c_k"])
    return ServingCost(
        recording, tuple(speeds), model, roofline, replayed_lengths(replayed), conditional, head_share(draft)
    )


def _roofline(section: CostSection) -> Roofline | None:
    device = device_of(section)
    if device is None or section.model is None:
        return None
    target = read_target_cost(section.model, section.weight_bits, section.kv_bits)
    return Roofline(target, device, section.context, section.devices)


def _interval(s: Speed) -> dict:
    known = s.round_ms.low < s.round_ms.high
    return {"low": s.round_ms.low if known else None, "high": s.round_ms.high if known else None}
