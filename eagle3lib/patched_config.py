"""A draft's config.json as one engine needs it: a new file beside the original, and the difference between the two.

The original is never written. A file of the new one's name is replaced only where it is an earlier copy: one that
differs from the original in nothing but the settings an engine's patch makes.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle3lib import ecosystems
from eagle3lib.boundaries import Boundary
from eagle3lib.ecosystems import Patch
from eagle3lib.errors import InputError
from eagle3lib.investigation import Investigation
from eagle3lib.results import write_text
from eagle3lib.tensors import read_json
from eagle3lib.verdict import engine_patches


@dataclass(frozen=True)
class PatchedConfig:
    """What was written for one engine.

    Attributes:
        path: the new file.
        diff: unified, of the original's name to the new file's; "" where the original is already as needed.
        stops: why the engine would not load the draft even with this config, such as a form that it does not know.
    """

    patch: Patch
    path: Path
    diff: str
    stops: tuple[str, ...] = ()


def patched_configs(
    investigation: Investigation, trained: Sequence[Boundary], folder: Path | None = None
) -> list[PatchedConfig]:
    """For each engine that reads its ids from config.json and can capture the boundaries, the file written.

    Args:
        trained: the boundaries that `fc` is to be fed, slot by slot.
        folder: where the files go; beside the originals by default.

    Raises:
        InputError: as `write_patched`, or if the case states a version that is none.
    """
    written = []
    for i, patch in enumerate(engine_patches(investigation, trained)):
        serves = i == 0 and investigation.engine is not None
        original = config_file(investigation, served=serves)
        if original is not None and patch.settings and not patch.argument:
            found = write_patched(original, patch, folder)
            written.append(replace(found, stops=_stops(investigation, found)))
    return written


def _stops(investigation: Investigation, found: PatchedConfig) -> tuple[str, ...]:
    config = read_json(found.path)
    draft = replace(investigation.checkpoint, raw_config=config, config=ecosystems.flat_config(config))
    return tuple(ecosystems.ENGINES[found.patch.engine].stops(draft))


def config_file(investigation: Investigation, *, served: bool) -> Path | None:
    """The config.json of the draft, or that which the engine was given; None for a draft in GGUF, which has none."""
    section, path = investigation.case.served, investigation.case.draft.path
    if served and section and section.config:
        return section.config
    beside = (path if path.is_dir() else path.parent) / "config.json"
    return beside if beside.is_file() else None


def write_patched(original: Path, patch: Patch, folder: Path | None = None) -> PatchedConfig:
    """Write `config.<engine>.json`, whole or not at all.

    Raises:
        InputError: if the original is no JSON object, the new name is the original's own or that of a file which is
            no earlier copy, or the folder cannot be written.
    """
    config = read_json(original)
    before = original.read_text(encoding="utf-8")
    after = with_settings(before, patch.settings)
    path = (folder or original.parent) / f"config.{patch.engine}.json"
    _expect_free(path, original, config, patch.settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, after)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); name another folder.") from None
    return PatchedConfig(patch, path, unified_diff(before, after, original.name, path.name))


def with_settings(text: str, settings: dict[str, Any]) -> str:
    """The text of a JSON object with key paths set, one level of sections deep; every other character stays.

    A value that is another is replaced where it stands; a key that is not there is put first in its section.
    """
    for path, value in settings.items():
        *sections, last = path.split(".")
        at = _WHITE.match(text, 0).end()
        for name in sections:
            entries = dict(_entries(text, at))
            if name not in entries or text[entries[name][0]] != "{":
                text = _put(text, at, name, {})
            at = dict(_entries(text, at))[name][0]
        text = _put(text, at, last, value)
    return text


_WHITE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def _entries(text: str, at: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The keys of the object that begins at `at`, and where their values begin and end."""
    at = _WHITE.match(text, at + 1).end()
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        begin = _WHITE.match(text, _WHITE.match(text, at).end() + 1).end()  # past the colon
        _, end = _DECODER.raw_decode(text, begin)
        yield key, (begin, end)
        at = _WHITE.match(text, end).end()
        if text[at] == ",":
            at = _WHITE.match(text, at + 1).end()


def _put(text: str, at: int, key: str, value: Any) -> str:
    """The text with one entry of the object at `at` replaced, or put first under the indentation of the others."""
    found = dict(_entries(text, at))
    if key in found:
        begin, end = found[key]
        same = json.loads(text[begin:end]) == value
        return text if same else text[:begin] + json.dumps(value) + text[end:]
    white = _WHITE.match(text, at + 1).group() if found else ""
    return text[: at + 1] + f"{white}{json.dumps(key)}: {json.dumps(value)}" + ("," if found else "") + text[at + 1 :]


def unified_diff(before: str, after: str, before_name: str, after_name: str) -> str:
    """The difference of two texts as `diff -u` prints it, so that `patch` applies it; "" where they are equal."""
    lines = difflib.unified_diff(_lines(before), _lines(after), before_name, after_name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines as `patch` counts them: by newlines alone."""
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _expect_free(path: Path, original: Path, config: dict[str, Any], settings: dict[str, Any]) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if path.resolve() == original.resolve():
        raise InputError(f"{path} is the original config itself, which is never written; name another folder.")
    try:
        ours = not path.is_symlink() and _without(read_json(path), settings) == _without(config, settings)
    except InputError:
        ours = False
    if not ours:
        raise InputError(
            f"Expected no file at {path}, or an earlier copy of {original.name} with other layer ids; found another"
            " file, which is kept. Move it, or name another folder."
        )


def _without(config: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """A config without the values at key paths, and without sections that held nothing else."""
    left = copy.deepcopy(config)
    for path in paths:
        outer, _, inner = path.partition(".")
        if inner and isinstance(left.get(outer), dict):
            left[outer].pop(inner, None)
        if not inner or not left.get(outer):
            left.pop(outer, None)
    return left
