"""Results files and the paths in them: what one notebook leaves for the next, and for the report.

No torch here: the command line reads results without waiting for it.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError

#: The folder that holds the package. Relative paths of a notebook's parameters start here, so that they mean
#: the same from JupyterLab, which works in notebooks/, and from the command line.
PROJECT_ROOT = Path(__file__).resolve().parent.parent


def resolve(path: str | Path) -> Path:
    """An absolute path; a relative one starts at the project root. `~` is the home folder."""
    return PROJECT_ROOT / Path(path).expanduser()


def relative_to_root(path: str | Path) -> str:
    """The path below the project root where it lies there, else in full: what a results file may say."""
    path = resolve(path)
    return path.relative_to(PROJECT_ROOT).as_posix() if path.is_relative_to(PROJECT_ROOT) else path.as_posix()


def file_name(words: str) -> str:
    """The words as a file's or folder's name."""
    return re.sub(r"[^\w.-]+", "-", words)


def results_path(out: str | Path, name: str) -> Path:
    """Where notebook `name` records its results under `out`."""
    return resolve(out) / "results" / f"{name}.json"


def load_results(out: str | Path, name: str) -> dict[str, Any] | None:
    """What notebook `name` recorded under `out`, or None if it has not run.

    Raises:
        InputError: if the file is there but is not a JSON object.
    """
    path = results_path(out, name)
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): delete it and run notebook {name} again.") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no JSON object: delete it and run notebook {name} again.")
    return data


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write with sorted keys, and whole or not at all: a reader never finds half a file.

    Raises:
        TypeError: if the data holds something that JSON cannot.
    """
    text = json.dumps(plain(data), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Write whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def plain(value: Any) -> Any:
    """The value as JSON can hold it: scalars of numpy and torch become Python's, non-finite numbers null.

    Raises:
        TypeError: for anything that has no such form.
    """
    if hasattr(value, "tolist"):  # tensors, arrays, and numpy's scalars
        return plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str(value)  # a StrEnum becomes its text
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, int):
        return value
    raise TypeError(f"a results file cannot hold a {type(value).__name__}: {value!r}")
