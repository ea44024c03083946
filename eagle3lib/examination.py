"""What a draft's files tell by themselves: ledger, layer ids of every engine, vocabulary map, findings."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path

from eagle3lib import ecosystems
from eagle3lib.checks.checkpoint import check_embedding, check_finite, check_head, check_map
from eagle3lib.checks.engine import check_engine, trained_slots
from eagle3lib.checks.header import check_header
from eagle3lib.checks.target import check_padding
from eagle3lib.dialects import Checkpoint, read_checkpoint
from eagle3lib.ecosystems import Engine, TargetShape
from eagle3lib.errors import InputError
from eagle3lib.findings import Finding, Severity, verdict_order
from eagle3lib.id_readings import IdReading, read_by
from eagle3lib.ledger import FlagEntry, TensorEntry, flag_ledger, tensor_ledger
from eagle3lib.target import Target, load_target
from eagle3lib.target_folder import language_part
from eagle3lib.tensors import read_json
from eagle3lib.vocabulary import Vocabulary, read_vocabulary
from eagle3lib.weights import INTEGER_TYPES, embedding_likeness, head_likeness, tensor_stats


@dataclass
class Examination:
    """All that the files tell. `notes` are sentences on what was not looked at, and why."""

    checkpoint: Checkpoint
    tensors: tuple[TensorEntry, ...]
    flags: tuple[FlagEntry, ...]
    shape: TargetShape | None
    trained: tuple[int, ...] | None
    ids: list[IdReading]
    vocabulary: Vocabulary | None
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    server_args: dict[str, str | bool] = field(default_factory=dict)

    def to_json(self) -> dict:
        """Plain data for a script."""
        vocabulary = self.vocabulary
        return {
            "draft": str(self.checkpoint.path),
            "form": self.checkpoint.dialect,
            "evidence": list(self.checkpoint.evidence),
            "prefix": self.checkpoint.prefix,
            "trained": None if self.trained is None else list(self.trained),
            "tensors": [asdict(entry) for entry in self.tensors],
            "flags": [asdict(entry) for entry in self.flags],
            "ids": [asdict(row) for row in self.ids],
            "vocabulary": None
            if vocabulary is None
            else {"draft": len(vocabulary), "target": vocabulary.size, "reading": vocabulary.reading},
            "findings": [finding.to_json() for finding in self.findings],
            "notes": self.notes,
            "server_args": self.server_args,
        }


def examine(
    draft: Path,
    target: Path | None = None,
    shape: TargetShape | None = None,
    architecture: str | None = None,
    engine: str | None = None,
    version: str | None = None,
    server_args: str = "",
    values: bool = False,
) -> Examination:
    """Everything that the command prints.

    Raises:
        InputError: if the draft, the target or an option cannot be used.
    """
    serving = ecosystems.engine(engine) if engine else None
    if version and serving is None:
        raise InputError("Expected --engine beside --engine-version, found none; a version alone names no engine.")
    checkpoint = read_checkpoint(draft)
    opened, notes = _target(target)
    shape = shape or _shape(target, opened, architecture)
    found = Examination(
        checkpoint,
        tensor_ledger(checkpoint),
        flag_ledger(checkpoint),
        shape,
        trained_slots(checkpoint, shape) if shape else None,
        [],
        None,
        notes=notes,
        server_args=parse_server_args(server_args),
    )
    found.findings += check_header(checkpoint, found.tensors, found.flags)
    if opened and (padding := check_padding(opened)):
        found.findings.append(padding)
    _read_map(found)
    if shape:
        raw = checkpoint.raw_config
        found.ids = [read_by(e, raw, shape, version if e is serving else None) for e in _engines(serving)]
    else:
        found.notes.append("Layer ids need the target's depth: give --target or --target-layers.")
    if serving:
        found.findings += check_engine(checkpoint, found.tensors, serving, version, shape)
    if values:
        found.findings += _values(found, opened)
    else:
        found.notes.append("Values were not read: --values looks for NaN, constants and random embeddings.")
    found.findings = verdict_order(found.findings)
    return found


def _engines(first: Engine | None) -> list[Engine]:
    rest = [e for e in ecosystems.ENGINES.values() if e is not first]
    return [first, *rest] if first else rest


def _target(path: Path | None) -> tuple[Target | None, list[str]]:
    """The target, or None with the reason, where its config.json alone is there."""
    if path is None:
        return None, []
    try:
        return load_target(path), []
    except InputError as error:
        if not (path / "config.json").is_file():
            raise
        return None, [f"Of the target only config.json was used: {error}"]


def _shape(path: Path | None, target: Target | None, architecture: str | None) -> TargetShape | None:
    if target is not None:
        return TargetShape(target.n_layers, architecture or target.architecture)
    if path is None:
        return None
    raw = read_json(path / "config.json")
    n_layers = language_part(raw).get("num_hidden_layers")
    if n_layers is None:
        return None
    return TargetShape(int(n_layers), architecture or next(iter(raw.get("architectures") or []), None))


def _read_map(found: Examination) -> None:
    try:
        found.vocabulary = read_vocabulary(found.checkpoint)
    except InputError as error:
        title = "The draft's vocabulary map cannot be read"
        found.findings.append(Finding("checkpoint.vocabulary_unreadable", Severity.FAULT, title, str(error)))
    else:
        found.findings += check_map(found.vocabulary)


def _values(found: Examination, target: Target | None) -> list[Finding]:
    """The streamed pass over the weights, and rows held against the target's."""
    tensors = found.checkpoint.tensors
    stats = [tensor_stats(n, info) for n, info in tensors.items() if not info.dtype.startswith(INTEGER_TYPES)]
    findings = [check_finite(stats)]
    if target is None:
        found.notes.append("Embedding and head were not compared with the target's: give --target with its weights.")
        return findings
    if likeness := embedding_likeness(found.checkpoint, target):
        findings.append(check_embedding(likeness))
    if found.vocabulary and (likeness := head_likeness(found.checkpoint, target, found.vocabulary)):
        findings += [finding] if (finding := check_head(likeness)) else []
    return findings


def parse_server_args(text: str) -> dict[str, str | bool]:
    """`--name value`, `--name=value` and bare `--name` of a command line.

    Raises:
        InputError: if a quotation is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"The server's command line cannot be split into words ({error}): {text!r}.") from None
    found: dict[str, str | bool] = {}
    for i, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        following = words[i + 1] if i + 1 < len(words) else "--"
        found[name] = value if equals else True if following.startswith("--") else following
    return found
