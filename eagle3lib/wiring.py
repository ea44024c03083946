"""Which wiring fits the states: candidates scored at step 0 on common positions, and searched for.

A candidate's score is the cross-entropy of the recorded token over the draft vocabulary, on a fixed set of
positions whose recorded token lies in it, the same for all candidates; accuracy counts all positions, a token
outside the vocabulary being a miss. Differences are paired by sample; what an interval cannot separate from
the best is a tie.

`fc` is linear, so each slot's contribution is computed once a boundary, and a candidate's fused state is a sum:

    g = Σ_s W_s h[b_s]                  no input norm, or one norm a slot (applied to h first)
    g = Σ_s W_s (w_s · h[b_s]) / rms    one norm over the concat: rms² = mean of the summed squares + eps
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from eagle3lib import forward, fusion
from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.errors import InputError
from eagle3lib.norm import rms_norm
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample

#: The first, cheap look takes every `COARSE_STRIDE`-th position of the first samples, at least so many in all.
COARSE_STRIDE, COARSE_POSITIONS = 4, 100
#: Which share of the candidates survives the cheap look, and how many at least; how many in a search's move.
SURVIVORS, MIN_SURVIVORS, LEADERS = 0.08, 8, 2
#: How many wirings that tie at step 0 are put in order by later steps.
ORDERED_TIES = 4

Slots = tuple[Boundary, ...]


@dataclass(frozen=True, eq=False)
class Score:
    """One candidate's sums by sample: [n, 4] of cross-entropy, in-vocabulary positions, hits, positions."""

    slots: Slots
    sums: np.ndarray

    @property
    def cross_entropy_value(self) -> float:
        """Nats a token, over in-vocabulary positions, without the interval."""
        return float(self.sums[:, 0].sum() / max(self.sums[:, 1].sum(), 1))

    @property
    def cross_entropy(self) -> Estimate:
        """Nats a token, over in-vocabulary positions."""
        return estimate(self.sums, ratio(0, 1), self.sums[:, 1].sum())

    @property
    def accuracy(self) -> Estimate:
        """Share of all positions at which the draft's choice is the recorded token."""
        return estimate(self.sums, ratio(2, 3), self.sums[:, 3].sum())

    def excess(self, best: Score) -> Estimate:
        """Cross-entropy above another candidate's, in nats a token, paired by sample."""
        both = np.concatenate([self.sums, best.sums], axis=1)
        return estimate(both, lambda s: ratio(0, 1)(s) - ratio(4, 5)(s), self.sums[:, 1].sum())


@dataclass(frozen=True)
class Ranking:
    """Fully scored candidates, best first; `evaluated` counts the cheap looks too."""

    scores: tuple[Score, ...]
    evaluated: int
    candidates: int

    @property
    def best(self) -> Score:
        """The first."""
        return self.scores[0]

    @property
    def ties(self) -> tuple[Score, ...]:
        """The best, and every candidate whose excess over it includes zero."""
        return tuple(s for s in self.scores if s is self.best or not s.excess(self.best).excludes_zero)

    def to_json(self) -> dict:
        """What a results file keeps: the best, the ties, and how many were looked at."""
        ties = [list(score.slots) for score in self.ties]
        counts = {"candidates": self.candidates, "evaluated": self.evaluated}
        return {"best": list(self.best.slots), "ties": ties, **counts}


