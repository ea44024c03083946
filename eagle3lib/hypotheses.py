"""What may differ between how a draft was trained and how it is served: every family of changes, in one table.

A hypothesis is one change of a believed pass, either flags of its wiring or a changed draft. The same change
reads two ways. Where it makes the draft better on recorded tokens, training was done so; where it brings the
replay to a server's numbers, the engine does so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from eagle3lib import pass_families, slot_families
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.ground import Ground, Option

Scored = Literal["cross-entropy", "accuracy", "conditional"]


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One change of the believed pass.

    Attributes:
        label: the change in a few words, unlike any other's.
        fix: the config line or flag by which a system does it, or is kept from it.
        scored: by what the change shows, see `FAMILIES`.
        changed: that the draft itself is another, and not only its wiring.
    """

    family: str
    label: str
    fix: str
    wiring: Wiring
    draft: Draft = field(repr=False)
    scored: Scored = "cross-entropy"
    changed: bool = False


#: What a family shows by: cross-entropy at step 0 on common positions; accuracy over all positions where the
#: vocabulary, the head's weights or the shift is another; conditional rates of steps >= 1 where step 0 does not
#: see it.
FAMILIES: dict[str, tuple[Scored, Callable[[Ground], Iterator[Option]]]] = {
    "shifted ids": ("cross-entropy", slot_families.shifted_ids),
    "embedding slot": ("cross-entropy", slot_families.embedding_slot),
    "slot order": ("cross-entropy", slot_families.slot_order),
    "slot repeated": ("cross-entropy", slot_families.slot_repeated),
    "one slot": ("cross-entropy", slot_families.one_slot),
    "search": ("cross-entropy", slot_families.searched),
    "input norm": ("cross-entropy", pass_families.input_norm),
    "concat order": ("cross-entropy", pass_families.concat_order),
    "token shift": ("accuracy", pass_families.token_shift),
    "residual": ("cross-entropy", pass_families.residual),
    "residual source": ("cross-entropy", pass_families.residual_source),
    "feedback": ("conditional", pass_families.fed_back),
    "head norm": ("cross-entropy", pass_families.head_norm),
    "q/k norm": ("cross-entropy", pass_families.head_norms),
    "rope": ("cross-entropy", pass_families.rope),
    "positions": ("conditional", pass_families.positions),
    "window": ("cross-entropy", pass_families.window),
    "window origin": ("conditional", pass_families.window_origin),
    "embedding": ("cross-entropy", pass_families.embedding),
    "head": ("accuracy", pass_families.head),
    "vocabulary": ("accuracy", pass_families.vocabulary),
    "numerics": ("cross-entropy", pass_families.numerics),
}


def hypotheses(ground: Ground) -> list[Hypothesis]:
    """Every change of one family that changes anything, each once; families in order of `FAMILIES`."""
    believed = ground.draft.config.under(ground.wiring)
    seen, found = {(ground.wiring.slots, believed)}, []
    for name, (scored, generate) in FAMILIES.items():
        for label, fix, change in generate(ground):
            changed = isinstance(change, Draft)
            wiring = ground.wiring if changed else replace(ground.wiring, **change)
            draft = change if changed else ground.draft
            key = (wiring.slots, draft.config.under(wiring))
            if not (changed and draft.config is ground.draft.config):  # the same pass on other weights is another
                if key in seen:
                    continue
                seen.add(key)
            found.append(Hypothesis(name, label, fix, wiring, draft, scored, changed))
    return found
