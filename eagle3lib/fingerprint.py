"""What a notebook's results depend on, as one word: equal words mean that running it again would change nothing."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from eagle3lib.case import Case
from eagle3lib.notebooks import Notebook
from eagle3lib.results import resolve

PACKAGE = Path(__file__).parent


def inputs_digest(case: Case) -> str:
    """A digest of what every notebook of a run reads.

    The case file's own bytes, size and time of every file that it names or that lies in a folder that it names
    (dumps are terabytes, so none is read), this package's sources, and the versions of Python and torch.
    """
    digest = hashlib.sha256(case.path.read_bytes())
    for path in sorted({*_paths(case.model_dump())}):
        _add_stats(digest, path)
    for source in sorted(PACKAGE.rglob("*.py")):
        digest.update(source.relative_to(PACKAGE).as_posix().encode() + source.read_bytes())
    digest.update(f"{platform.python_version()} {metadata.version('torch')}".encode())
    return digest.hexdigest()


def fingerprint(notebook: Notebook, parameters: dict[str, Any], inputs: str) -> str:
    """A digest of a notebook, its parameters, the files that they name, and the `inputs_digest` of the run."""
    digest = hashlib.sha256(inputs.encode() + notebook.path.read_bytes())
    digest.update(json.dumps(parameters, sort_keys=True, default=str).encode())
    for name, value in sorted(parameters.items()):
        if name != "out" and isinstance(value, str) and value and (path := resolve(value)).exists():
            _add_stats(digest, path)
    return digest.hexdigest()


def _paths(value: Any) -> Iterator[Path]:
    """Every path in a case's fields, however deep."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _paths(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths(item)


def _add_stats(digest: hashlib._Hash, path: Path) -> None:
    """Add name, size and time of a file, or of every file below a folder; links are followed."""
    files = [path]
    if path.is_dir():
        files = [Path(folder) / name for folder, _, names in os.walk(path, followlinks=True) for name in names]
    for file in sorted(files):
        try:
            stat = file.stat()
        except FileNotFoundError:  # a link that leads nowhere: its name is all there is
            digest.update(f"{file}\n".encode())
        else:
            digest.update(f"{file} {stat.st_size} {stat.st_mtime_ns}\n".encode())
