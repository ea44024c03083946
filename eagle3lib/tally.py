"""Windows of one shape added up in bounded memory: exact sums, and every so-many-th window kept in order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from eagle3lib.ecosystems._logs import Shape, Window

#: Windows kept; where a log has more, every second, fourth, ... is.
KEPT = 8192
#: Engines of one log whose totals are told apart.
_SOURCES = 1024


@dataclass
class Tally:
    """What the windows of one shape add up to.

    Attributes:
        windows: how many there were.
        rounds, accepted, drafted: sums; `drafted` is over the windows that tell it, and `drafting` their rounds.
        survived: [K] sums over the windows that tell it, and `surviving` their rounds.
        everything: windows that accepted all that a round can have.
        lengths: printed lengths, two different ones at most.
        nodes: drafts that a round can have at most, by windows that say so.
        kept: windows in order, one of every `stride`.
        restarts: times that totals fell back.
    """

    shape: Shape
    windows: int = 0
    rounds: float = 0.0
    accepted: float = 0.0
    drafted: float = 0.0
    drafting: float = 0.0
    survived: list[float] = field(default_factory=list)
    surviving: float = 0.0
    everything: int = 0
    counted: bool = True
    half: float = 0.0
    lengths: set[float] = field(default_factory=set)
    nodes: Counter[int] = field(default_factory=Counter)
    kept: list[Window] = field(default_factory=list)
    stride: int = 1
    restarts: int = 0
    _totals: dict[str, Window] = field(default_factory=dict)

    def add(self, window: Window) -> None:
        """One more window, or the totals so far where the shape is over "totals"."""
        if self.shape.over != "totals":
            self._add(window)
            return
        before = self._totals.get(window.source)
        if len(self._totals) < _SOURCES or before is not None:
            self._totals[window.source] = window
        if before is None:
            self._add(window)
        elif window.rounds < before.rounds or window.accepted < before.accepted:
            self.restarts += 1
            self._add(window)
        else:
            self._add(window.since(before))

    def _add(self, window: Window) -> None:
        rounds, accepted, nodes, moved = window.rounds, window.accepted, window.nodes, window.survived
        if rounds <= 0:
            return
        if self.windows % self.stride == 0:
            self.kept.append(window._replace(survived=_falling(moved, rounds)) if moved else window)
            if len(self.kept) > KEPT:
                self.kept, self.stride = self.kept[::2], self.stride * 2
        self.windows += 1
        self.rounds += rounds
        self.accepted += accepted
        self.counted &= window.counted
        if window.half > self.half:
            self.half = window.half
        if window.drafted is not None:
            self.drafted += window.drafted
            self.drafting += rounds
        if moved:
            self.survived += [0.0] * (len(moved) - len(self.survived))
            self.survived = [s + m for s, m in zip(self.survived, (*moved, *[0.0] * len(self.survived)), strict=False)]
            self.surviving += rounds
        if nodes is not None:
            if len(self.nodes) < 64:
                self.nodes[nodes] += 1
            self.everything += accepted >= rounds * (nodes - window.half)
        if len(self.lengths) < 2:
            self.lengths.add(round(window.length, 4))


def _falling(counts: tuple[float, ...], rounds: float) -> tuple[float, ...]:
    """Counts that fall: differences of totals made from rounded rates may rise by a round."""
    falling = []
    for count in counts:
        rounds = min(rounds, max(count, 0.0))
        falling.append(rounds)
    return tuple(falling)
