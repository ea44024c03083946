"""A case with one wiring stated, as the text of a case.toml that the batch run takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from eagle3lib.boundaries import Wiring
from eagle3lib.case import Case


def with_wiring(case: Case, wiring: Wiring) -> Case:
    """The case served with this wiring and its flags, or without a `[served]` section trained with them."""
    stated = asdict(wiring)
    boundaries = stated.pop("slots")
    flags = {name: value for name, value in stated.items() if value is not None}
    section = "served" if case.served else "training"
    data = case.model_dump(exclude_unset=True)
    data[section] = data.get(section, {}) | {"boundaries": boundaries, "flags": flags}
    return Case(**data, path=case.path)


def case_text(case: Case, folder: Path | None = None) -> str:
    """The case in TOML.

    Args:
        folder: where the file will lie; paths inside it are written relative to it, all others whole.
    """
    data = case.model_dump(exclude_unset=True)
    tables = {name: value for name, value in data.items() if isinstance(value, dict)}
    lines = [f"{name} = {toml_value(value, folder)}" for name, value in data.items() if isinstance(value, str)]
    for name, table in tables.items():
        lines += _table(f"[{name}]", table, folder)
    for name in ("dumps", "drafts"):
        for table in data.get(name, ()):
            lines += _table(f"[[{name}]]", table, folder)
    return "\n".join(lines) + "\n"


def write_case(case: Case, wiring: Wiring, file: Path) -> Path:
    """Write the case with this wiring to `file`, over what was written there before.

    Raises:
        ValueError: if the file is the case's own.
    """
    if file.resolve() == case.path:
        raise ValueError(f"{file} is the case itself; write beside it")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(case_text(with_wiring(case, wiring), file.parent.resolve()), encoding="utf-8")
    return file


def _table(header: str, table: dict, folder: Path | None) -> list[str]:
    values = {name: value for name, value in table.items() if value is not None and value != {}}
    return ["", header, *(f"{name} = {toml_value(value, folder)}" for name, value in values.items())]


def toml_value(value: object, folder: Path | None) -> str:
    """TOML of a value: JSON's strings and numbers are TOML's too."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml_value(own, folder)}" for name, own in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(own, folder) for own in value)}]"
    if isinstance(value, Path):
        inside = folder is not None and value.is_relative_to(folder)
        value = (value.relative_to(folder) if inside else value).as_posix()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
