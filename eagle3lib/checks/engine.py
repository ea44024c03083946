"""Stage `checkpoint`: what one engine does with the draft, before a single token is served."""

from __future__ import annotations

from eagle3lib.boundaries import boundary_name
from eagle3lib.dialects import Checkpoint
from eagle3lib.ecosystems import FORMS, Engine, TargetShape
from eagle3lib.errors import InputError
from eagle3lib.findings import Finding, Severity
from eagle3lib.ledger import TensorEntry

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK


def trained_slots(checkpoint: Checkpoint, shape: TargetShape) -> tuple[int, ...] | None:
    """The boundaries the draft was trained on by the rule of who writes its form, None where that is not told."""
    form = FORMS.get(checkpoint.form)
    return form.trainer.trained(checkpoint.raw_config, shape) if form and form.trainer else None


def check_engine(
    checkpoint: Checkpoint,
    tensors: tuple[TensorEntry, ...],
    engine: Engine,
    version: str | None,
    shape: TargetShape | None,
) -> list[Finding]:
    """All of the below for the engine that is to serve."""
    found = [
        *check_loading(checkpoint, engine),
        *check_treatment(checkpoint, engine),
        *check_replaced(tensors, checkpoint, engine),
        *check_captures(checkpoint, engine, version, shape),
    ]
    if not any(f.severity in (FAULT, RISK) for f in found):
        title = f"{engine.label} reads every tensor and every flag of this draft that matters"
        found.append(Finding("checkpoint.engine", OK, title, f"By its source, {engine.as_of(version)}."))
    return found


def check_loading(checkpoint: Checkpoint, engine: Engine) -> list[Finding]:
    """Reasons for which the engine would not load the draft."""
    return [
        Finding(
            "checkpoint.engine_stops",
            FAULT,
            f"{engine.label} does not load this draft as it is",
            f"{engine.label}: {why}.",
            "Change config.json or the tensors as said.",
            {"engine": engine.name},
        )
        for why in engine.stops(checkpoint)
    ]


def check_treatment(checkpoint: Checkpoint, engine: Engine) -> list[Finding]:
    """Flags that are ignored and tensors that are dropped, without a word from the engine."""
    rules = engine.rules(checkpoint)
    found = [
        Finding(
            "checkpoint.flag_ignored",
            FAULT,
            f"{engine.label} ignores {said.about}",
            f"{said.sentence}.",
            "Serve with an engine that honours it, or train for what this one serves.",
            {"engine": engine.name, "flag": said.about},
        )
        for said in rules.ignored(checkpoint)
    ]
    for said in rules.dropped(checkpoint):
        if said.about == "t2d":
            continue  # as everywhere
        # The target's embedding is a fair copy of what most trainers keep frozen: values tell, not the header.
        severity = RISK if said.about == "embed_tokens.weight" else FAULT
        found.append(
            Finding(
                "checkpoint.tensor_dropped",
                severity,
                f"{engine.label} does not use {said.about}",
                f"{said.sentence}.",
                "Check that the tensor is the target's own."
                if severity is RISK
                else "Correct config.json or the name.",
                {"engine": engine.name, "tensor": said.about},
            )
        )
    return found


def check_replaced(tensors: tuple[TensorEntry, ...], checkpoint: Checkpoint, engine: Engine) -> list[Finding]:
    """What the engine puts for tensors that the file lacks: one finding for each thing put."""
    rules = engine.rules(checkpoint)
    put: dict[tuple[str, bool], list[str]] = {}
    for entry in tensors:
        if entry.status != "missing" or (what := rules.replacement(entry.name)) is None:
            continue
        same_size = checkpoint.config.get("draft_vocab_size") in (None, checkpoint.config.get("vocab_size"))
        harmless = "target's" in what and (entry.name == "embed_tokens.weight" or same_size)
        put.setdefault((what, harmless), []).append(entry.name)
    return [
        Finding(
            "checkpoint.tensor_replaced",
            NOTE if harmless else FAULT,
            f"{engine.label} has {what} for {', '.join(names[:3])}"
            + (f" and {len(names) - 3} more" if len(names) > 3 else ""),
            f"The file has no such tensor, and {engine.label} says nothing of it.",
            "" if harmless else "Export the draft with it.",
            {"engine": engine.name, "tensors": names},
        )
        for (what, harmless), names in put.items()
    ]


def check_captures(
    checkpoint: Checkpoint, engine: Engine, version: str | None, shape: TargetShape | None
) -> list[Finding]:
    """The boundaries that this engine feeds `fc`, against those that the draft's own form says."""
    if shape is None:
        return [
            Finding(
                "checkpoint.captures_unknown",
                NOTE,
                "Which states feed fc cannot be told without the target's depth",
                "Give --target or --target-layers.",
            )
        ]
    try:
        ids = engine.read_ids(checkpoint.raw_config)
        served = engine.boundaries(ids, shape, version)
    except InputError as error:
        title = f"{engine.label} cannot feed fc with the ids of this draft"
        return [Finding("checkpoint.captures_impossible", FAULT, title, str(error), evidence={"engine": engine.name})]
    trained = trained_slots(checkpoint, shape)
    evidence = {"engine": engine.name, "ids": None if ids.ids is None else list(ids.ids), "spelling": ids.spelling,
                "served": list(served), "trained": None if trained is None else list(trained)}  # fmt: skip
    if trained is None or trained == served:
        if ids.ignored:
            return [_passed_over(engine, ids.ignored, ids.spelling, evidence)]
        return []
    names = [", ".join(map(boundary_name, boundaries)) for boundaries in (trained, served)]
    return [
        Finding(
            "checkpoint.captures_differ",
            FAULT if FORMS[checkpoint.form].certain else RISK,
            f"{engine.label} feeds fc {names[1]}; a draft of this form was trained on {names[0]}",
            f"ids {evidence['ids'] or 'by default'} ({ids.spelling}): {engine.note(shape, version)}"
            + (f" It passes over {' and '.join(ids.ignored)}." if ids.ignored else ""),
            engine.patch(checkpoint.raw_config, trained, shape, version).text.replace("\n", " ")
            or engine.patch(checkpoint.raw_config, trained, shape, version).note,
            evidence,
        )
    ]


def _passed_over(engine: Engine, ignored: tuple[str, ...], spelling: str, evidence: dict) -> Finding:
    return Finding(
        "checkpoint.ids_passed_over",
        RISK,
        f"{engine.label} passes over {' and '.join(ignored)}",
        f"It reads another place ({spelling}) and takes what it finds there, or its default.",
        f"Move the list to {engine.key}.",
        evidence,
    )
