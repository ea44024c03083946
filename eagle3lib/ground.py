"""What hypotheses about a draft's pass are made of: the believed pass, and what there is to change it by."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.target import Target

Slots = tuple[Boundary, ...]
Option = tuple[str, str, dict | Draft]  # label, fix, and the flags that change or the changed draft


@dataclass(frozen=True)
class Ground:
    """What hypotheses are made of.

    Attributes:
        draft, wiring: the believed pass.
        boundaries: what every sample holds, in depth order.
        searched: the wiring that a search over the same boundaries put first.
        longest: pairs of the longest sample; a window beyond it changes nothing.
    """

    draft: Draft
    wiring: Wiring
    boundaries: Slots
    target: Target | None = None
    searched: Slots | None = None
    longest: int = 0
