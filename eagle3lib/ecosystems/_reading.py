"""What an engine does with a draft besides its layer ids: flags it ignores, tensors it drops, what it puts instead.

Nothing of this is an error in the engine: the server starts, and only the acceptance is lower.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Header(Protocol):
    """As much of a checkpoint as a rule may ask for; see `dialects.Checkpoint`."""

    tensors: Mapping[str, Any]
    config: dict[str, Any]
    raw_config: dict[str, Any]


@dataclass(frozen=True)
class Said:
    """One thing an engine does, about a flag (its key) or a tensor (its canonical name)."""

    about: str
    sentence: str


@dataclass(frozen=True)
class Rules:
    """An engine's treatment of drafts, as data.

    Attributes:
        ignores: flag → (what the engine serves whatever the flag says, why).
        drops: regular expression on canonical names → why such a tensor of the file is not used.
        drops_stored: the same on names as the file spells them, where the spelling decides.
        replaces: regular expression on canonical names → what stands there where the file has none; the first
            that matches counts.
        assumes: flag → what the engine takes for it where config.json says nothing and others take another value.
    """

    ignores: Mapping[str, tuple[Any, str]]
    drops: Sequence[tuple[str, str]]
    replaces: Sequence[tuple[str, str]]
    assumes: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    drops_stored: Sequence[tuple[str, str]] = ()

    def ignored(self, draft: Header) -> list[Said]:
        """Flags whose value in the file is not what is served."""
        found = []
        for flag, (served, why) in self.ignores.items():
            value = draft.config.get(flag)
            if value is not None and value != served:
                found.append(Said(flag, f"{flag} = {short(value)} is ignored, {short(served)} is served: {why}"))
        for flag, (taken, why) in self.assumes.items():
            if draft.config.get(flag) is None:
                found.append(Said(flag, f"{flag} is not in config.json and {short(taken)} is served: {why}"))
        return found

    def dropped(self, draft: Header) -> list[Said]:
        """Tensors of the file that the engine does not use, once each."""
        found: dict[str, Said] = {}
        for name, info in draft.tensors.items():
            why = next((why for pattern, why in self.drops if re.fullmatch(pattern, name)), None)
            why = why or next((why for pattern, why in self.drops_stored if re.search(pattern, info.name)), None)
            if why:
                found[name] = Said(name, f"{info.name} is not used: {why}")
        return list(found.values())

    def replacement(self, name: str) -> str | None:
        """What stands in for a tensor that the file lacks."""
        return next((what for pattern, what in self.replaces if re.fullmatch(pattern, name)), None)


def short(value: Any) -> str:
    """A value of config.json as a ledger shows it: JSON's words, cut where long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def is_latent(draft: Header) -> bool:
    """Whether the draft has multi-head latent attention, for which engines have another class."""
    return "layers.0.self_attn.kv_a_proj_with_mqa.weight" in draft.tensors


def n_layers(draft: Header) -> int:
    """How many layers the tensors are of."""
    return 1 + max((int(m[1]) for n in draft.tensors if (m := re.match(r"layers\.(\d+)\.", n))), default=0)


def n_slots(draft: Header) -> int | None:
    """How many states `fc` takes, None where it has none or the width is no multiple."""
    fc = draft.tensors.get("fc.weight")
    if fc is None:
        return None
    width = draft.config.get("target_hidden_size") or fc.shape[0]
    return fc.shape[1] // width if fc.shape[1] % width == 0 else None
