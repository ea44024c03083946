"""Stage `served`: does the replay explain what the server printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eagle3lib.bootstrap import Estimate
from eagle3lib.case import ServedSection
from eagle3lib.findings import Finding, Severity

FAULT, NOTE, OK = Severity.FAULT, Severity.NOTE, Severity.OK


def check_forecast(
    served: ServedSection | None, forecast: Mapping[str, Estimate], steps: int, has_last_state: bool
) -> Finding:
    """The server's acceptance length against the replay of the wiring that it serves.

    Args:
        forecast: acceptance length along the walk by wiring: "trained", "served", ...
        steps: the draft length K of both.
        has_last_state: whether a dump shows that the recorded tokens are the target's own.
    """
    evidence = {name: e.numbers for name, e in forecast.items()}
    if not has_last_state:
        return Finding(
            "served.no_forecast",
            NOTE,
            "Cannot tell what a server would show: no dump holds B(n)",
            "Without the last state it is not known whether the recorded tokens are the target's own.",
            "Capture B(n) with the same tokens.",
            {"steps": steps, **evidence},
        )
    replayed = forecast.get("served") or forecast["trained"]
    if served is None or served.acceptance_length is None:
        return Finding(
            "served.forecast",
            NOTE,
            f"A server should show {replayed.value:.2f} at K = {steps}; the case states no served number",
            "The replay forecasts the chain's acceptance length along the walk, greedy, bonus included.",
            "State served.acceptance_length, as the engine printed it, to have the two compared.",
            {"steps": steps, **evidence},
        )
    evidence |= {"steps": steps, "printed": served.acceptance_length}
    if "served" not in forecast:
        return Finding(
            "served.not_replayed",
            NOTE,
            f"Cannot tell whether the server's {served.acceptance_length:.2f} is explained: its wiring is not replayed",
            "What the engine feeds fc is not known, or no dump holds it.",
            "State served.boundaries in the case, and dump those.",
            evidence,
        )
    if not replayed.has_interval:
        return Finding(
            "served.too_few_samples",
            NOTE,
            f"Cannot tell whether the server's {served.acceptance_length:.2f} is the replay's {replayed}",
            "A single response says nothing of how far others may lie from it.",
            "Dump more of the server's responses.",
            evidence,
        )
    if replayed.low <= served.acceptance_length <= replayed.high:
        return Finding(
            "served.explained",
            OK,
            f"The server's {served.acceptance_length:.2f} lies within the replay's {replayed}",
            "The served wiring explains the served number.",
            evidence=evidence,
        )
    return Finding(
        "served.unexplained",
        FAULT,
        f"The server shows {served.acceptance_length:.2f}, the replay of its wiring gives {replayed}",
        "Something besides the wiring differs: the prompts or their template, the acceptance rule, the draft"
        " length, or the loop of the engine.",
        "Dump the server's own responses and replay those; compare K, temperature and template.",
        evidence,
    )


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
