"""States that the target itself proves: the embedding output, and the state after the last block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.readings import spaced
from eagle3lib.sample import Sample
from eagle3lib.target import Target

#: Rows of one sample whose embedding rows are held in float32 at a time.
ROW_CHUNK = 2048
#: Cosine above which a row is a token's embedding row, scaled or not: storage in 8 bits leaves more than 0.9999.
SAME_DIRECTION = 0.99
#: Generated tokens on which a state is tried as the last one, so many a sample at most.
LAST_ROWS, LAST_ROWS_PER_SAMPLE = 64, 16
#: Ids that the recorded token must beat before the whole head is read, and how often it must.
CONTRAST_IDS, CONTRAST_RATE = 1024, 0.97


@dataclass(frozen=True)
class EmbeddingMatch:
    """A state h against the embedding rows e of its tokens, over all rows.

        relative_difference = ‖h - e‖ / ‖e‖        scale = h·e / ‖e‖²        scaled_difference = ‖h - scale e‖ / ‖h‖

    Attributes:
        rows: how many were compared; with none, and with states of zeros only, the numbers are NaN.
    """

    boundary: Boundary
    relative_difference: float
    scale: float
    scaled_difference: float
    rows: int


def embedding_matches(
    target: Target, samples: Iterable[Sample], boundaries: Sequence[Boundary]
) -> list[EmbeddingMatch]:
    """Each boundary's states against the embedding rows of their tokens, in one pass.

    Raises:
        InputError: if a token is outside the target's vocabulary or a sample lacks a boundary.
    """
    sums = {boundary: torch.zeros(3, dtype=torch.float64) for boundary in boundaries}  # h·h, h·e, e·e
    rows = dict.fromkeys(boundaries, 0)
    for sample in samples:
        for begin in range(0, len(sample.token_ids), ROW_CHUNK):
            table = target.embed(sample.token_ids[begin : begin + ROW_CHUNK]).double()
            for boundary in boundaries:
                state = sample.state(boundary)[begin : begin + ROW_CHUNK].double()
                e = table[: len(state)]
                sums[boundary] += torch.stack([(state * state).sum(), (state * e).sum(), (e * e).sum()])
                rows[boundary] += len(state)
    found = []
    for boundary in boundaries:
        hh, he, ee = sums[boundary].tolist()
        scale = he / ee if ee else float("nan")
        found.append(
            EmbeddingMatch(
                boundary,
                relative_difference=_root(hh - 2 * he + ee, ee),
                scale=scale,
                scaled_difference=_root(hh - 2 * scale * he + scale * scale * ee, hh),
                rows=rows[boundary],
            )
        )
    return found


def _root(difference: float, whole: float) -> float:
    """Relative size of a difference of sums; one that rounding made negative is none."""
    return (max(difference, 0.0) / whole) ** 0.5 if whole > 0 and difference == difference else float("nan")


def first_token(target: Target, sample: Sample) -> int | None:
    """The token that row 0 of B(0) belongs to in a sample with too few rows, None where the embedding fits nowhere.

    Tried are the places where an engine leaves rows out: at the end, and at the beginning with or without a row for
    the last token.
    """
    state = sample.state(0)
    missing = len(sample.token_ids) - len(state)
    for first in dict.fromkeys((0, max(missing - 1, 0), missing)):
        if is_embedding(target, state, sample.token_ids[first : first + len(state)]):
            return first
    return None


def is_embedding(target: Target, state: Float[Tensor, "R H"], token_ids: Int[Tensor, " L"]) -> bool:
    """Whether a state's first rows are these tokens' embedding rows, scaled or not.

    Raises:
        InputError: if a token is outside the target's vocabulary.
    """
    e = target.embed(token_ids[: min(len(state), ROW_CHUNK)])
    return len(e) > 0 and bool(torch.cosine_similarity(state[: len(e)].float(), e, dim=-1).median() > SAME_DIRECTION)


@dataclass(frozen=True)
class LastMatch:
    """How often a state gives the recorded token as the head's first choice.

    Attributes:
        normed: whether the head was applied to the state as it is (it is normed already) or to its norm.
    """

    boundary: Boundary
    normed: bool
    rate: float
    rows: int


def last_matches(target: Target, samples: Iterable[Sample], boundaries: Sequence[Boundary]) -> list[LastMatch]:
    """Which of the boundaries could be B(n) or its norm, those stated as such left out, on some greedy tokens.

    A state of which the recorded token does not even beat `CONTRAST_IDS` ids of the vocabulary is not held against
    the whole head, so that a dump of every boundary costs little more than one of three.
    """
    boundaries = [b for b in boundaries if b not in (target.n_layers, FINAL_NORMED)]
    states, next_ids = _generated_rows(samples, boundaries)
    if not len(next_ids):
        return []
    spread = torch.linspace(0, target.vocab_size - 1, min(CONTRAST_IDS, target.vocab_size)).long()
    few, own = target.head_rows(spread), target.head_rows(next_ids)
    found = []
    for boundary in boundaries:
        for normed in (False, True):
            u = states[boundary] if normed else target.final_norm(states[boundary])
            rival = (u @ few.T).masked_fill(spread == next_ids[:, None], -torch.inf).amax(-1)
            if ((u * own).sum(-1) >= rival).float().mean() >= CONTRAST_RATE:
                rate = float((target.score(u, next_ids).argmax == next_ids).float().mean())
                found.append(LastMatch(boundary, normed, rate, len(next_ids)))
    return found


def _generated_rows(
    samples: Iterable[Sample], boundaries: Sequence[Boundary]
) -> tuple[dict[Boundary, Float[Tensor, "N H"]], Int[Tensor, " N"]]:
    """States before some generated tokens of greedy samples, and those tokens."""
    pieces: dict[Boundary, list[Tensor]] = {boundary: [] for boundary in boundaries}
    next_ids: list[Tensor] = []
    greedy = (sample for sample in samples if sample.temperature == 0)
    for sample in islice(greedy, LAST_ROWS // LAST_ROWS_PER_SAMPLE):
        generated = torch.arange(sample.n_pairs)[sample.loss_mask[1 : sample.n_pairs + 1]]
        rows = spaced(generated, LAST_ROWS_PER_SAMPLE)
        next_ids.append(sample.token_ids[rows + 1])
        for boundary in boundaries:
            pieces[boundary].append(sample.state(boundary)[rows].float())
    if not next_ids:
        return {}, torch.zeros(0, dtype=torch.long)
    return {boundary: torch.cat(piece) for boundary, piece in pieces.items()}, torch.cat(next_ids)
