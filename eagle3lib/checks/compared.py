"""Stage `served`: is what a server showed what the replay of its wiring gives, and if not, what the difference looks
like."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eagle3lib.bootstrap import Estimate
from eagle3lib.checks.served import finite, numbers_evidence
from eagle3lib.findings import Evidence, Finding, Severity
from eagle3lib.served_comparison import MATTERS, Comparison
from eagle3lib.speculation import LOSSY, RULES, Speculation

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK


def check_compared(found: Comparison, told: Speculation | None = None) -> Finding:
    """A server's numbers against the replay of the wiring that it has.

    Args:
        told: the server's settings, for what they suggest.
    """
    if found.believed != "served":
        return _not_replayed(found)
    return {
        "agrees": _agrees,
        "cannot tell": _cannot_tell,
        "other wiring": _other_wiring,
        "context": _context,
        "loop": _loop,
        "one factor": _one_factor,
        "differs": _differs,
    }[found.kind](found, told)


def _said(found: Comparison) -> str:
    return f"{found.numbers.label}: the server's {_plain(found.numbers.length)}"


def _plain(length: Estimate) -> str:
    """A length with its interval, or alone where it was printed and not counted."""
    return f"{length:.2f}" if length.has_interval else f"{length.value:.2f}"


def _severity(found: Comparison) -> Severity:
    """A server that accepts less than its own replay is at fault; one that accepts more only does something else."""
    return FAULT if found.gap.value < 0 else RISK


def _both(found: Comparison) -> str:
    return f"{_said(found)} is not the replay's {found.theirs.length:.2f} ({found.shape})"


def _not_replayed(found: Comparison) -> Finding:
    likes = f" The replay of the {' or the '.join(found.explained_by)} wiring gives it." if found.explained_by else ""
    return Finding(
        "served.not_replayed",
        NOTE,
        f"Cannot tell whether the server's {found.numbers.length.value:.2f} is explained: its wiring is not replayed",
        f"What the engine feeds fc is not known, or no dump holds it.{likes}",
        "State served.boundaries in the case, and dump those.",
        _evidence(found),
    )


def _agrees(found: Comparison, told: Speculation | None) -> Finding:
    where = f", at all {len(found.numbers.survival)} positions" if found.numbers.rates else ""
    alike = [name for name in found.explained_by if name != found.believed]
    also = (
        f" So does that of the {' and the '.join(alike)} wiring, so the numbers do not tell them apart."
        if alike
        else ""
    )
    return Finding(
        "served.explained",
        OK,
        f"{_said(found)} is the replay's {found.theirs.length:.2f}{where}",
        f"The served wiring explains what the server showed ({found.shape}): the difference is {found.gap:.2f}.{also}",
        evidence=_evidence(found),
    )


def _cannot_tell(found: Comparison, told: Speculation | None) -> Finding:
    if not found.theirs.length.has_interval:
        return Finding(
            "served.too_few_samples",
            NOTE,
            f"Cannot tell whether {_said(found)} is the replay's {found.theirs.length}",
            "A single response says nothing of how far others may lie from it.",
            "Dump more of the server's responses.",
            _evidence(found),
        )
    more = (
        f"About {found.rounds_to_tell:,.0f} rounds of the server would tell, where {found.numbers.length.count:,} were"
        " counted."
        if np.isfinite(found.rounds_to_tell)
        else "More responses in the dump would tell; the server's rounds alone would not."
    )
    return Finding(
        "served.too_few_rounds",
        NOTE,
        f"Cannot tell whether {_said(found)} is the replay's {found.theirs.length:.2f}",
        f"The difference is {found.gap:.2f}: it may be none, and may be more than {MATTERS:.0%} of the length.",
        more,
        _evidence(found),
    )


def _other_wiring(found: Comparison, told: Speculation | None) -> Finding:
    names = " or the ".join(found.explained_by)
    return Finding(
        "served.other_wiring",
        RISK if {"trained", "rewired"} & set(found.explained_by) else FAULT,
        f"{found.numbers.label}: the server accepts as the {names} wiring does, not as the one it is said to serve",
        f"It shows {_plain(found.numbers.length)}, the replay of the {names} wiring"
        f" {found.replayed[found.explained_by[0]].length:.2f} and that of the stated one {found.theirs.length:.2f}"
        f" ({found.shape}). What the case says of the engine's capture is then wrong.",
        "Compare served.engine, its version and served.config with what really ran; an engine's log names what it"
        " captures.",
        _evidence(found),
    )


def _context(found: Comparison, told: Speculation | None) -> Finding:
    return Finding(
        "served.long_lose",
        _severity(found),
        f"{found.numbers.label}: responses beyond {found.split} tokens lose {-found.long.value:.2f} tokens a round,"
        " shorter ones agree with the replay",
        f"{_both(found)}, and the difference lies in long responses: {found.long:.2f} against the others. Positions"
        " beyond what the draft or its cache holds, or a rope that is stretched on one side, do so.",
        "Look at the draft's max_position_embeddings and rope scaling, at the draft's context in the engine, and record"
        " long responses to replay those.",
        _evidence(found) | {"beyond_tokens": found.split, "long_less_short": found.long.numbers},
    )


def _loop(found: Comparison, told: Speculation | None) -> Finding:
    first, *later = found.ratios
    seen = [f"{r.value:.2f}" for r in later if np.isfinite(r.value)]
    return Finding(
        "served.loop",
        _severity(found),
        f"{found.numbers.label}: the first draft is accepted as in the replay, later ones are not",
        f"{_both(found)}. Conditional rates are {first.value:.2f} of the replay's at the first position, then"
        f" {', '.join(seen) or 'too few to tell'}. What feeds the first step is right; what is fed back, the positions"
        " or keys of later steps, or the token map between steps differ.",
        "Compare the state that is fed back (norm_output), each step's position, and draft keys after a rejection.",
        _evidence(found),
    )


def _one_factor(found: Comparison, told: Speculation | None) -> Finding:
    return Finding(
        "served.other_text",
        _severity(found),
        f"{found.numbers.label}: all positions are accepted {found.factor.value:.2f} times as often as in the replay",
        f"{_both(found)}, and one factor {found.factor:.2f} explains all positions, as other text does: other prompts,"
        f" another chat template or system prompt, or a target in other numerics.{_hints(told)}",
        "Ask the server the dump's own prompts as token ids, or dump its responses and replay those.",
        _evidence(found) | {"factor": found.factor.numbers},
    )


def _differs(found: Comparison, told: Speculation | None) -> Finding:
    return Finding(
        "served.unexplained",
        _severity(found),
        f"{found.numbers.label}: the server shows {_plain(found.numbers.length)}, the replay of its wiring gives"
        f" {found.theirs.length:.2f}",
        "Something besides the wiring differs: the prompts or their template, the acceptance rule, the draft"
        f" length, or the loop of the engine.{_hints(told)}",
        "Dump the server's own responses and replay those; compare K, temperature and template."
        + ("" if found.numbers.rates else " A log with counts by position would tell these apart."),
        _evidence(found),
    )


def _hints(told: Speculation | None) -> str:
    """What the settings suggest for a difference that no wiring explains."""
    if told is None:
        return " Its settings are not known; served.launch would tell the rule and the target's quantisation."
    said = []
    if told.quantisation is not None:
        said.append(f"the target is served quantised ({told.origin('quantisation').said})")
    if told.temperature is None and told.sampled_rule is not None:
        lossy = ", which is lossy" if told.sampled_rule in LOSSY else ""
        said.append(f"requests choose their temperature, above 0 {RULES[told.sampled_rule]}{lossy}")
    return f" By its settings {'; and '.join(said)}." if said else ""


def check_recording(runs: Sequence[Comparison]) -> Finding:
    """Recorded greedy runs, each against the replay of the engine's own tokens.

    Args:
        runs: the comparisons of `served_answer.recorded`.
    """
    apart = [run for run in runs if run.kind not in ("agrees", "cannot tell")]
    like = [
        f"{run.numbers.label} as that of the {' and the '.join(names)} wiring"
        for run in runs
        if (names := [name for name in run.explained_by if name != run.believed])
    ]
    others = f" On the dump's tokens: {'; '.join(like)}." if like else ""
    evidence: Evidence = {run.numbers.label: [*finite(run.numbers.length), *finite(run.theirs.length)] for run in runs}
    if apart:
        names = ", ".join(run.numbers.label for run in apart)
        return Finding(
            "served.recorded_differs",
            FAULT,
            f"{len(apart)} of {len(runs)} recorded runs accept otherwise than the replay of their own tokens: {names}",
            f"The tokens are the same, so the engine computes another draft than the replay does.{others}",
            "Record the engine's activations and find where they leave the pass: docs/recording_activations.md.",
            evidence,
        )
    return Finding(
        "served.recorded_agrees",
        OK,
        f"All {len(runs)} recorded greedy runs accept as the replay of the engine's own tokens does",
        f"Chain, bonus included, each response's last round left out.{others}",
        evidence=evidence,
    )


def _evidence(found: Comparison) -> Evidence:
    return {
        **numbers_evidence(found.numbers),
        "shape": found.shape,
        "explained_by": list(found.explained_by),
        "gap": finite(found.gap),
        "ratios": [e.value if np.isfinite(e.value) else None for e in found.ratios],
        **{f"replayed_{name}": finite(rates.length) for name, rates in found.replayed.items()},
    }
