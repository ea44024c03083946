"""Which wiring fits the states: candidates, and the search for the best among every boundary in every slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations, product

import torch

from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample
from eagle3lib.scorer import RUNGS, Scorer
from eagle3lib.scores import Ranking, Score, Slots

#: How many wirings that tie at step 0 are put in order by later steps.
ORDERED_TIES = 4
#: Of a move's candidates so many at least reach the last cheap look, by which moves are judged.
LEADERS = 4
#: Positions of the two looks, and by how many nats a token a glance must put a wiring behind to tell it apart.
(GLANCE, _), (LOOK, _) = RUNGS
CLEAR = 0.5


def every_wiring(boundaries: Sequence[Boundary], n_slots: int) -> list[Slots]:
    """Every boundary in every slot, repeats included."""
    return list(product(boundaries, repeat=n_slots))


def every_permutation(slots: Slots) -> list[Slots]:
    """The orders of a wiring's own boundaries, the given order first."""
    return list(permutations(slots))


def rank_fully(scorer: Scorer, candidates: Sequence[Slots]) -> Ranking:
    """Every candidate on every position, best first."""
    scores = sorted(scorer.scores(candidates), key=_nats)
    return Ranking(tuple(scores), len(scores), len(scores))


def order_ties(
    ranking: Ranking, draft: Draft, samples: Iterable[Sample], steps: int, flags: Wiring | None = None
) -> Ranking:
    """The ranking with its ties, which step 0 cannot tell apart, in the order of all `steps` of the draft.

    Later steps are evidence too: neighbouring boundaries that tie at step 0 part further down the chain. Ties
    stay ties; the `ORDERED_TIES` best are replayed.
    """

    def chain_nats(score: Score) -> float:
        wiring = replace(flags or Wiring(()), slots=score.slots)
        logprobs = torch.cat([rollout(draft, s, wiring, steps).logprob for s in samples])
        return float(-logprobs[logprobs.isfinite()].mean())

    ties = ranking.ties[:ORDERED_TIES]
    ordered = sorted(ties, key=chain_nats) if len(ties) > 1 else list(ties)
    return replace(ranking, scores=(*ordered, *(score for score in ranking.scores if score not in ties)))


def coordinate_search(scorer: Scorer, boundaries: Sequence[Boundary], starts: Sequence[Slots]) -> Ranking:
    """The best wiring among every boundary in every slot, without trying all of them.

    From each start, one slot at a time takes each boundary, and any slots change places, until nothing improves;
    moves are judged by a cheap look. Where the descents ended, whatever that look cannot tell from the best is
    scored on all positions, and while one of these is better, the search goes on from there.
    """
    before = scorer.evaluations
    ends = [_descend(scorer, boundaries, start) for start in starts]
    full = {slots: scorer.score(slots) for slots in dict.fromkeys(ends)}
    best = None
    while best is not (found := min(full.values(), key=_nats)):
        best = found
        full |= {score.slots: score for score in scorer.scores(_may_tie(scorer, best.slots, boundaries))}
    scores = sorted(full.values(), key=_nats)
    return Ranking(tuple(scores), scorer.evaluations - before, len(boundaries) ** len(starts[0]))


def _descend(scorer: Scorer, boundaries: Sequence[Boundary], start: Slots) -> Slots:
    """Where single changes and new orders lead, by the last cheap look."""

    def nats(slots: Slots) -> float:
        return _nats(scorer.score(slots, LOOK))

    current, improved = start, True
    while improved:
        before = current
        for i in range(len(start)):
            moves = scorer.halve(_changes(current, i, boundaries), LEADERS)
            current = min([current, *moves], key=nats)
        current = min(every_permutation(current), key=nats)
        improved = nats(current) < nats(before)
    return current


def _changes(slots: Slots, i: int, boundaries: Sequence[Boundary]) -> list[Slots]:
    """The wiring with each boundary in slot i."""
    return [(*slots[:i], boundary, *slots[i + 1 :]) for boundary in boundaries]


def _neighbours(slots: Slots, boundaries: Sequence[Boundary]) -> list[Slots]:
    changes = [near for i in range(len(slots)) for near in _changes(slots, i, boundaries)]
    return list(dict.fromkeys([*changes, *every_permutation(slots)]))


def _may_tie(scorer: Scorer, best: Slots, boundaries: Sequence[Boundary]) -> list[Slots]:
    """The neighbours that no cheap look tells from the best. A slot that is worth nothing ties with every boundary."""
    glance, look = scorer.score(best, GLANCE), scorer.score(best, LOOK)
    glances = scorer.scores(_neighbours(best, boundaries), GLANCE)
    looks = scorer.scores([score.slots for score in glances if _nats(score) < _nats(glance) + CLEAR], LOOK)
    return [score.slots for score in looks if score.excess(look).low <= 0]


def _nats(score: Score) -> float:
    return score.cross_entropy_value
