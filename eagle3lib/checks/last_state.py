"""Stage `dump`: is the last state what it is said to be, and are the recorded tokens the target's own."""

from __future__ import annotations

from collections.abc import Mapping

from eagle3lib.boundaries import FINAL_NORMED, Boundary, boundary_name
from eagle3lib.findings import Evidence, Finding, Severity, quantity
from eagle3lib.readings import Reading
from eagle3lib.reconstruction import Reconstruction
from eagle3lib.soundness import HEALTHY_ON_POLICY, LOGPROB_ERROR, ON_POLICY, fits, is_sound, misfit_samples

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK

#: A state that belongs to its token gives it this much more than it gives the tokens before and after: 4 nats at
#: B(16) and 10 at B(28), 0.5 at most for rows of other sequences.
RELATED = 2.0


def check_last_state(
    last: Reconstruction | None,
    *,
    embedding_difference: float | None = None,
    depth: Mapping[Boundary, Reading] | None = None,
) -> Finding:
    """The state stated as the last one gives the recorded tokens back, or the finding names how it does not.

    Args:
        last: as `reconstruct` measures it, None where no dump holds B(n) or `final_normed`.
        embedding_difference: of the dump's B(0), as `embedding_match` gives it; tells whose the rows are.
        depth: as `by_depth` gives it; tells whether another captured boundary is the last one.
    """
    if last is None:
        return Finding(
            "dump.no_last_state",
            NOTE,
            "Cannot tell whether the recorded tokens are the target's own: no dump holds B(n)",
            "Wirings can be compared, but no served number can be forecast.",
            "Capture the state after the last block, before the final norm, with the same tokens.",
        )
    name, sound = boundary_name(last.boundary), is_sound(last)
    evidence = _evidence(last)
    misfits = misfit_samples(last)
    if misfits:
        listed = ", ".join(fit.name for fit in misfits[:3]) + (", ..." if len(misfits) > 3 else "")
        return Finding(
            "dump.samples_misfit",
            FAULT,
            f"In {len(misfits)} of {quantity(len(last.samples), 'sample')} {name} does not fit the tokens: {listed}",
            "The others fit, so the state is the right one; these samples hold rows of another sequence, as a writer"
            " that loses the order within a batch leaves them.",
            "Dump these samples again, one sequence a batch; leave them out until then.",
            evidence | {"misfits": [fit.name for fit in misfits[:50]]},
        )
    if sound is None:
        return Finding(
            "dump.last_state_unproved",
            NOTE,
            f"Cannot tell whether {name} is sound: sampled tokens need not be its argmax",
            f"Nothing speaks against it: the tokens are as likely as sampled ones are, to {last.stated.surprise:+.2f}"
            " nats, but a small error would not show in that."
            if last.stated.surprise is not None
            else "A sampled response says little of the state that made it.",
            "Store the target's log-probabilities with the tokens, or a greedy response beside them.",
            evidence,
        )
    if not sound:
        return _wrong(last, evidence, embedding_difference, depth or {})
    kind = "recorded" if last.temperature == 0 else "sampled"
    error = last.teacher_error if last.logprob_error is None else last.logprob_error
    by = "" if error is None or error > LOGPROB_ERROR else f", log-probabilities to {error:.4f}"
    where = "norm(B(n))" if last.boundary == FINAL_NORMED else "B(n), before the norm"
    return Finding(
        "dump.last_state",
        OK,
        f"{_reading_name(last.stated)} on {name} gives {last.on_policy:.2%} of the {kind} tokens as argmax{by}",
        f"The last state is {where}, row for row that of the recorded tokens.",
        evidence=evidence,
    )


def check_on_policy(last: Reconstruction | None) -> Finding:
    """The recorded responses are what the target itself says: how often its argmax, in the mask and out of it."""
    if last is None or not is_sound(last):
        return Finding(
            "dump.on_policy_unknown",
            NOTE,
            "Cannot tell how often the recorded token is the target's argmax: no last state is proved sound",
            "Whether the responses are the target's own decides whether a served number can be forecast.",
            "Capture the state after the last block, before the final norm, with the same tokens.",
        )
    evidence = {
        "on_policy_rate": last.on_policy,
        "tokens": last.count,
        "outside_mask": last.outside,
        "outside_tokens": last.outside_count,
        "temperature": last.temperature,
    }
    out = "" if last.outside is None else f", and {last.outside:.1%} of {last.outside_count} outside it"
    title = f"{last.on_policy:.2%} of {last.count} tokens in the loss mask are the target's argmax{out}"
    if last.temperature != 0:
        return Finding(
            "dump.on_policy_sampled",
            NOTE,
            title,
            "Sampled responses need not be the argmax; that they are the target's own is shown by their"
            " log-probabilities alone.",
            evidence=evidence,
        )
    if last.on_policy >= HEALTHY_ON_POLICY:
        return Finding("dump.on_policy", OK, title, "The responses are the target's own.", evidence=evidence)
    return Finding(
        "dump.off_policy",
        RISK if last.on_policy >= ON_POLICY else FAULT,
        title,
        "The last state is sound, so the responses are not what this target says greedily: they come from a data set,"
        " another model, another precision, sampling, or another tokenizer.",
        "Regenerate the responses with the served target, greedy; or state the temperature of the dump in the case.",
        evidence,
    )


