"""Which of a case's dumps to search for the training wiring, and the two searches: exhaustive, and without hints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.case import DumpSection
from eagle3lib.investigation import Investigation
from eagle3lib.sample import Sample, first_samples
from eagle3lib.scorer import Scorer
from eagle3lib.scores import Ranking, Slots
from eagle3lib.wiring import coordinate_search, every_wiring, order_ties

#: Up to this many candidates every one is tried.
EXHAUSTIVE = 1000
#: Draft steps by which wirings that tie at step 0 are put in order.
TIE_STEPS = 4


@dataclass(frozen=True)
class Search:
    """A finished search: its ranking, the scorer that made it, and the dump and boundaries it ran on."""

    ranking: Ranking
    scorer: Scorer
    dump: str
    boundaries: tuple[Boundary, ...]

    @property
    def best(self) -> Wiring:
        """What fits best."""
        return self.wiring(self.ranking.best.slots)

    def wiring(self, slots: Slots) -> Wiring:
        """The slots with the flags under which they were scored."""
        return replace(self.scorer.flags, slots=slots)

    def contradicts(self, slots: Slots) -> bool:
        """Whether another wiring fits better beyond doubt; never one that the dump could not try."""
        tied = any(score.slots == slots for score in self.ranking.ties)
        return set(slots) <= set(self.boundaries) and not tied


def training_wiring(implied: Wiring | None, judged: Search | None) -> Wiring | None:
    """What fed `fc` in training, to go on with: what the files imply unless the states contradict it, else what fits
    the states best; None where neither says."""
    if judged is None or (implied and not judged.contradicts(implied.slots)):
        return implied
    return judged.best


def roles(inv: Investigation) -> dict[Slots, str]:
    """What the wirings known from the files are called; a wiring that is both is the trained one."""
    known = {"served": inv.served, "trained": inv.trained}
    return {derived.wiring.slots: name for name, derived in known.items() if derived}


def exhaustive(inv: Investigation, most: int | None = None) -> Search | None:
    """Every boundary in every slot, on the greedy dump with most boundaries that still allows that.

    Dumps that hold the trained and served boundaries come first. The known wirings are scored on every
    position even where the cheap look would have dropped them.

    Args:
        most: response tokens of the first samples that are read, about; None for all.
    """
    small = [section for section in inv.sections() if _candidates(inv, section) <= EXHAUSTIVE]
    known = {boundary for slots in roles(inv) for boundary in slots}
    fitting = [section for section in small if known <= set(inv.stored_boundaries(section))]
    section = max(fitting or small, key=lambda s: _candidates(inv, s), default=None)
    if section is None:
        return None
    boundaries = inv.stored_boundaries(section)
    scorer = Scorer(inv.draft, _opened(inv, section, most), inv.training_flags)
    ranking = scorer.rank(every_wiring(boundaries, inv.draft.config.n_slots))
    ranked = {score.slots for score in ranking.scores}
    extra = [scorer.score(slots) for slots in roles(inv) if set(slots) <= set(boundaries) and slots not in ranked]
    scores = sorted((*ranking.scores, *extra), key=lambda score: score.cross_entropy_value)
    ranking = order_ties(replace(ranking, scores=tuple(scores)), inv.draft, scorer.samples, TIE_STEPS, scorer.flags)
    return Search(ranking, scorer, section.name, boundaries)


def without_hints(inv: Investigation, most: int | None = None) -> Search | None:
    """Coordinate search on the greedy dump with most boundaries, where there are too many wirings to try all.

    It starts from the engines' common default, B(2), B(n/2), B(n-3), from the served wiring, and from boundaries
    spread evenly from the first to the last. Wirings that tie at step 0 are put in the order of their first
    `TIE_STEPS` steps.

    Args:
        most: as `exhaustive` has it.
    """
    section = max(inv.sections(), key=lambda s: _candidates(inv, s), default=None)
    if section is None or _candidates(inv, section) <= EXHAUSTIVE:
        return None
    boundaries, n_slots = inv.stored_boundaries(section), inv.draft.config.n_slots
    starts = [inv.served.wiring.slots] if inv.served else []
    if inv.shape:
        starts.insert(0, (2, inv.shape.n_layers // 2, inv.shape.n_layers - 3))
    starts = [slots for slots in starts if len(slots) == n_slots and set(slots) <= set(boundaries)]
    starts = list(dict.fromkeys([*starts, spread_evenly(boundaries, n_slots)]))
    scorer = Scorer(inv.draft, _opened(inv, section, most), inv.training_flags)
    ranking = coordinate_search(scorer, boundaries, starts)
    ranking = order_ties(ranking, inv.draft, scorer.samples, TIE_STEPS, scorer.flags)
    return Search(ranking, scorer, section.name, boundaries)


class Searches:
    """Both searches of a case, each made when it is first asked for, and the training wiring that follows.

    Args:
        most: as `exhaustive` has it.
    """

    def __init__(self, inv: Investigation, most: int | None = None) -> None:
        self.inv, self.most = inv, most

    @cached_property
    def small(self) -> Search | None:
        """Every boundary in every slot, as `exhaustive`."""
        return exhaustive(self.inv, self.most)

    @cached_property
    def deep(self) -> Search | None:
        """The search `without_hints`."""
        return without_hints(self.inv, self.most)

    @property
    def judged(self) -> Search | None:
        """The one that had most boundaries to choose from."""
        return self.deep or self.small

    @property
    def fed(self) -> Wiring | None:
        """The wiring to go on with, as `training_wiring`."""
        return training_wiring(self.inv.trained.wiring if self.inv.trained else None, self.judged)


def spread_evenly(boundaries: Sequence[Boundary], n_slots: int) -> Slots:
    """So many of the stored boundaries, from the first to the last at even distances; the last alone for one slot."""
    if n_slots == 1:
        return (boundaries[-1],)
    return tuple(boundaries[i * (len(boundaries) - 1) // (n_slots - 1)] for i in range(n_slots))


def _opened(inv: Investigation, section: DumpSection, most: int | None) -> Iterable[Sample]:
    """The dump, or its first samples that hold about so many response tokens."""
    dump = inv.open(section)
    return dump if most is None else first_samples(dump, most)


def _candidates(inv: Investigation, section: DumpSection) -> int:
    return len(inv.stored_boundaries(section)) ** inv.draft.config.n_slots
