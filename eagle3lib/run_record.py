"""OUT/run.json: how far the last run came, so that the next one can go on, and how long its notebooks took."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from eagle3lib.execution import executed_path
from eagle3lib.notebooks import Notebook
from eagle3lib.results import results_path, write_json


@dataclass
class RunRecord:
    """The state of a run.

    Attributes:
        selected: the notebooks that it was to run.
        complete: whether it ran all of them to their end.
        fingerprints: of those that it finished, by name.
        seconds: how long each notebook took when it last finished here, whichever run that was.
    """

    selected: list[str] = field(default_factory=list)
    complete: bool = True
    fingerprints: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def save(self, out: Path) -> None:
        """Write OUT/run.json, whole or not at all."""
        write_json(out / "run.json", asdict(self))


def load_record(out: Path) -> RunRecord:
    """The record of the last run in `out`; an empty one where there is none, or where it is not ours."""
    try:
        data = json.loads((out / "run.json").read_text(encoding="utf-8"))
        return RunRecord(**data)
    except (OSError, ValueError, TypeError):
        return RunRecord()


def to_keep(last: RunRecord, selected: Sequence[Notebook], prints: Mapping[str, str], out: Path) -> list[Notebook]:
    """The notebooks that a run need not repeat: those that the same run finished before it was stopped.

    A notebook reads what earlier ones left, so from the first one that has to run on, all of them run. A run that
    came to its end is not continued: asking for it again means wanting it again.
    """
    kept: list[Notebook] = []
    if last.complete or last.selected != [notebook.name for notebook in selected]:
        return kept
    for notebook in selected:
        there = executed_path(notebook, out).exists() and results_path(out, notebook.name).exists()
        if not there or last.fingerprints.get(notebook.name) != prints[notebook.name]:
            break
        kept.append(notebook)
    return kept