def _wrong(
    last: Reconstruction, evidence: Evidence, embedding: float | None, depth: Mapping[Boundary, Reading]
) -> Finding:
    """Which fault explains that the stated reading does not give the tokens back."""
    stated, name = last.stated, boundary_name(last.boundary)
    others = [r for r in last.readings if r is not stated and fits(r, last.temperature, r.logprob_error) is not False]
    if last.normed_rows > 0.5 and stated.norms == 0:
        others = [r for r in others if r.norms > 0]  # such rows have a norm behind them, whatever the tokens say
    best = max(others, key=lambda r: (r.shift == 0, r.mean_logprob), default=None)
    measured = f"{last.on_policy:.1%} of the tokens as argmax, {_badness(stated)}"
    if best is not None:
        evidence |= {"fits_norms": best.norms, "fits_shift": best.shift, "fits_mean_logprob": best.mean_logprob}
        return _other_reading(last, best, name, measured, evidence)
    fitting = [b for b, reading in depth.items() if b != last.boundary and _gives_back(reading, last)]
    evidence |= {f"mean_logprob_{b}": reading.mean_logprob for b, reading in depth.items()}
    if fitting:
        return Finding(
            "dump.last_state_wrong",
            FAULT,
            f"{name} gives only {measured}; the state stated as {boundary_name(fitting[0])} gives the tokens back",
            "The order of the states is not the stated one: the last state is stored under another id.",
            f"State {name} where the case says {boundary_name(fitting[0])}, and see what the other one is.",
            evidence,
        )
    level = max((r for r in last.readings if r.shift == 0), key=lambda r: r.mean_logprob)
    beside = [r.mean_logprob for r in last.readings if r.norms == level.norms and r.shift]
    if level.mean_logprob - max(beside, default=float("-inf")) < RELATED:
        whose = "whether the tokens are those of the other states, B(0) would tell; it is not in the dump."
        if embedding is not None:
            whose = "B(0) is the embedding of these tokens, so the last state alone is another sequence's."
            if embedding > 0.5:
                whose = "B(0) is not the embedding of these tokens either, so all rows are another sequence's."
        return Finding(
            "dump.rows_foreign",
            FAULT,
            f"{name} knows nothing of the recorded tokens: {measured}, and no better one token before or after",
            f"The rows are another sequence's, or the tokens are of another tokenizer; {whose}",
            "Dump again, one sequence a batch, with the ids that the target was given.",
            evidence,
        )
    return Finding(
        "dump.last_state_wrong",
        FAULT,
        f"{_reading_name(stated)} on {name} gives only {measured}",
        "The row belongs to its token, and still the state is not B(n): it is an earlier block's, which log-probability"
        " alone does not number; or it lacks a part of the residual; or the target's norm and head are of another"
        " checkpoint."
        + ("" if last.logprob_error is not None else " Or the responses are not the target's own, which sounds alike."),
        "Check which state the dump stores last (before the final norm, after block n), against a few rows from"
        " transformers; store the target's log-probabilities with the tokens.",
        evidence,
    )


def _other_reading(last: Reconstruction, best: Reading, name: str, measured: str, evidence: Evidence) -> Finding:
    stated = last.stated
    if best.shift:
        cause = (
            "Row t is about x[t], so the ids are one ahead: already shifted for the labels, or without their first"
            " token (BOS); or the states begin a row late."
            if best.shift < 0
            else "Row t is about x[t + 2], so the ids are one behind: a token was put in front that the target never"
            " saw; or the states have lost their first row."
        )
        return Finding(
            "dump.ids_shifted",
            FAULT,
            f"{name} fits the tokens shifted by {best.shift:+d} and not as stored: {measured}",
            cause,
            "Store the ids as the target was given them, one row a token.",
            evidence,
        )
    if best.norms == 2:
        return Finding(
            "dump.last_state_normed_twice",
            FAULT,
            f"{name} has the final norm behind it twice",
            "With one norm undone the head gives the tokens back; its scale is lost, so log-probabilities are not.",
            "Dump the state before the final norm again; norms behind a stored state cannot be taken back exactly.",
            evidence,
        )
    if best.norms > stated.norms:
        return Finding(
            "dump.last_state_normed",
            FAULT,
            f"{name} is already normed: norm and head give only {measured}, the head alone gives the tokens back",
            "The state is norm(B(n)); whoever reads it as B(n) applies the norm twice, and a teacher made so is wrong.",
            f'State "final_normed" in the case where it says {last.boundary}, and tell the trainer that it is normed.',
            evidence,
        )
    return Finding(
        "dump.last_state_unnormed",
        FAULT,
        f"{name} was never normed: the head alone gives only {measured}, norm and head give the tokens back",
        "The state is B(n); a trainer that takes it as normed teaches from the wrong distribution.",
        'State the target\'s number of blocks in the case where it says "final_normed"; for ModelOpt store'
        " hidden_states_prenorm = true.",
        evidence,
    )


def _gives_back(reading: Reading, last: Reconstruction) -> bool:
    return fits(reading, last.temperature, reading.logprob_error) is True


def _evidence(last: Reconstruction) -> Evidence:
    scored = {f"mean_logprob_norms{r.norms}_shift{r.shift:+d}": r.mean_logprob for r in last.readings}
    return {
        "boundary": last.boundary,
        "on_policy_rate": last.on_policy,
        "mean_logprob": last.mean_logprob,
        "logprob_error": last.logprob_error,
        "teacher_error": last.teacher_error,
        "surprise": last.stated.surprise,
        "tokens": last.count,
        "samples": len(last.samples),
        "normed_rows": last.normed_rows,
        "rows_not_finite": last.skipped,
        **scored,
    }


def _reading_name(reading: Reading) -> str:
    return "The head alone" if reading.norms else "Norm and head"


def _badness(reading: Reading) -> str:
    if reading.logprob_error is not None:
        return f"log-probabilities {reading.logprob_error:.2f} nats off"
    return f"mean log-probability {reading.mean_logprob:.2f}"
