"""Stage `training`: does the trainer's number come back."""

from __future__ import annotations

from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Boundary, boundary_name
from eagle3lib.findings import Finding, Severity
from eagle3lib.training import StepCounts

FAULT, RISK, OK = Severity.FAULT, Severity.RISK, Severity.OK

#: Difference of counts that rounding of near-ties in another order of summation explains.
COUNT_TOLERANCE = 2


def check_training_number(
    library: str, claimed: dict[str, list[int]], ours: StepCounts, teacher: Boundary, step: int = 0
) -> Finding:
    """The library's own sums and totals, computed again by the manual pass."""
    pairs = ours.by_name()
    worst = max(
        abs(int(mine[:, k].sum()) - theirs)
        for name, mine in pairs.items()
        for k, theirs in enumerate(claimed[name][: mine.shape[1]])
    )
    accuracy = ours.full_acc(step)
    evidence = {
        "teacher": teacher,
        "largest_count_difference": worst,
        f"full_acc_{step}": accuracy.numbers,
        f"claimed_full_acc_{step}": claimed["full_acc_sum"][step] / claimed["full_acc_total"][step],
    }
    if worst <= COUNT_TOLERANCE:
        closeness = f"to within {worst}" if worst else "exactly"
        return Finding(
            "training.reproduced",
            OK,
            f"The counts of {library} come back {closeness}, against {boundary_name(teacher)} as teacher",
            "The weights, the pass and the training wiring are as the trainer had them.",
            evidence=evidence,
        )
    return Finding(
        "training.not_reproduced",
        FAULT,
        f"The counts of {library} do not come back: they differ by up to {worst}",
        "The pass, the wiring or the truth is not what the trainer used.",
        "See which truth and which wiring give the claimed number.",
        evidence,
    )


def check_claimed_accuracy(claimed: float, by_truth: dict[str, Estimate]) -> Finding:
    """A claimed accuracy without its samples: which truths reproduce it on the dump."""
    inside = [truth for truth, e in by_truth.items() if e.low <= claimed <= e.high]
    evidence = {"claimed": claimed, **{truth: e.numbers for truth, e in by_truth.items()}}
    if inside:
        return Finding(
            "training.accuracy_reproduced",
            OK,
            f"The claimed {claimed:.1%} comes back against {', '.join(inside)}",
            "On this dump the pass under the training wiring is as accurate as claimed.",
            evidence=evidence,
        )
    return Finding(
        "training.accuracy_not_reproduced",
        RISK,
        f"No truth gives the claimed {claimed:.1%} on this dump",
        "The dump is of other data than the claim's, or the training wiring is not what the case implies.",
        "Dump some of the trainer's own validation samples; see notebook 04 for the wiring.",
        evidence,
    )