class Scorer:
    """Scores wirings of one draft on a fixed list of samples, laid end to end so that products are large.

    Contributions of slots and finished scores are kept between calls; memory is one [P, H] block for every
    slot and boundary met, P pairs in all.
    """

    def __init__(self, draft: Draft, samples: Iterable[Sample], flags: Wiring | None = None) -> None:
        """`flags` sets what every candidate shares besides its slots, None for the draft's own config."""
        self.draft = draft
        self.samples = list(samples)
        self.config = draft.config.under(flags) if flags else draft.config
        fusion.expect_input_norms(draft, self.config)
        self._contributions: dict[tuple[int, Boundary], tuple[Tensor, Tensor]] = {}
        self._scores: dict[tuple[Slots, bool], Score] = {}
        self._rows = [_scored_pairs(sample) for sample in self.samples]
        next_ids = [sample.token_ids[1 : sample.n_pairs + 1] for sample in self.samples]
        self._embedding = draft.embed(torch.cat(next_ids))
        reached = np.cumsum([len(own) for own in self._rows]) // COARSE_STRIDE
        self._first = min(int(np.searchsorted(reached, COARSE_POSITIONS)) + 1, len(self.samples))

    def score(self, slots: Slots, *, coarse: bool = False) -> Score:
        """The candidate's sums on every position, or for a cheap look on some positions of the first samples.

        Raises:
            InputError: if a sample lacks one of the boundaries, or the number of slots is not the draft's.
        """
        if len(slots) != self.config.n_slots:
            raise InputError(f"The draft's fc has {self.config.n_slots} slots, {len(slots)} boundaries were given.")
        if (slots, coarse) not in self._scores:
            self._scores[slots, coarse] = self._evaluate(slots, coarse)
        return self._scores[slots, coarse]

    def rank(self, candidates: Sequence[Slots]) -> Ranking:
        """Every candidate on few positions, the best of them on all (successive halving, arXiv 1502.07943)."""
        coarse = sorted((self.score(slots, coarse=True) for slots in candidates), key=_nats)
        survivors = coarse[: max(MIN_SURVIVORS, round(SURVIVORS * len(coarse)))]
        scores = sorted((self.score(s.slots) for s in survivors), key=_nats)
        return Ranking(tuple(scores), len(coarse) + len(survivors), len(candidates))

    @torch.inference_mode()
    def _evaluate(self, slots: Slots, coarse: bool) -> Score:
        draft = self.draft
        samples = self.samples[: self._first] if coarse else self.samples
        rows = [own[:: COARSE_STRIDE if coarse else 1] for own in self._rows[: len(samples)]]
        lengths = [sample.n_pairs for sample in samples]
        recorded = torch.cat([s.token_ids[own + 2] for s, own in zip(samples, rows, strict=True)])
        u, _ = forward.packed_first_step(
            draft,
            self.config,
            self._fused(slots)[: sum(lengths)],
            self._embedding[: sum(lengths)],
            lengths,
            [own.to(draft.device) for own in rows],
        )
        choices = forward.choose(draft, u, recorded.to(draft.device), self.config)
        logprob, hits = choices.logprob.cpu().double(), choices.predicted.cpu() == recorded
        known = logprob.isfinite()
        nats = torch.where(known, -logprob, 0.0)
        columns = torch.stack([nats, known.double(), hits.double(), torch.ones_like(nats)], dim=1)
        return Score(slots, np.stack([own.sum(0).numpy() for own in columns.split([len(own) for own in rows])]))

    def _fused(self, slots: Slots) -> Float[Tensor, "P H"]:
        parts = [self._contribution(slot, boundary) for slot, boundary in enumerate(slots)]
        g = torch.stack([fused for fused, _ in parts]).sum(0)
        if self.config.input_norm == "concat":
            width = self.config.n_slots * self.config.target_hidden_size
            mean_square = torch.stack([square for _, square in parts]).sum(0) / width
            g = g * torch.rsqrt(mean_square + self.config.norm_eps)[:, None].to(g.dtype)
        return g if self.draft.weights.fc_bias is None else g + self.draft.weights.fc_bias

    def _contribution(self, slot: int, boundary: Boundary) -> tuple[Float[Tensor, "P H"], Float[Tensor, " P"]]:
        """W_s h[b] of every pair, and the row sums of h²."""
        if (slot, boundary) not in self._contributions:
            draft, width = self.draft, self.config.target_hidden_size
            h = torch.cat([fusion.slot_state(draft, sample, boundary) for sample in self.samples])
            square = h.float().square().sum(-1)
            if self.config.input_norm == "slots":
                h = rms_norm(h, draft.weights.input_norms[slot], self.config.norm_eps)
            elif self.config.input_norm == "concat":
                h = h * draft.weights.input_norms[0][slot * width : (slot + 1) * width]
            if self.config.uses_fc:
                h = h @ draft.weights.fc[:, slot * width : (slot + 1) * width].T
            self._contributions[slot, boundary] = (h, square)
        return self._contributions[slot, boundary]


