"""Stage `served`: contexts longer than the draft says it can take."""

from __future__ import annotations

from eagle3lib.context import Sides
from eagle3lib.ecosystems import Engine
from eagle3lib.findings import Evidence, Finding, Severity, quantity

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK

#: So many samples with starts on both sides, before a difference between the sides is believed.
MIN_PAIRED = 8
#: How much each outcome explains by itself: a server that does not start is seen at once, one that drafts nothing not.
SEVERITIES = {"stops": RISK, "served": NOTE, "undrafted": FAULT, "unsafe": FAULT, "unknown": RISK}


def check_context(
    limit: int | None, longest: int, engine: Engine | None, version: str | None, found: Sides | None
) -> list[Finding]:
    """What the draft's `max_position_embeddings` means for the recorded lengths, and what the replay measures there.

    Args:
        limit: `DraftConfig.max_positions`.
        longest: tokens of the longest context that is recorded or served.
        engine: which serves, None where the case names none.
        found: acceptance on the two sides of the limit, None where no start lies beyond.
    """
    evidence: Evidence = {"max_position_embeddings": limit, "longest": longest}
    if limit is None:
        title = "Cannot tell how many positions the draft was made for: config.json has no max_position_embeddings"
        return [
            Finding("served.context", NOTE, title, "Engines then take a default of their own.", "State it.", evidence)
        ]
    if longest <= limit:
        title = f"The longest context, {longest} tokens, is within the draft's {limit} positions"
        return [Finding("served.context", OK, title, "No position leaves the rope table.", evidence=evidence)]
    title = f"Contexts of up to {longest} tokens pass the draft's max_position_embeddings of {limit}"
    meaning, remedy, severity = "No engine is named, and each does something else there.", "Name the engine.", RISK
    if engine is not None:
        rule = engine.beyond(limit, version)
        meaning, remedy, severity = rule.sentence, rule.remedy, SEVERITIES[rule.outcome]
        evidence |= {"engine": engine.name, "outcome": rule.outcome}
    findings = [Finding("served.context", severity, title, meaning, remedy, evidence)]
    return findings if found is None else [*findings, check_sides(found)]


def check_sides(found: Sides) -> Finding:
    """Whether the draft itself is worse beyond its limit, whatever the engine does."""
    before, beyond, lost = found.before, found.beyond, found.lost
    evidence: Evidence = {
        "steps": found.steps, "limit": found.limit, "samples with both sides": found.paired,
        **{name: e.numbers for name, e in (("before", before), ("beyond", beyond), ("lost", lost))},
    }  # fmt: skip
    numbers = (
        f"over all starts at K = {found.steps}: {before.value:.2f} tokens a round before position {found.limit}, "
        f"{beyond.value:.2f} from there on"
    )
    if found.paired < MIN_PAIRED:
        title = f"Cannot tell whether the draft is worse beyond {found.limit} positions: {numbers}"
        held = quantity(found.paired, "sample has", "samples have")
        meaning = f"Only {held} starts on both sides; {MIN_PAIRED} are asked for."
        return Finding("served.beyond_context", NOTE, title, meaning, "Record more long samples.", evidence)
    if not lost.excludes_zero:
        title = f"Beyond {found.limit} positions the draft is no different that could be told, {numbers}"
        meaning = f"The difference in samples with both sides is {lost}."
        return Finding("served.beyond_context", NOTE, title, meaning, "", evidence)
    worse = lost.value > 0
    return Finding(
        "served.beyond_context",
        RISK if worse else OK,  # what is written there differs as well, so it is no proof
        f"Beyond {found.limit} positions the draft is {'worse' if worse else 'no worse'}, {numbers}",
        f"The difference in {found.paired} samples with both sides is {lost}; the replay computes all angles, so no"
        " rope table has a part in it. That what is written there is harder or easier may have one.",
        "Train the draft on longer samples, or stretch its rope." if worse else "",
        evidence,
    )
