"""Stage `served`: what a server should show, numbers that cannot be compared, settings that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from eagle3lib.bootstrap import Estimate
from eagle3lib.findings import Evidence, Finding, Severity
from eagle3lib.served_numbers import Numbers
from eagle3lib.speculation import Speculation

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK


def check_forecast(
    forecast: Mapping[str, Estimate], steps: int, has_last_state: bool, has_numbers: bool
) -> list[Finding]:
    """What a server should show, where it is not held against anything that one did.

    Args:
        forecast: acceptance length along the walk by wiring: "trained", "served", ...
        steps: the draft length K.
        has_last_state: whether a dump shows that the recorded tokens are the target's own.
        has_numbers: whether the case holds a server's numbers.
    """
    evidence: Evidence = {"steps": steps, **{name: e.numbers for name, e in forecast.items()}}
    if not has_last_state:
        return [
            Finding(
                "served.no_forecast",
                NOTE,
                "Cannot tell what a server would show: no dump holds B(n)",
                "Without the last state it is not known whether the recorded tokens are the target's own.",
                "Capture B(n) with the same tokens.",
                evidence,
            )
        ]
    if has_numbers:
        return []
    expected = forecast["served"] if "served" in forecast else forecast["trained"]
    return [
        Finding(
            "served.forecast",
            NOTE,
            f"A server should show {expected.value:.2f} at K = {steps}; the case names no number that one showed",
            "The replay forecasts the chain's acceptance length along the walk, greedy, bonus included.",
            "Give the server's log in served.logs, or served.acceptance_length as the engine printed it, to have the"
            " two compared.",
            evidence,
        )
    ]


def check_not_compared(numbers: Numbers, why: str) -> Finding:
    """Numbers that no replay is of."""
    return Finding(
        "served.not_compared",
        NOTE,
        f"Cannot tell whether the replay explains {numbers.label}: {why}",
        "Numbers of another round, rule or depth are no measure of each other.",
        "Measure a server whose rounds are replayed, or give what the sentence asks for.",
        numbers_evidence(numbers),
    )


def check_settings(sources: Sequence[tuple[str, Speculation]], shown: Sequence[Numbers]) -> list[Finding]:
    """Texts of a server's arguments against each other, and chains against the drafts that its numbers show.

    Args:
        sources: where each text stands, and what it says.
    """
    findings = []
    names = ("steps", "topk", "draft_tokens")
    for (first, told), (second, other) in zip(sources, sources[1:], strict=False):
        apart = [
            n for n in names if None not in (values := (getattr(told, n), getattr(other, n))) and values[0] != values[1]
        ]
        if apart:
            said = ", ".join(f"{n} {getattr(told, n)} and {getattr(other, n)}" for n in apart)
            findings.append(
                Finding(
                    "served.settings_disagree",
                    RISK,
                    f"{first} and {second} tell of two servers: {said}",
                    "Numbers of the one are no numbers of the other.",
                    "Give the log and the text of one start.",
                    {"sources": [first, second], **{n: [getattr(told, n), getattr(other, n)] for n in apart}},
                )
            )
    for numbers in shown:
        told = next(
            (t for source, t in sources if numbers.label.startswith(source)), sources[0][1] if sources else None
        )
        if told is None or told.topk != 1 or None in (told.steps, numbers.steps) or told.steps == numbers.steps:
            continue
        findings.append(
            Finding(
                "served.settings_disagree",
                RISK,
                f"{numbers.label}: rounds of up to {numbers.steps} drafts, and the server was told {told.steps}",
                f"A chain of {told.steps} steps drafts as many tokens ({told.origin('steps').said}), so the numbers are"
                " of another start, or the engine changed its draft length.",
                "Give the log and the text of one start.",
                {"steps": [numbers.steps, told.steps]},
            )
        )
    return findings


def numbers_evidence(numbers: Numbers) -> Evidence:
    """What every finding of a server's numbers names."""
    return {
        "numbers": numbers.label,
        "served": finite(numbers.length),
        "served_survival": [e.value for e in numbers.survival],
        "rounds": numbers.length.count,
        "last_rounds_counted": numbers.last_rounds,
    }


def finite(estimate: Estimate) -> list[float | None]:
    """Value, low and high, None where one has no bound."""
    return [n if np.isfinite(n) else None for n in estimate.numbers]


def check_activations(first: str | None, table: Sequence[Mapping[str, object]]) -> Finding:
    """The first tap at which a server's recorded activations leave the pass's.

    Args:
        first: as `taps.first_mismatch` names it, None where all agree.
        table: the rows of `taps.compare`.
    """
    rows = {str(row["tap"]): row for row in table}
    if first is None:
        return Finding(
            "served.activations_agree",
            OK,
            f"All {len(rows)} recorded taps agree with the pass",
            "The server computes the draft as the pass does, on the states that it was fed.",
            evidence={"taps": list(rows)},
        )
    row = rows[first]
    return Finding(
        "served.activation_differs",
        FAULT,
        f"The server leaves the pass at {first}: norm ratio {row['norm_ratio']:.3f}, cosine {row['cosine']:.4f}",
        "Everything before that tap agrees, so the fault lies in what makes it.",
        "Compare what the engine does there: docs/recording_activations.md lists each tap and its module.",
        {name: row[name] for name in ("tap", "norm_ratio", "max_abs", "cosine", "relative")},
    )
