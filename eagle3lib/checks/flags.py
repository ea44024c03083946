"""Stage `served`: how the server was told to speculate, and what that says of its numbers before any replay."""

from __future__ import annotations

from eagle3lib.checks.context import SEVERITIES
from eagle3lib.checks.round_shape import check_shape, evidence_of
from eagle3lib.ecosystems import Engine
from eagle3lib.findings import Finding, Severity
from eagle3lib.speculation import LOSSY, RULES, Speculation

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK


def check_flags(
    told: Speculation, engine: Engine, served_steps: int | None = None, draft_positions: int | None = None
) -> list[Finding]:
    """What the arguments of a server mean for what it shows.

    Args:
        told: as `Engine.speculation` read it.
        served_steps: the case's `served.steps`.
        draft_positions: `DraftConfig.max_positions`, the context that the draft was made for.
    """
    if not told.speculates:
        return [_not_speculating(told, engine)]
    found = [
        *_method(told, engine),
        *_simulated(told, engine),
        *check_shape(told, engine, served_steps),
        *_context(told, engine, draft_positions),
        *_lossy(told, engine),
        *_hazards(told),
        *_quantised(told),
        *_rule(told),
    ]
    broken = not told.complete or any(f.severity in (FAULT, RISK) for f in found)
    return found if broken else [_healthy(told), *found]


def _not_speculating(told: Speculation, engine: Engine) -> Finding:
    return Finding(
        "served.no_speculation",
        FAULT,
        "The server was not told to speculate: every round is one token",
        f"In {engine.label} {told.origin('steps').said}, so its speed is the baseline's and no draft has a part in it.",
        f"Start it with {engine.flags.line('eagle3', True)}, the draft's path and {engine.flags.line('steps', 3)}.",
        evidence_of(told, "steps", "method"),
    )


def _method(told: Speculation, engine: Engine) -> list[Finding]:
    evidence = evidence_of(told, "method", "draft_model")
    if told.eagle3 is None:
        title = "Cannot tell whether the server drafts as EAGLE-3: its arguments name no method"
        meaning = f"{told.origin('method').said}; its log says what it chose."
        return [Finding("served.method", NOTE, title, meaning, f"State {engine.flags.line('eagle3', True)}.", evidence)]
    if told.eagle3:
        return []
    title = f"The server drafts by {told.method}, which is not EAGLE-3"
    meaning = f"The draft is not fed the states that it was trained on: {told.origin('eagle3').said}."
    return [
        Finding("served.method", FAULT, title, meaning, f"Serve with {engine.flags.line('eagle3', True)}.", evidence)
    ]


def _simulated(told: Speculation, engine: Engine) -> list[Finding]:
    if told.simulated is None:
        return []
    return [
        Finding(
            "served.simulated",
            FAULT,
            f"Acceptance is simulated ({told.origin('simulated').said}): every number that the server shows is made up",
            "Drafts are accepted by a draw and not by comparison, so lengths and speeds say what was asked for, and the"
            " text that is written is not the target's.",
            f"Before measuring, {engine.flags.line('simulated', None)}.",
            evidence_of(told, "simulated"),
        )
    ]


def _context(told: Speculation, engine: Engine, draft_positions: int | None) -> list[Finding]:
    """A draft that takes fewer tokens than its server: as it was told, or by its own config.json."""
    evidence = {**evidence_of(told, "context", "draft_context"), "max_position_embeddings": draft_positions}
    if None not in (told.context, told.draft_context) and told.draft_context < told.context:
        title = f"The draft takes {told.draft_context:,} tokens, and the server {told.context:,}"
        meaning = "Beyond the draft's context nothing is drafted, and a long request is served at the baseline's speed."
        remedy = f"Set {engine.flags.line('draft_context', told.context)}, or leave it out."
        return [Finding("served.draft_context", RISK, title, meaning, remedy, evidence)]
    if None in (told.context, draft_positions) or draft_positions >= told.context:
        return []
    beyond = engine.beyond(draft_positions, told.version)
    title = f"The server takes {told.context:,} tokens, and the draft was made for {draft_positions:,} positions"
    remedy = beyond.remedy
    return [Finding("served.draft_context", SEVERITIES[beyond.outcome], title, beyond.sentence, remedy, evidence)]


def _lossy(told: Speculation, engine: Engine) -> list[Finding]:
    if told.sampled_rule not in LOSSY or told.temperature == 0:
        return []
    low = [n for n in ("threshold_single", "threshold_acc") if (getattr(told, n) or 1) < 1]
    said = " and ".join(told.origin(n).said for n in low) or told.origin("sampled_rule").said
    lines = ", ".join(engine.flags.line(n, 1.0) for n in low) or engine.flags.line("sampled_rule", "standard")
    return [
        Finding(
            "served.lossy_rule",
            RISK,
            f"Acceptance is lossy above temperature 0 ({said})",
            f"By this rule {RULES[told.sampled_rule]}: acceptance is higher than a lossless server's, what is written"
            " is not the target's, and the replay is exact at step 0 alone.",
            f"Set {lines} to measure the draft.",
            evidence_of(told, "sampled_rule", "temperature", *low),
        )
    ]


def _hazards(told: Speculation) -> list[Finding]:
    return [
        Finding(
            "served.hazard",
            RISK,
            f"{hazard.argument} is known to break verification in some builds",
            hazard.meaning,
            hazard.remedy,
            {"argument": hazard.argument, "version": told.version},
        )
        for hazard in told.hazards
    ]


def _quantised(told: Speculation) -> list[Finding]:
    if told.quantisation is None:
        return []
    title = f"The target is served quantised ({told.origin('quantisation').said})"
    meaning = (
        "Its states are not those of the unquantised target: a draft that was trained on the one is fed the other."
    )
    remedy = "Dump the states of the quantised target, or say in the case which of them the dumps hold."
    return [Finding("served.quantised", NOTE, title, meaning, remedy, evidence_of(told, "quantisation", "dtype"))]


def _rule(told: Speculation) -> list[Finding]:
    if told.simulated is not None or told.sampled_rule is None:
        return []
    evidence = evidence_of(told, "temperature", "top_k", "top_p", "sampled_rule", "threshold_single", "threshold_acc")
    sampled = f"{told.sampled_rule}, by which {RULES[told.sampled_rule]}"
    if told.origin("temperature").kind in ("unknown", "default"):
        otherwise = "" if told.temperature is None else f" and {told.temperature:g} where they state none"
        title = f"Acceptance is by match at temperature 0, by {told.sampled_rule} above it"
        meaning = (
            f"Requests choose their temperature{otherwise}. At 0 {RULES['match']}; above it the rule is {sampled}."
        )
    else:
        title = f"Acceptance at temperature {told.temperature:g} is by {told.rule}"
        meaning = f"By this rule {RULES[told.rule]}, unless a request states another temperature."
    remedy = "State the temperature of the recorded responses for each dump, so that the same rule is replayed."
    return [Finding("served.rule", NOTE, title, meaning, remedy, evidence)]


def _healthy(told: Speculation) -> Finding:
    title = f"What the server was told holds together: {told.shape}"
    limit = "" if told.longest_round is None else f"A round yields at most {told.longest_round} tokens. "
    meaning = f"{limit}Nothing in the text caps, fakes or contradicts what it shows."
    return Finding("served.flags", OK, title, meaning, evidence=evidence_of(told, "steps", "topk", "draft_tokens"))
