"""Stage `served`: the shape of a round that the server was told, and whether it can be."""

from __future__ import annotations

from dataclasses import fields

from eagle3lib.ecosystems import Engine
from eagle3lib.findings import Evidence, Finding, Severity, quantity
from eagle3lib.speculation import Speculation, least_topk, readings

FAULT, RISK, NOTE = Severity.FAULT, Severity.RISK, Severity.NOTE


def check_shape(told: Speculation, engine: Engine, served_steps: int | None) -> list[Finding]:
    """Steps, topk and draft tokens against each other and against the case.

    Args:
        served_steps: the case's `served.steps`.
    """
    return [
        *_one_step(told, engine),
        *_forced(told, engine),
        *_capacity(told, engine),
        *_too_few_nodes(told, engine),
        *_disagreeing_steps(told, served_steps),
        *_unknown(told, engine),
        *_guessed(told, engine),
        *_varying(told),
    ]


def evidence_of(told: Speculation, *names: str) -> Evidence:
    """Fields with the arguments that set them."""
    said = {f"{name} from": told.origin(name).said for name in names if told.origin(name).said}
    return {**{name: getattr(told, name) for name in names}, **said}


def _one_step(told: Speculation, engine: Engine) -> list[Finding]:
    if told.steps != 1:
        return []
    asked = told.asked_draft_tokens or told.draft_tokens
    capped = asked is not None and asked > 2
    whatever = f", whatever the {asked} draft tokens say" if capped else ""
    wide = {
        1: "At topk 1 that is one drafted token, two nodes with the root.",
        None: "At topk 1 that is one drafted token, two nodes with the root; otherwise up to topk siblings, of which"
        " one can be accepted.",
    }.get(told.topk, f"Its {told.topk} siblings are alternatives for one token, of which one can be accepted.")
    return [
        Finding(
            "served.one_step",
            FAULT if capped else RISK,
            f"Drafts are one step deep: a round yields at most 2 tokens{whatever}",
            f"{told.origin('steps').said} drafts to depth one. {wide} A draft that is right further on cannot show it.",
            f"Set {engine.flags.line('steps', 3)}, and measure again.",
            {**evidence_of(told, "steps", "topk", "draft_tokens"), "asked": asked, "longest round": 2},
        )
    ]


def _forced(told: Speculation, engine: Engine) -> list[Finding]:
    if told.asked_draft_tokens is None or told.steps is None:
        return []
    asked, taken = told.asked_draft_tokens, told.draft_tokens
    remedy = f"State what is served, {engine.flags.line('draft_tokens', taken)}"
    if asked > taken:
        topk = engine.flags.line("topk", least_topk(told.steps, asked - 1))
        remedy += f", or ask for a tree that holds {asked} nodes: {topk}"
    return [
        Finding(
            "served.draft_tokens_forced",
            RISK if asked > taken else NOTE,
            f"{quantity(asked, 'draft token')} asked for, {taken} verified: topk 1 forces steps + 1",
            f"A chain of {quantity(told.steps, 'step')} has a node a step and the root, and {engine.label} overrides"
            " the number without stopping.",
            f"{remedy}.",
            evidence_of(told, "steps", "topk", "draft_tokens", "asked_draft_tokens"),
        )
    ]


def _capacity(told: Speculation, engine: Engine) -> list[Finding]:
    if told.capacity is None or told.draft_tokens is None or told.draft_tokens - 1 <= told.capacity:
        return []
    return [
        Finding(
            "served.tree_overfull",
            FAULT,
            f"{told.draft_tokens} draft tokens are more than the tree holds: {told.capacity} nodes and the root",
            f"With topk {told.topk} over {quantity(told.steps or 0, 'step')} {told.origin('capacity').said}; the engine"
            " cannot pick more of them and stops, so what was measured was served otherwise.",
            f"Set {engine.flags.line('draft_tokens', told.capacity + 1)} or fewer, or raise the steps or the topk.",
            evidence_of(told, "steps", "topk", "draft_tokens", "capacity"),
        )
    ]


def _too_few_nodes(told: Speculation, engine: Engine) -> list[Finding]:
    if not told.complete or told.topk == 1 or told.draft_tokens > told.steps:
        return []
    return [
        Finding(
            "served.steps_wasted",
            RISK,
            f"{told.steps} steps are drafted and a round yields at most {told.draft_tokens} tokens",
            f"Only {told.draft_tokens - 1} nodes below the root are verified, so no path of {told.steps} can be"
            " accepted whole, and the last steps are paid for nothing.",
            f"Set {engine.flags.line('draft_tokens', told.steps + 1)} or more, or"
            f" {engine.flags.line('steps', max(1, told.draft_tokens - 1))}.",
            evidence_of(told, "steps", "topk", "draft_tokens"),
        )
    ]


def _disagreeing_steps(told: Speculation, served_steps: int | None) -> list[Finding]:
    if None in (served_steps, told.steps) or served_steps == told.steps:
        return []
    return [
        Finding(
            "served.steps_disagree",
            RISK,
            f"The case states served.steps = {served_steps}, and the server was told {told.steps}",
            f"Replays are {served_steps} steps deep, so they forecast another server than {told.origin('steps').said}"
            " starts.",
            f"Set served.steps = {told.steps}, or give the text that the server was really started with.",
            {"served.steps": served_steps, **evidence_of(told, "steps")},
        )
    ]


def _unknown(told: Speculation, engine: Engine) -> list[Finding]:
    if told.complete:
        return []
    missing = [name for name in ("steps", "topk", "draft_tokens") if getattr(told, name) is None]
    possible = [reading.sentence for reading in readings(told)]
    why = "; ".join(dict.fromkeys(said for name in missing if (said := told.origin(name).said)))
    said = f"{why}. " if why else "The text does not say. "
    lines = [engine.flags.line(name, "N") for name in missing if name in engine.flags.lines]
    return [
        Finding(
            "served.shape_unknown",
            NOTE,
            f"Cannot tell the shape of a round: {' and '.join(missing)} not known",
            said + (f"It may be: {' '.join(possible)}" if possible else "Nothing bounds a round's length then."),
            f"Read {', '.join(lines)} off the log of the start." if lines else "Read it off the log of the start.",
            {**evidence_of(told, "steps", "topk", "draft_tokens"), "readings": possible},
        )
    ]


def _guessed(told: Speculation, engine: Engine) -> list[Finding]:
    names = [f.name for f in fields(told) if told.origin(f.name).kind == "guessed"]
    if not names:
        return []
    listed = ", ".join(f"{name} {getattr(told, name)}" for name in names)
    why = "; ".join(dict.fromkeys(told.origin(name).said for name in names))
    lines = " ".join(engine.flags.line(name, getattr(told, name)) for name in names)
    title = f"The engine chooses for itself: {listed}"
    meaning = f"The text does not say: {why}. Another release may choose otherwise."
    return [Finding("served.guessed", NOTE, title, meaning, f"State {lines}.", evidence_of(told, *names))]


def _varying(told: Speculation) -> list[Finding]:
    if not told.varying:
        return []
    title = f"Not every round drafts {told.steps or 'all'} steps"
    meaning = (
        f"{'. '.join(told.varying)}. Ratios of accepted to drafted tokens then do not compare, and"
        f" the replay drafts {told.steps or 'all'} steps in every round."
    )
    remedy = "Compare accepted tokens a round, and take it out to measure the draft."
    return [Finding("served.draft_length_varies", NOTE, title, meaning, remedy, {"varying": list(told.varying)})]
