"""Scores wirings of one draft at step 0: each slot's part of `fc` once a boundary, and only what a score needs.

`fc` is linear, so a candidate's fused state is a sum:

    g = Σ_s W_s h[b_s]                  no input norm, or one norm a slot (applied to h first)
    g = Σ_s W_s (w_s · h[b_s]) / rms    one norm over the concat: rms² = mean of the summed squares + eps

Keys and values are made for every pair up to the last that is scored; queries, mlp and head only where one is.
A candidate may be looked at on few positions first, and on all only when it survives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from eagle3lib import draft_head, forward, fusion
from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.errors import InputError
from eagle3lib.kept import Kept
from eagle3lib.norm import rms_norm
from eagle3lib.sample import Sample
from eagle3lib.scores import Ranking, Score, Slots, columns

#: Positions of the cheap looks and the share of candidates that each lets through: a glance, then a look.
RUNGS = ((12, 0.13), (64, 0.3))
#: A look takes every `STRIDE`-th start, since neighbours say much the same, and so many of one sample at most, since
#: an interval needs several.
STRIDE, PER_SAMPLE = 3, 22
#: How many candidates a ranking scores on all positions, at least.
SURVIVORS = 8
#: Bytes of slot contributions that are kept; the least recently used go first and are made again on demand.
KEPT_BYTES = 2**29
#: Pairs of several candidates that are passed at once, as far as a [P, H] block of them stays within so many bytes.
BATCH_PAIRS, BATCH_BYTES = 1024, 2**23
#: Bytes of one [P, H] block: longer lists of samples are scored pack by pack.
PACK_BYTES = 2**26

Part = tuple[Float[Tensor, "P H"], Float[Tensor, " P"]]


@dataclass(frozen=True, eq=False)
class Pack:
    """Some samples laid end to end, each cut behind the last pair that is scored.

    Attributes:
        samples: their places in the list.
        rows: of each, the pairs that are scored.
        next_ids: [P] x[i + 1] of every pair, or what stands there by the token shift.
        recorded: [R] x[i + 2] of the scored pairs.
    """

    samples: tuple[int, ...]
    rows: tuple[Int[Tensor, " r"], ...]
    next_ids: Int[Tensor, " P"]
    recorded: Int[Tensor, " R"]

    @property
    def lengths(self) -> list[int]:
        """Pairs of each sample."""
        return [int(own[-1]) + 1 for own in self.rows]


class Scorer:
    """Scores wirings of one draft on a fixed list of samples.

    Finished scores are kept as sums. Of the samples only token ids are held: states are read again when a
    contribution is made. Memory is `kept` bytes of contributions and a few [P, H] blocks of one pack.
    """

    def __init__(
        self, draft: Draft, samples: Iterable[Sample], flags: Wiring | None = None, kept: int = KEPT_BYTES
    ) -> None:
        """
        Args:
            samples: a list or a dump; it is walked again and again.
            flags: sets what every candidate shares besides its slots, None for the draft's own config.
            kept: bytes of slot contributions to keep.
        """
        self.draft = draft
        self.samples = samples
        self.flags = flags or Wiring(())
        self.config = draft.config.under(self.flags)
        fusion.expect_input_norms(draft, self.config)
        self._kept = Kept(kept)
        self._scores: dict[tuple[Slots, int | None], Score] = {}
        self._told = [(sample.token_ids, torch.tensor(sample.starts, dtype=torch.long)) for sample in samples]
        self._looks: dict[int | None, list[Pack]] = {}

    def score(self, slots: Slots, positions: int | None = None) -> Score:
        """The candidate's sums on every position, or for a cheap look on about so many of the first samples.

        Raises:
            InputError: if a sample lacks one of the boundaries, or the number of slots is not the draft's.
        """
        return self.scores([slots], positions)[0]

    def scores(self, candidates: Sequence[Slots], positions: int | None = None) -> list[Score]:
        """The same of several candidates, some laid end to end where a look is short, which keeps products large."""
        for slots in candidates:
            if len(slots) != self.config.n_slots:
                raise InputError(f"The draft's fc has {self.config.n_slots} slots, {len(slots)} boundaries were given.")
        if positions not in self._looks:
            self._looks[positions] = self._look(positions)
        new = [slots for slots in dict.fromkeys(candidates) if (slots, positions) not in self._scores]
        pairs = max((sum(pack.lengths) for pack in self._looks[positions]), default=1)
        some = max(min(BATCH_PAIRS, BATCH_BYTES // (4 * self.config.hidden_size)) // pairs, 1)
        for batch in (new[i : i + some] for i in range(0, len(new), some)):
            for score in self._evaluate(batch, positions):
                self._scores[score.slots, positions] = score
        return [self._scores[slots, positions] for slots in candidates]

    def halve(self, candidates: Sequence[Slots], survivors: int) -> list[Slots]:
        """The candidates that are worth scoring on all positions, best first by the last look that was needed.

        Every one on few positions, the best of them on more (successive halving, arXiv 1502.07943).
        """
        left = list(candidates)
        for positions, share in RUNGS:
            if len(left) > survivors:
                scores = sorted(self.scores(left, positions), key=lambda score: score.cross_entropy_value)
                left = [score.slots for score in scores[: max(survivors, round(share * len(left)))]]
        return left

    def rank(self, candidates: Sequence[Slots]) -> Ranking:
        """The candidates that survive the cheap looks, on every position, best first."""
        before = self.evaluations
        scores = [self.score(slots) for slots in self.halve(candidates, SURVIVORS)]
        scores.sort(key=lambda score: score.cross_entropy_value)
        return Ranking(tuple(scores), self.evaluations - before, len(candidates))

    @property
    def evaluations(self) -> int:
        """How many scores were made so far, cheap looks included."""
        return len(self._scores)

    @property
    def looked_at(self) -> set[Slots]:
        """The candidates that were scored so far, on however few positions."""
        return {slots for slots, _ in self._scores}

    @property
    def kept_bytes(self) -> int:
        """Bytes of the contributions that are held now."""
        return self._kept.bytes

    @torch.inference_mode()
    def _evaluate(self, candidates: Sequence[Slots], positions: int | None) -> list[Score]:
        packs, walk = self._looks[positions], enumerate(self.samples)
        n = len(self._told) if positions is None else 1 + max((i for p in packs for i in p.samples), default=-1)
        sums = np.zeros((len(candidates), n, 4))
        for place, pack in enumerate(packs):
            look = (positions, place)
            fused = (self._fused(parts) for parts in self._parts(candidates, look, pack, walk))
            g = torch.cat([self._lagged(g, pack.lengths) for g in fused])
            sums[:, list(pack.samples)] = self._pack_sums(pack, g, self._embedding(look, pack), len(candidates))
        return [Score(slots, own) for slots, own in zip(candidates, sums, strict=True)]

    def _look(self, positions: int | None) -> list[Pack]:
        """Every start in packs, or of the first samples every `STRIDE`-th until there are so many."""
        packs, pairs, left = [], 0, positions
        most = max(PACK_BYTES // (4 * self.config.hidden_size), 1)
        chosen: list[tuple[int, Tensor]] = []
        for i, (_, starts) in enumerate(self._told):
            own = starts if left is None else starts[::STRIDE][: min(left, PER_SAMPLE)]
            if len(own) == 0:
                continue
            length = int(own[-1]) + 1
            if chosen and pairs + length > most:
                packs, chosen, pairs = [*packs, self._pack(chosen)], [], 0
            chosen.append((i, own))
            pairs += length
            left = None if left is None else left - len(own)
            if left == 0:
                break
        return [*packs, self._pack(chosen)] if chosen else packs

    def _pack(self, chosen: Sequence[tuple[int, Tensor]]) -> Pack:
        ids = [self._told[i][0] for i, _ in chosen]
        begin = 0 if self.config.token_shift == -1 else 1  # as `fusion.paired` pairs them
        ends = [begin + 1 + int(rows[-1]) for _, rows in chosen]
        next_ids = torch.cat([own_ids[begin:end] for own_ids, end in zip(ids, ends, strict=True)])
        recorded = torch.cat([own_ids[rows + 2] for own_ids, (_, rows) in zip(ids, chosen, strict=True)])
        return Pack(tuple(i for i, _ in chosen), tuple(rows for _, rows in chosen), next_ids, recorded)

    def _embedding(self, look: tuple, pack: Pack) -> Float[Tensor, "P H"]:
        if (kept := self._kept.get((look, "embedding"))) is None:
            kept = (self.draft.embed(pack.next_ids),)
            self._kept.put((look, "embedding"), kept)
        return kept[0]

    def _pack_sums(self, pack: Pack, g: Float[Tensor, "n*P H"], embedding: Float[Tensor, "P H"], n: int) -> np.ndarray:
        """[n, samples, 4] of n candidates laid end to end."""
        draft, counts = self.draft, [len(own) for own in pack.rows]
        rows = [own.to(draft.device) for own in pack.rows]
        u, _ = forward.packed_first_step(draft, self.config, g, embedding.repeat(n, 1), pack.lengths * n, rows * n)
        recorded = pack.recorded.repeat(n)
        choices = draft_head.choose(draft, u, recorded.to(draft.device), self.config)
        found = columns(choices.logprob.cpu(), choices.predicted.cpu() == recorded)
        return np.stack([own.sum(0).numpy() for own in found.split(counts * n)]).reshape(n, len(counts), 4)

    def _fused(self, parts: Sequence[Part]) -> Float[Tensor, "P H"]:
        g = parts[0][0].clone()
        for fused, _ in parts[1:]:
            g += fused
        if self.config.input_norm == "concat":
            width = self.config.n_slots * self.config.target_hidden_size
            mean_square = torch.stack([square for _, square in parts]).sum(0) / width
            g *= torch.rsqrt(mean_square + self.config.norm_eps)[:, None].to(g.dtype)
        return g if self.draft.weights.fc_bias is None else g + self.draft.weights.fc_bias

    def _lagged(self, g: Float[Tensor, "P H"], lengths: Sequence[int]) -> Float[Tensor, "P H"]:
        """Each state one pair later where the token shift is 1, the first pair of a sample without one."""
        if self.config.token_shift != 1:
            return g
        lagged = (torch.cat([torch.zeros_like(own[:1]), own[:-1]]) for own in g.split(list(lengths)))
        return torch.cat(list(lagged))

    def _parts(
        self, candidates: Sequence[Slots], look: tuple, pack: Pack, walk: Iterator[tuple[int, Sample]]
    ) -> Iterator[list[Part]]:
        """Each slot's contribution, kept or made; `walk` is the evaluation's one pass over the samples."""
        samples = None
        for slots in candidates:
            parts = []
            for slot, boundary in enumerate(slots):
                if (part := self._kept.get((look, slot, boundary))) is None:
                    samples = samples or _these(walk, pack.samples)
                    part = self._contribution(slot, boundary, samples, pack.lengths)
                    self._kept.put((look, slot, boundary), part)
                parts.append(part)
            yield parts

    def _contribution(self, slot: int, boundary: Boundary, samples: Sequence[Sample], lengths: Sequence[int]) -> Part:
        """W_s h[b] of every pair, and the row sums of h²."""
        draft, width = self.draft, self.config.target_hidden_size
        h = torch.cat([fusion.slot_state(draft, s, boundary)[:n] for s, n in zip(samples, lengths, strict=True)])
        square = h.float().square().sum(-1)
        if self.config.input_norm == "slots":
            h = rms_norm(h, draft.weights.input_norms[slot], self.config.norm_eps)
        elif self.config.input_norm == "concat":
            h = h * draft.weights.input_norms[0][slot * width : (slot + 1) * width]
        if self.config.uses_fc:
            h = h @ draft.weights.fc[:, slot * width : (slot + 1) * width].T
        return h, square


def _these(walk: Iterator[tuple[int, Sample]], places: Sequence[int]) -> list[Sample]:
    """The samples at these places, ascending, the walk left right behind the last."""
    found = []
    for i, sample in walk:
        if i in places:
            found.append(sample)
        if i == places[-1]:
            return found
    raise ValueError("the samples of a scorer are walked again and again; give a list or a dump, not a generator")
