"""Layer ids as they stand in a draft's config.json: where they are found and how they are written there."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from eagle3lib.errors import InputError

TOP_LEVEL = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class LayerIds:
    """The ids one system reads from a draft's config.json.

    `ids` is None where the system falls back to its default. `spelling` is the key path they were found at, or
    says why there are none: "absent", "null", "empty list". `ignored` are key paths that hold a list this system
    does not use.
    """

    ids: tuple[int, ...] | None
    spelling: str
    ignored: tuple[str, ...] = ()


def default_trio(n_layers: int) -> tuple[int, int, int]:
    """The boundaries nearly every system falls back to, low to high."""
    return 2, n_layers // 2, n_layers - 3


def read_at(config: dict[str, Any], path: str) -> LayerIds:
    """The list at one key path; an empty list keeps `ids=()`, for systems that tell it from an absent one."""
    value: Any = config
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return LayerIds(None, "absent")
        value = value[key]
    if value is None:
        return LayerIds(None, "null")
    if not isinstance(value, list | tuple) or any(type(i) is not int for i in value):
        raise InputError(f"{path} in config.json must be a list of integers; found {value!r}.")
    return LayerIds(tuple(value), path) if value else LayerIds((), "empty list")


def first_listed(config: dict[str, Any], paths: tuple[str, ...]) -> LayerIds:
    """The first path that holds ids, for systems that test `if not layer_ids`."""
    found = [read_at(config, path) for path in paths]
    spellings = [f.spelling for f in found if f.spelling != "absent"] or ["absent"]
    chosen = next((f for f in found if f.ids), LayerIds(None, spellings[0]))
    return LayerIds(chosen.ids, chosen.spelling, unread(config, chosen.spelling))


def unread(config: dict[str, Any], used: str) -> tuple[str, ...]:
    """The usual key paths that hold ids beside the one that is used."""
    return tuple(path for path in (TOP_LEVEL, NESTED) if path != used and _holds_ids(config, path))


def _holds_ids(config: dict[str, Any], path: str) -> bool:
    try:
        return bool(read_at(config, path).ids)
    except InputError:  # what is no list of integers is no one's concern who does not read it
        return False


def not_ascending(ids: tuple[int, ...]) -> str | None:
    """One sentence why a trainer whose backends order states differently leaves a list's meaning open, or None."""
    if list(ids) == sorted(set(ids)):
        return None
    return "its Hugging Face backend keeps the list's order and its engines feed from low to high; list them ascending."


def config_lines(config: dict[str, Any], settings: dict[str, Any]) -> str:
    """The top-level entries of config.json that change, ready to paste over the present ones."""
    changed: dict[str, Any] = {}
    for path, value in settings.items():
        outer, _, inner = path.partition(".")
        changed[outer] = {**(config.get(outer) or {}), inner: value} if inner else value
    text = json.dumps(changed, indent=2)
    text = re.sub(r"\[[^][{}]*\]", lambda flat: json.dumps(json.loads(flat[0])), text)  # a list on one line
    return "\n".join(line.removeprefix("  ") for line in text.splitlines()[1:-1])
