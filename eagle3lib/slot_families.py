"""Hypotheses about the slots: which boundary feeds which. Each generator gives one family's changes.

A changed wiring that equals the believed one, or one already given, is left out by `hypotheses`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from eagle3lib.boundaries import FINAL_NORMED, boundary_name
from eagle3lib.ground import Ground, Option, Slots

#: With more captured boundaries than this a slot tries its neighbours only; the search has tried the others.
FEW_BOUNDARIES, NEIGHBOURS = 8, 2


def shifted_ids(ground: Ground) -> Iterator[Option]:
    """All ids one or two blocks deeper or shallower, where every one of those was captured."""
    for by in (-2, -1, 1, 2):
        slots = tuple(b if b == FINAL_NORMED else b + by for b in ground.wiring.slots)
        if set(slots) <= set(ground.boundaries):
            yield f"all ids shifted by {by:+d}, {_named(slots)}", _ids(slots), _slots(slots)


def embedding_slot(ground: Ground) -> Iterator[Option]:
    """B(0) in front and the last slot dropped, or B(0) dropped and one deeper boundary behind."""
    slots, first = ground.wiring.slots, ground.boundaries[:1]
    if first == (0,) and slots[0] != 0:
        moved = (0, *slots[:-1])
        yield f"B(0) in front, {_named(moved)}", _ids(moved), _slots(moved)
    if slots[0] == 0:
        deepest = ground.boundaries.index(slots[-1]) if slots[-1] in ground.boundaries else len(ground.boundaries)
        for deeper in ground.boundaries[deepest + 1 :][: NEIGHBOURS + 1]:
            moved = (*slots[1:], deeper)
            yield f"without B(0), {_named(moved)}", _ids(moved), _slots(moved)


def slot_order(ground: Ground) -> Iterator[Option]:
    """The same boundaries in another order."""
    for slots in permutations(ground.wiring.slots):
        yield f"in the order {_named(slots)}", _ids(slots), _slots(slots)


def slot_repeated(ground: Ground) -> Iterator[Option]:
    """One slot fed what another slot is fed."""
    slots = ground.wiring.slots
    for i, own in enumerate(slots):
        for other in dict.fromkeys(slots):
            if other != own:
                repeated = (*slots[:i], other, *slots[i + 1 :])
                yield f"{boundary_name(other)} repeated, {_named(repeated)}", _ids(repeated), _slots(repeated)


def one_slot(ground: Ground) -> Iterator[Option]:
    """One slot fed another captured boundary."""
    slots, stored = ground.wiring.slots, ground.boundaries
    for i, own in enumerate(slots):
        near = stored
        if len(stored) > FEW_BOUNDARIES:
            near = [b for b in stored if FINAL_NORMED not in (b, own) and abs(b - own) <= NEIGHBOURS]
        for b in near:
            other = (*slots[:i], b, *slots[i + 1 :])
            yield f"{boundary_name(b)} in slot {i + 1}, {_named(other)}", _ids(other), _slots(other)


def searched(ground: Ground) -> Iterator[Option]:
    """What the search over every boundary in every slot put first."""
    if ground.searched:
        yield f"the slots {_named(ground.searched)}", _ids(ground.searched), _slots(ground.searched)


def _slots(slots: Slots) -> dict:
    return {"slots": slots}


def _named(slots: Slots) -> str:
    return f"[{', '.join(map(boundary_name, slots))}]"


def _ids(slots: Slots) -> str:
    return f"the layer ids that mean {_named(slots)}; the table of ids gives their spelling in each system"