def _nats(score: Score) -> float:
    return score.cross_entropy_value


def _scored_pairs(sample: Sample) -> Int[Tensor, " R"]:
    pairs = [t for turn in sample.turns for t in turn.starts if t < sample.n_pairs]
    return torch.tensor(pairs, dtype=torch.long)


def every_wiring(boundaries: Sequence[Boundary], n_slots: int) -> list[Slots]:
    """Every boundary in every slot, repeats included."""
    return list(product(boundaries, repeat=n_slots))


def every_permutation(slots: Slots) -> list[Slots]:
    """The orders of a wiring's own boundaries, the given order first."""
    return list(permutations(slots))


def rank_fully(scorer: Scorer, candidates: Sequence[Slots]) -> Ranking:
    """Every candidate on every position, best first."""
    scores = sorted((scorer.score(slots) for slots in candidates), key=_nats)
    return Ranking(tuple(scores), len(scores), len(scores))


def order_ties(ranking: Ranking, draft: Draft, samples: Sequence[Sample], steps: int) -> Ranking:
    """The ranking with its ties, which step 0 cannot tell apart, in the order of all `steps` of the draft.

    Later steps are evidence too: neighbouring boundaries that tie at step 0 part further down the chain. Ties
    stay ties; the `ORDERED_TIES` best are replayed.
    """

    def chain_nats(score: Score) -> float:
        logprobs = torch.cat([rollout(draft, s, Wiring(score.slots), steps).logprob for s in samples])
        return float(-logprobs[logprobs.isfinite()].mean())

    ties = ranking.ties[:ORDERED_TIES]
    ordered = sorted(ties, key=chain_nats) if len(ties) > 1 else list(ties)
    return replace(ranking, scores=(*ordered, *(score for score in ranking.scores if score not in ties)))


def coordinate_search(scorer: Scorer, boundaries: Sequence[Boundary], starts: Sequence[Slots]) -> Ranking:
    """The best wiring among every boundary in every slot, without trying all of them.

    From each start, one slot at a time takes each boundary (successive halving within the slot), and any two
    slots are swapped, until nothing improves. Scores are kept, so a candidate is never evaluated twice.
    """
    evaluated: set[tuple[Slots, bool]] = set()

    def at(slots: Slots, coarse: bool = False) -> Score:
        evaluated.add((slots, coarse))
        return scorer.score(slots, coarse=coarse)

    def best_of(candidates: Sequence[Slots]) -> Score:
        leaders = sorted(candidates, key=lambda slots: _nats(at(slots, coarse=True)))[:LEADERS]
        return min((at(slots) for slots in leaders), key=_nats)

    for start in starts:
        current, improved = at(start), True
        while improved:
            improved = False
            for i in range(len(start)):
                candidates = [(*current.slots[:i], b, *current.slots[i + 1 :]) for b in boundaries]
                best = best_of(candidates)
                if _nats(best) < _nats(current):
                    current, improved = best, True
            best = best_of(every_permutation(current.slots))
            if _nats(best) < _nats(current):
                current, improved = best, True
    best = min((at(slots) for slots, coarse in tuple(evaluated) if not coarse), key=_nats)
    # A slot that is worth nothing ties with every boundary, so whatever the cheap look cannot tell from the
    # best is scored on all positions before ties are named.
    cheap = at(best.slots, coarse=True)
    for i, boundary in product(range(len(best.slots)), boundaries):
        near = (*best.slots[:i], boundary, *best.slots[i + 1 :])
        if not at(near, coarse=True).excess(cheap).excludes_zero:
            at(near)
    scores = sorted((at(slots) for slots, coarse in tuple(evaluated) if not coarse), key=_nats)
    return Ranking(tuple(scores), len(evaluated), len(boundaries) ** len(starts[0]))
