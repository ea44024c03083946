"""What a checkpoint form is: how a system names a draft's tensors, and how it writes config.json.

Every form is translated to one set of names, speculators' without a prefix: `fc.weight`, `input_norm.weight`,
`fc_norm.{i}.weight`, `layers.{i}.self_attn.q_proj.weight`, `norm.weight`, `lm_head.weight`,
`embed_tokens.weight`, `d2t`, `t2d`. Renames of all forms are tried on every file, since files mix them; which
form a file is of is told by the evidence, and only named.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3lib.ecosystems._base import Trainer

#: Written before every name by one system or another; taken off, repeatedly.
PREFIXES = ("draft_model.", "eagle_module.", "model.")
#: Prefixes under which a draft lies in a file that holds the target's tensors too.
ENCLOSING = ("draft_model.", "eagle_module.")


@dataclass(frozen=True)
class Seen:
    """What a form is recognised by: the file's names without prefix, the prefix, config.json and the files."""

    names: Collection[str]
    prefix: str
    config: dict[str, Any]
    files: tuple[Path, ...] = field(default=())

    def begins(self, start: str) -> bool:
        """Whether any tensor's name begins so."""
        return any(name.startswith(start) for name in self.names)

    @property
    def eagle_config(self) -> dict[str, Any]:
        """The nested section, {} where there is none."""
        found = self.config.get("eagle_config")
        return found if isinstance(found, dict) else {}


class Form:
    """One way of writing a draft. Subclasses give names, and override what they need."""

    name: str
    label: str
    #: Regular expressions on names without prefix, and what they become.
    renames: tuple[tuple[str, str], ...] = ()
    #: Who writes this form, and so whose rule reads the layer ids in its config.json; None where several do.
    trainer: Trainer | None = None
    #: Whether the form's ids are never of another's rule: many tools write the flat forms, and mix two customs.
    certain = False

    def evidence(self, seen: Seen) -> list[str]:
        """What in the file speaks for this form; the form with most is named."""
        return []

    def flat_config(self, config: dict[str, Any]) -> dict[str, Any] | None:
        """config.json at one level, or None where it is not in a form of this system's own."""
        return None
