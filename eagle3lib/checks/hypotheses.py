"""Every stage from `training` to `served`: which single change the evidence asks for, or that it asks for none."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lib.battery import Change, Outcome
from eagle3lib.boundaries import FINAL_NORMED, Boundary, Wiring, boundary_name
from eagle3lib.findings import Evidence, Finding, Severity
from eagle3lib.missing_boundary import Mixture
from eagle3lib.served_rates import ServedRates

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK

#: Families that step 0 does not see.
LATER_STEPS = ("feedback", "positions", "window origin")
UNITS = {"cross-entropy": "nats a token", "accuracy": "of all positions", "conditional": "of starts that reach them"}


def check_recorded_tokens(outcome: Outcome, samples: int) -> list[Finding]:
    """Each change that makes the draft better on recorded tokens, in the order found; or that none does."""
    if outcome.changes:
        return [_better(change, outcome, i) for i, change in enumerate(outcome.changes)]
    if samples < 2:
        return [
            Finding(
                "wiring.too_few_samples",
                NOTE,
                "Cannot tell whether another wiring is better: one sample shows no spread",
                "Tokens of one response are no independent draws.",
                "Dump a few more responses.",
                {"tried": outcome.tried, "samples": samples},
            )
        ]
    best = max(outcome.trials, key=lambda t: t.gain.value, default=None)
    nearest: Evidence = {"nearest": best.hypothesis.label, "gain": best.gain.numbers} if best else {}
    return [
        Finding(
            "wiring.right",
            OK,
            f"This wiring is right: no change of {outcome.tried} tried makes the draft better",
            "If acceptance is low nevertheless, the draft is weak on such text, or was trained on other text.",
            evidence={"wiring": str(outcome.believed), "tried": outcome.tried, "samples": samples, **nearest},
        )
    ]


def _better(change: Change, outcome: Outcome, index: int) -> Finding:
    hypothesis, trial = change.hypothesis, change.trial
    stage = "recurrence" if hypothesis.family in LATER_STEPS else "wiring"
    so_far = "" if index == 0 else " beside what stands above"
    return Finding(
        f"{stage}.better_otherwise",
        FAULT if trial.length.low > 0 else RISK,
        f"The draft does better with {_lower(hypothesis.label)}{so_far}: {trial.length.value:+.2f} tokens a round",
        f"Of {outcome.tried} single changes this one helps most: {trial.gain.value:.3f} {UNITS[hypothesis.scored]}, and"
        f" the acceptance length over all starts goes from {change.before} to {change.after}. So it was trained.",
        f"Serve it so: {hypothesis.fix}.",
        _change_numbers(change, outcome),
    )


def check_served_numbers(outcome: Outcome, rates: ServedRates) -> list[Finding]:
    """Each change by which the replay comes to the server's numbers; or that none is needed, or none suffices."""
    numbers: Evidence = {"served_survival": list(rates.survival), "rounds": rates.rounds, "tried": outcome.tried}
    if outcome.changes and not outcome.trials:
        return [
            Finding(
                "served.engine_does",
                FAULT,
                f"The engine's numbers are those of a pass with {_lower(change.hypothesis.label)}",
                f"The replay gives {change.before} without and {change.after} with it, the server shows"
                f" {rates.length:.2f} (chain, greedy, bonus included, along the walk)." + _tied(change),
                f"Look in the engine for {change.hypothesis.fix}.",
                numbers | _change_numbers(change, outcome),
            )
            for change in outcome.changes
        ]
    if not outcome.trials:
        return [
            Finding(
                "served.rates_explained",
                OK,
                f"The server's acceptance at all {len(rates.survival)} draft positions is the replay's",
                "The pass that is believed explains what the server counted; no change is needed.",
                evidence=numbers,
            )
        ]
    nearest = [*outcome.labels, outcome.trials[0].hypothesis.label][0]
    return [
        Finding(
            "served.rates_unexplained",
            RISK,
            f"No change of {outcome.tried} tried brings the replay to the server's numbers",
            f"The first that comes nearer is {_lower(nearest)}, and it does not explain them.",
            "Something besides the pass differs: the prompts or their template, sampling, or the acceptance rule.",
            numbers | {"nearest": nearest},
        )
    ]


def check_missing_boundary(
    wiring: Wiring, found: Sequence[Mixture], stored: Sequence[Boundary], n_layers: int | None
) -> Finding:
    """Whether the best captured wiring stands in for one that was not captured.

    Args:
        wiring: the best captured.
        found: as `missing_boundary.mixtures` gives them.
    """
    depths = [b for b in stored if b != FINAL_NORMED]
    evidence: Evidence = {"best_captured": list(wiring.slots), "captured": list(stored)}
    if found and found[0].gain.low > 0:
        best = found[0]
        between = f"{boundary_name(best.low)} and {boundary_name(best.high)}"
        evidence |= {"slot": best.slot + 1, "stands_for": best.stands_for, "gain": best.gain.numbers}
        return Finding(
            "wiring.boundary_missing",
            RISK,
            f"The best captured wiring is {wiring}; slot {best.slot + 1} likely needs"
            f" {boundary_name(best.stands_for)} or a neighbour, which was not captured",
            f"A mixture of {between} does better there than either: {best.gain} nats a token.",
            f"Capture {_range(best.low + 1, best.high - 1)} with the same tokens: block k's input is B(k).",
            evidence,
        )
    ends = [i for i, b in enumerate(wiring.slots) if b != FINAL_NORMED and _open_end(b, depths, n_layers)]
    if ends or found:
        at = ", ".join(f"slot {i + 1} at {boundary_name(wiring.slots[i])}" for i in ends)
        return Finding(
            "wiring.boundary_unknown",
            NOTE,
            f"The best captured wiring is {wiring}; whether one that was not captured fits better cannot be told",
            "No mixture of captured boundaries does better"
            + (f", and beyond {at} nothing was captured to mix." if ends else "; neighbours may differ too little."),
            "Capture every boundary of a few responses to settle it.",
            evidence | {"mixtures": len(found)},
        )
    return Finding(
        "wiring.boundaries_captured",
        OK,
        "Both neighbours of every slot's boundary were captured, and none fits better",
        "No boundary that was not captured is nearer than one that was.",
        evidence=evidence,
    )


def _change_numbers(change: Change, outcome: Outcome) -> Evidence:
    numbers: Evidence = {
        "change": change.hypothesis.label,
        "family": change.hypothesis.family,
        "tried": outcome.tried,
        "gain": change.trial.gain.numbers,
        "before": change.before.numbers,
        "after": change.after.numbers,
    }
    if change.ties:
        numbers["ties"] = [tie.hypothesis.label for tie in change.ties]
        numbers["tokens_to_tell"] = [round(t.count_to_tell) for t in change.ties if t.count_to_tell < 1e12]
    return numbers


def _tied(change: Change) -> str:
    if not change.ties:
        return ""
    return " So do they with " + " or ".join(_lower(tie.hypothesis.label) for tie in change.ties) + "."


def _open_end(boundary: int, depths: Sequence[int], n_layers: int | None) -> bool:
    """Whether a slot's boundary is the first or last captured, with uncaptured ones beyond it."""
    first, last = min(depths), max(depths)
    return (boundary == first and first > 0) or (boundary == last and last != n_layers)


def _range(first: int, last: int) -> str:
    return boundary_name(first) if first == last else f"{boundary_name(first)} to {boundary_name(last)}"


def _lower(label: str) -> str:
    return label[0].lower() + label[1:] if label[1:2].islower() else label
