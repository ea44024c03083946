"""Which wiring and which truth give the number that a trainer claims.

A wrong wiring and a wrong truth can hide behind each other, so they are tried together. The believed wiring with every
captured state as teacher, normed or not, over the draft's vocabulary comes first. Only where none of these gives the
claim, the other wirings that some system makes of the ids are tried with them, and teachers over the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eagle3lib import ecosystems
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.id_readings import over_releases
from eagle3lib.investigation import Investigation
from eagle3lib.sample import Sample, first_samples
from eagle3lib.training import RECORDED, StepCounts, Teacher, Truth, counts_by_wiring

#: Difference of counts that rounding of near-ties in another order of summation explains.
COUNT_TOLERANCE = 2
#: Response tokens on which teachers over the whole vocabulary are tried: the head costs a vocabulary a row.
WHOLE_ROWS = 1024

Counted = dict[Wiring, dict[Truth, StepCounts]]


@dataclass(frozen=True)
class Claim:
    """What a trainer says of its draft's first step.

    Attributes:
        full_acc: the claimed full_acc_0.
        counts: the trainer's own sums and totals by step on these very samples, where it gives them; they decide.
    """

    full_acc: float
    counts: Mapping[str, Sequence[int]] | None = None

    @classmethod
    def of(cls, inv: Investigation) -> Claim | None:
        """The case's, else the training record's; None where neither claims anything."""
        counts = inv.claim.get("counts")
        stated = inv.case.training.full_acc or inv.claim.get("full_acc")
        if counts:
            return cls(counts["full_acc_sum"][0] / counts["full_acc_total"][0], counts)
        return cls(stated[0]) if stated else None

    def comes_back(self, ours: StepCounts) -> bool:
        """Whether the counts are ours to within `COUNT_TOLERANCE`; without counts, whether the claim lies in our
        accuracy's interval."""
        if self.counts:
            return count_difference(self.counts, ours) <= COUNT_TOLERANCE
        found = ours.full_acc(0)
        return found.low <= self.full_acc <= found.high


def count_difference(claimed: Mapping[str, Sequence[int]], ours: StepCounts) -> int:
    """The largest difference of a sum or total, over the steps that both have."""
    return max(
        abs(int(mine[:, k].sum()) - theirs)
        for name, mine in ours.by_name().items()
        for k, theirs in enumerate(claimed[name][: mine.shape[1]])
    )


@dataclass(frozen=True)
class Reproduction:
    """A wiring and a truth, and the accuracy that they give.

    Attributes:
        full_acc: of step 0, with its interval.
        apart: its distance from the claim.
        inside: whether the claim comes back.
    """

    wiring: Wiring
    truth: Truth
    full_acc: Estimate
    apart: float
    inside: bool


def every_truth(boundaries: Sequence[Boundary], *, full: bool = True) -> list[Truth]:
    """The recorded token, and every boundary as teacher, normed or not, over the draft's vocabulary and the whole."""
    sizes, norms = ((False, True) if full else (False,)), (True, False)
    return [RECORDED, *(Teacher(b, normed, size) for b in boundaries for size in sizes for normed in norms)]


def reproductions(counted: Counted, claim: Claim) -> list[Reproduction]:
    """Every wiring with every truth against the claim: those that give it first, then the nearest."""
    found = []
    for wiring, by_truth in counted.items():
        for truth, ours in by_truth.items():
            accuracy = ours.full_acc(0)
            apart = abs(accuracy.value - claim.full_acc)
            found.append(Reproduction(wiring, truth, accuracy, apart, claim.comes_back(ours)))
    return _in_order(found)


def search_truth(
    inv: Investigation,
    samples: Sequence[Sample],
    believed: Wiring,
    counted: dict[Truth, StepCounts],
    claim: Claim,
) -> list[Reproduction]:
    """`reproductions` of what was counted under the believed wiring; where none gives the claim, of all else too."""
    found = reproductions({believed: counted}, claim)
    if found[0].inside:
        return found
    return _in_order([*found, *reproductions(counted_otherwise(inv, samples, believed, claim), claim)])


def counted_otherwise(inv: Investigation, samples: Sequence[Sample], believed: Wiring, claim: Claim) -> Counted:
    """Counts under what was not believed: other wirings, and teachers over the whole vocabulary.

    The latter under the believed wiring and on the first `WHOLE_ROWS` response tokens; a trainer's counts speak of all
    samples, so where those are more, they are left out.
    """
    steps = len(claim.counts["full_acc_sum"]) if claim.counts else 1
    teachers = teachable(samples)
    truths = every_truth(teachers if inv.target else [], full=False)
    others = other_wirings(inv, believed, samples)
    counted = counts_by_wiring(inv.draft, samples, others, steps, truths, inv.target) if others else {}
    whole = [truth for truth in every_truth(teachers) if isinstance(truth, Teacher) and truth.full]
    few = first_samples(samples, WHOLE_ROWS)
    if inv.target and whole and (not claim.counts or len(few) == len(samples)):
        counted |= counts_by_wiring(inv.draft, few, [believed], steps, whole, inv.target)
    return counted


def teachable(samples: Sequence[Sample]) -> list[Boundary]:
    """The captured states that may have taught: all but B(0), which knows nothing of what follows."""
    return [b for b in samples[0].states if b != 0 and all(b in s.states for s in samples)]


def other_wirings(inv: Investigation, believed: Wiring, samples: Sequence[Sample]) -> list[Wiring]:
    """What else may have fed `fc`: the dump layout's own rule, what serves, and what any system makes of the draft's
    ids; as far as the samples hold it."""
    slots = [inv.by_layout[0]] if inv.by_layout[0] else []
    slots += [inv.served.wiring.slots] if inv.served else []
    if inv.shape is not None:
        systems = (*ecosystems.TRAINERS.values(), *ecosystems.ENGINES.values())
        readings = [r for system in systems for r in over_releases(system, inv.draft_config, inv.shape)]
        slots += [tuple(r.boundaries) for r in readings if r.boundaries]
    held = [s for s in dict.fromkeys(slots) if len(s) == len(believed.slots) and set(s) <= set(samples[0].states)]
    return [replace(believed, slots=s) for s in held if s != believed.slots]


def _in_order(found: list[Reproduction]) -> list[Reproduction]:
    return sorted(found, key=lambda r: (not r.inside, r.apart))
