"""Stage `training`: does the trainer's number come back."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lib.boundaries import FINAL_NORMED, Boundary, Wiring, boundary_name
from eagle3lib.findings import Evidence, Finding, Severity, quantity
from eagle3lib.training import RECORDED, StepCounts, Teacher, Truth, truth_name
from eagle3lib.truths import COUNT_TOLERANCE, Claim, Reproduction, count_difference

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK


def check_training_number(
    library: str, claimed: dict[str, list[int]], ours: StepCounts, teacher: Boundary, step: int = 0
) -> Finding:
    """The library's own sums and totals, computed again by the manual pass."""
    worst = count_difference(claimed, ours)
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
        "See below which truth and which wiring give the claimed number.",
        evidence,
    )


def check_truth(
    found: Sequence[Reproduction], believed: Wiring, teacher: Boundary | None, n_layers: int | None, claim: Claim
) -> Finding:
    """Which wiring and which truth give the trainer's number.

    Args:
        found: as `truths.search_truth` gives them.
        believed, teacher: what the files say of both; None where they name no teacher.
        n_layers: of the target, None where it is not known.
    """
    inside = [r for r in found if r.inside]
    evidence: Evidence = {"claimed": claim.full_acc, "tried": len(found)}
    if not inside:
        nearest = found[0]
        evidence |= {"nearest": truth_name(nearest.truth), "apart": nearest.apart}
        return Finding(
            "training.no_truth",
            RISK,
            f"None of {quantity(len(found), 'pair')} of wiring and truth gives the claimed {claim.full_acc:.1%}",
            f"The nearest is {truth_name(nearest.truth)} under {nearest.wiring}, {nearest.apart:.1%} away: the dump is"
            " of other data than the claim's, or the training wiring is none that the files name.",
            "Dump some of the trainer's own validation samples; see notebook 04 for the wiring.",
            evidence,
        )
    evidence |= {"inside": [f"{truth_name(r.truth)}, {r.wiring}" for r in inside]}
    expected = [] if teacher is None else [truth_name(teacher)]
    told = [r for r in inside if r.wiring == believed and truth_name(r.truth) in expected]
    sound = [r for r in inside if r.wiring == believed and _sound(r.truth, n_layers)]
    if told or sound:
        names = " and ".join(truth_name(r.truth) for r in (told or sound))
        return Finding(
            "training.truth_confirmed",
            OK if told or teacher is None else NOTE,
            f"The claimed {claim.full_acc:.1%} comes back against {names}",
            f"{len(inside)} of {quantity(len(found), 'pair')} of wiring and truth give it"
            + (", the stated one among them." if told else "." if teacher is None else f"; {expected[0]} does not."),
            "" if told else "State training.teacher in the case.",
            evidence,
        )
    first = inside[0]
    others = "" if len(inside) == 1 else f" {quantity(len(inside) - 1, 'other pair gives', 'other pairs give')} it too."
    usual = f"that against {expected[0]} under {believed}" if expected else f"that of {believed}"
    return Finding(
        "training.other_truth",
        FAULT if claim.counts or len(inside) == 1 else RISK,
        f"The claimed {claim.full_acc:.1%} is accuracy against {truth_name(first.truth)} under {first.wiring}",
        f"It is not {usual}, so it says nothing of what a server accepts.{others}",
        "Take the labels from norm(B(n)) in the next training, and hold serving against the recorded token."
        if first.wiring == believed
        else f"State training.boundaries = {list(first.wiring.slots)} in the case and run again; notebook 04 asks the"
        " states.",
        evidence,
    )


def _sound(truth: Truth, n_layers: int | None) -> bool:
    """Whether a truth is what a server accepts: the recorded token, or the target's own last state, rightly normed."""
    if truth == RECORDED:
        return True
    teacher = Teacher.of(truth)
    return teacher.boundary in (n_layers, FINAL_NORMED) and teacher.normed == Teacher.of(teacher.boundary).normed
