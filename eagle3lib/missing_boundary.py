"""Whether the best captured wiring stands in for a boundary that was not captured.

The residual stream grows block by block, so a state between two captured ones is near a mixture of them:

    B(j) ≈ (1 - s) B(a) + s B(b),    a < j < b,  s = (j - a) / (b - a)

If a slot does better on such a mixture than on either end, a boundary between them is what it was trained on.
Where the ends do better, or the slot's boundary is the first or last captured, it cannot be told this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagle3lib.battery import common_boundaries, widened
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import FINAL_NORMED, Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.recorded_evidence import cross_entropy_gain
from eagle3lib.sample import Sample

SHARES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Mixture:
    """A slot fed a mixture of two captured boundaries, in place of a boundary between them.

    Attributes:
        slot: counted from 0.
        stands_for: the boundary that the mixture's share points at.
        gain: nats a token fewer than the captured wiring; widened for all mixtures tried.
    """

    slot: int
    low: int
    high: int
    stands_for: int
    gain: Estimate


def mixtures(draft: Draft, samples: Sequence[Sample], wiring: Wiring) -> list[Mixture]:
    """Every mixture beside a slot's own boundary across which boundaries are missing, the best first."""
    depths = [b for b in common_boundaries(samples) if b != FINAL_NORMED]
    tried = [
        (slot, low, high, j)
        for slot, own in enumerate(wiring.slots)
        for low, high in zip(depths, depths[1:], strict=False)
        if own in (low, high)
        for j in dict.fromkeys(low + round(share * (high - low)) for share in SHARES)
        if low < j < high
    ]
    found = []
    for slot, low, high, j in tried:
        mixed = [_with(sample, low, high, j) for sample in samples]
        slots = (*wiring.slots[:slot], j, *wiring.slots[slot + 1 :])
        gain = cross_entropy_gain(draft, mixed, replace(wiring, slots=slots), wiring)
        found.append(Mixture(slot, low, high, j, widened(gain, len(tried), len(samples))))
    return sorted(found, key=lambda m: -m.gain.value)


def _with(sample: Sample, low: int, high: int, j: int) -> Sample:
    share = (j - low) / (high - low)
    mixed = (1 - share) * sample.state(low).float() + share * sample.state(high).float()
    return replace(sample, states={**sample.states, j: mixed})
