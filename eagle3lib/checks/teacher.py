"""Stage `training`: which boundary taught, and what a perfect pupil of it would be worth."""

from __future__ import annotations

from collections.abc import Mapping

from eagle3lib.boundaries import FINAL_NORMED, boundary_name
from eagle3lib.findings import Evidence, Finding, Severity, quantity
from eagle3lib.reconstruction import Reconstruction
from eagle3lib.soundness import LOGPROB_ERROR, is_sound
from eagle3lib.teacher import TeacherAudit
from eagle3lib.training import Truth, truth_name

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK


def check_teacher(
    audit: TeacherAudit | None,
    n_layers: int,
    reproduced: Mapping[Truth, bool] | None = None,
    last: Reconstruction | None = None,
) -> Finding:
    """The teacher is the target's last state; an earlier one is a risk, and a fault where the claim proves it.

    Args:
        audit: of the teacher that the case, the training record or the dump layout's rule names; None without one.
        reproduced: under which truths the claimed training number comes back, with the believed wiring.
        last: what the dump's last state gives of the recorded tokens (notebook 02), None where that was not asked.
    """
    if audit is None:
        return Finding(
            "training.teacher_unknown",
            NOTE,
            "Cannot tell which state taught: neither the case nor the dumps' layout says",
            "A training accuracy means nothing without the truth that it was taken against.",
            "State training.teacher in the case, or give a dump with just the slots and the teacher.",
        )
    there = {truth_name(truth): came_back for truth, came_back in (reproduced or {}).items()}
    name = boundary_name(audit.boundary)
    pupil = audit.full if audit.draft is None else audit.draft
    ends = [truth for truth in (n_layers, FINAL_NORMED) if truth_name(truth) in there]
    evidence = {
        "teacher": audit.boundary,
        "last": n_layers,
        "pupil_full_vocabulary": audit.full,
        "pupil_draft_vocabulary": audit.draft,
        "mean_logprob": audit.mean_logprob,
        "tokens": audit.count,
        "claim_reproduced_under": [truth for truth, came_back in there.items() if came_back],
    }
    worth = f"its perfect pupil would say {pupil:.1%} of the recorded tokens"
    by_teacher = there.get(truth_name(audit.boundary))
    if audit.boundary in (n_layers, FINAL_NORMED):
        if last is not None and last.boundary == audit.boundary and is_sound(last) is False:
            return _unsound_teacher(last, name, worth, bool(by_teacher), evidence)
        return Finding(
            "training.teacher",
            OK,
            f"The teacher is the target's last state, {name}: {worth}",
            "What the draft learned to say is what the target says.",
            evidence=evidence,
        )
    under_last = any(there[truth_name(truth)] for truth in ends)
    depth = f"{quantity(n_layers - audit.boundary, 'block')} before the end"
    if under_last:
        return Finding(
            "training.teacher_ambiguous" if by_teacher else "training.teacher_last",
            NOTE,
            f"The claimed number comes back against {boundary_name(ends[0])}"
            + (f" and against {name}" if by_teacher else f", so {name} did not teach"),
            "The layout's rule names the last stored state as the teacher; the claim was taken against the target's"
            " own last state."
            if not by_teacher
            else "Both truths fit the claim on these samples; more samples would tell them apart.",
            "State training.teacher in the case.",
            evidence,
        )
    if by_teacher and ends:
        return Finding(
            "training.teacher_early",
            FAULT,
            f"The draft was taught by {name}, {depth}: {worth}, whatever its training number",
            f"The claimed number comes back against {name} and not against {boundary_name(ends[0])}: it is accuracy"
            " against a wrong truth.",
            "Dump the state after the last block as the teacher, and train again.",
            evidence,
        )
    return Finding(
        "training.teacher_early",
        RISK,
        f"By the dump's own rule {name} taught, {depth}: {worth}",
        "If so, the training number is accuracy against a wrong truth; nothing here proves that it was."
        if ends
        else "If so, the training number is accuracy against a wrong truth; without B(n) in the same dump that cannot"
        " be proved.",
        "Reproduce the training number under each stored state (notebook 03) on a dump that also holds B(n).",
        evidence,
    )


def _unsound_teacher(last: Reconstruction, name: str, worth: str, proved: bool, evidence: Evidence) -> Finding:
    """The state that taught is called the last and does not give the recorded tokens back: a fault where the claim
    proves that it taught and the dump's own log-probabilities that it is wrong."""
    measured = last.logprob_error is not None
    return Finding(
        "training.teacher_unsound",
        FAULT if proved and measured else RISK,
        f"The state stored as {name} taught, and it does not give the recorded tokens back: {worth}",
        "The finding on the dump's last state says what it is instead. What the draft learned to say is that state's"
        " choice, not the target's"
        + (", and the claimed number is accuracy against it." if proved else ".")
        + ("" if measured else " Or the recorded responses are not the target's own, which sounds alike."),
        "Mend the dump first (notebook 02); labels made from this state must be made again.",
        evidence | {"on_policy_rate": last.on_policy, "logprob_error": last.logprob_error},
    )


def check_teacher_probabilities(last: Reconstruction | None) -> Finding | None:
    """The distributions that a dump carries are those of its own last state; None where it carries none."""
    if last is None or last.teacher_error is None:
        return None
    name, error = boundary_name(last.boundary), last.teacher_error
    evidence = {"boundary": last.boundary, "teacher_error": error}
    if error <= LOGPROB_ERROR:
        return Finding(
            "training.teacher_probabilities",
            OK,
            f"The dump's teacher probabilities are those of {name}, to {error:.4f} nats",
            "The teacher is the state that the dump stores last.",
            evidence=evidence,
        )
    if not is_sound(last):
        return Finding(
            "training.teacher_probabilities_unknown",
            NOTE,
            f"Cannot tell whether the teacher or {name} is wrong: they are {error:.2f} nats apart",
            "The state is not proved by the recorded tokens either.",
            "Store the target's log-probabilities with the tokens.",
            evidence,
        )
    return Finding(
        "training.teacher_probabilities_differ",
        RISK,
        f"The dump's teacher probabilities are {error:.2f} nats off those of {name}, which is sound",
        "The teacher is another state, another model, or at another temperature.",
        "Compute the teacher's probabilities from the state after the last block.",
        evidence,
    )
