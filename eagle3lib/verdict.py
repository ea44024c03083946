"""The ordered verdict: which stage is at fault, in one sentence, and what to change for each engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle3lib import ecosystems
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Boundary, boundary_name
from eagle3lib.ecosystems import Patch
from eagle3lib.findings import STAGES, Finding, Severity, verdict_order
from eagle3lib.investigation import Investigation

#: What a fault in a stage means for the whole.
STAGE_WORDS = {
    "dump": "The dump is not sound, so nothing after it can be believed",
    "checkpoint": "The checkpoint is at fault",
    "training": "The training number does not come back",
    "wiring": "The wiring is at fault",
    "recurrence": "The steps after the first are at fault",
    "served": "The served number is not explained",
    "cost": "Speculation costs more than it saves",
}

#: Stages after whose fault the later ones still stand: recurrence and cost are judged on the draft as trained, the
#: served number on the wiring that is served.
STANDING = ("wiring", "recurrence", "served")


@dataclass(frozen=True)
class Verdict:
    """The conclusion: `code` is the deciding finding's, or "healthy", "risk" or "incomplete"."""

    code: str
    sentence: str
    findings: tuple[Finding, ...]


def conclude(
    findings: Sequence[Finding], missing: Sequence[str], numbers: Mapping[str, dict], patches: Sequence[dict]
) -> Verdict:
    """The first stage with a fault decides, and faults of later stages that stand beside it are named after it;
    without one, what is left to say.

    Args:
        missing: notebooks that left no results for this case.
        numbers: the numbers of notebook 04, for the sentence of a wiring fault.
        patches: as `patches` gives them, the serving engine's first.
    """
    ordered = tuple(verdict_order(list(findings)))
    faults = [f for f in ordered if f.severity is Severity.FAULT]
    if faults:
        first = faults[0]
        differs = next((f for f in faults if f.code == "wiring.served_differs"), None)
        if differs and differs.stage == first.stage:  # it says most: what is fed, what it costs, and what mends it
            sentence = _wiring_sentence(differs, faults, numbers, patches)
            return Verdict(differs.code, f"{sentence}{_besides(first, faults)}.{_denied(ordered)}", ordered)
        sentence = f"{STAGE_WORDS[first.stage]}: {_lower(first.title)}{_besides(first, faults)}. {first.remedy}"
        return Verdict(first.code, sentence.strip(), ordered)
    if missing:
        names = ", ".join(missing)
        return Verdict("incomplete", f"No fault found so far; {names} left no results for this case.", ordered)
    risks = [f for f in ordered if f.severity is Severity.RISK]
    if risks:
        return Verdict("risk", f"No fault found; the first thing to look at: {_lower(risks[0].title)}.", ordered)
    checked = ", ".join(stage for stage in STAGES if any(f.stage == stage for f in ordered))
    left = "data" if any(f.stage == "cost" and f.severity is Severity.OK for f in ordered) else "data and cost"
    return Verdict(
        "healthy",
        f"No fault found in {checked}: the draft is served as it was trained; what is left is {left}.",
        ordered,
    )


def headline(results: Mapping[str, dict]) -> list[dict]:
    """The three numbers that matter, with intervals: trained, served and rewired acceptance length."""
    numbers = results.get("04_concat_order", {}).get("numbers", {})
    steps = results.get("04_concat_order", {}).get("parameters", {}).get("steps")
    labels = {"trained": "as trained", "served": "as served", "rewired": "served, columns moved"}
    return [
        {
            "label": label,
            "unit": f"tokens a round, K = {steps}",
            **{key: found[key] for key in ("value", "low", "high")},
        }
        for name, label in labels.items()
        if (found := numbers.get(f"{name}_acceptance_length"))
    ]


def length_curves(results: Mapping[str, dict]) -> dict[str, dict[int, Estimate]]:
    """Acceptance length by wiring and draft length, as notebook 05 recorded it; {} where it did not run."""
    curves: dict[str, dict[int, Estimate]] = {}
    for row in results.get("05_acceptance_length", {}).get("numbers", {}).get("acceptance_length", []):
        found = Estimate(row["walk"], row["low"], row["high"], row["rounds"])
        curves.setdefault(row["wiring"], {})[row["K"]] = found
    return curves


def _wiring_sentence(
    finding: Finding, faults: Sequence[Finding], numbers: Mapping[str, dict], patches: Sequence[dict]
) -> str:
    evidence = finding.evidence
    trained, served = (_names(evidence[key]) for key in ("trained", "served"))
    before, after = evidence["trained_acceptance_length"][0], evidence["served_acceptance_length"][0]
    contradicted = "wiring.search_contradicts" in {f.code for f in faults}
    against = ", as the states say against its files," if contradicted else ""
    sentence = (
        f"The wiring is at fault: the draft was trained on {trained}{against} and is served {served}, which cuts its"
        f" acceptance length from {before:.2f} to {after:.2f} tokens a round"
    )
    rewired = numbers.get("rewired_acceptance_length")
    if rewired:
        sentence += f"; moving fc's columns alone, without new data, brings back {rewired['value']:.2f}"
    if patches:
        first = patches[0]
        needs = f"needs the ids {list(first['ids'])}" if first["ids"] else "cannot capture these boundaries"
        sentence += f"; {first['engine']} {first['version']} {needs}"
    return sentence


def _besides(first: Finding, faults: Sequence[Finding]) -> str:
    """The first fault of each later stage, where it stands on its own."""
    if first.stage not in STANDING:
        return ""
    later = {f.stage: f for f in reversed(faults) if f.stage != first.stage}
    titles = [_lower(later[stage].title) for stage in STAGES if stage in later]
    return f"; besides, {'; and '.join(titles)}" if titles else ""


def _denied(findings: Sequence[Finding]) -> str:
    """What to say where a server accepts as the draft was trained, whatever the case says that it is fed."""
    for finding in findings:
        if finding.code == "served.other_wiring" and "trained" in finding.evidence["explained_by"]:
            return (
                " But the server's own numbers are those of the trained wiring: see first whether the case names the"
                " engine, the version and the config that ran."
            )
    return ""


def _names(boundaries: Sequence[Boundary]) -> str:
    names = [boundary_name(b) for b in boundaries]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _lower(title: str) -> str:
    """A title as it reads after a colon; names such as B(3) and NaN keep their capitals."""
    return title[0].lower() + title[1:] if title[1:2].islower() else title


def patches(investigation: Investigation, trained: Sequence[Boundary]) -> list[dict]:
    """`engine_patches` as plain data, for results and templates."""
    return [
        {
            "engine": patch.label, "version": patch.version, "ids": patch.ids, "text": patch.text, "note": patch.note,
            "verify": patch.verify, "argument": patch.argument,
        }
        for patch in engine_patches(investigation, trained)
    ]  # fmt: skip


def engine_patches(investigation: Investigation, trained: Sequence[Boundary]) -> list[Patch]:
    """For each engine, what makes it feed `fc` as in training, or why it cannot.

    The engine that serves the case is first, in its own version; the others in the version last read.

    Raises:
        InputError: if the case states a version that is none.
    """
    served, serving = investigation.case.served, investigation.engine
    engines = sorted(ecosystems.ENGINES.values(), key=lambda e: (e is not serving, e.label))
    return [
        engine.patch(
            investigation.served_config if engine is serving else investigation.draft_config,
            tuple(trained),
            investigation.shape,
            served.version if engine is serving else None,
        )
        for engine in engines
    ]
