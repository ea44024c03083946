"""Ways to read a stored last state, and the rows of a sample that are read.

z = head · norm(h_t)   or   head · h_t          row t is about x[t + 1 + shift]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.sample import Sample
from eagle3lib.target import Scores, Target

SHIFTS = (-1, 0, 1)
#: rms(h / w) of a normed state is 1 in every row; bfloat16 moves it by 0.002 on the bundled dumps, where B(30) has
#: 10 to 32.
UNIT_RMS = 0.02


@dataclass(frozen=True)
class Reading:
    """One way to read the state, and what the recorded tokens say of it.

    Attributes:
        norms: how many final norms the stored state is taken to have behind it: 0 is norm and head, 1 is the head
            alone; 2 undoes one norm, up to its lost scale, before the head.
        shift: row t is held against x[t + 1 + shift].
        mean_logprob: of those tokens (at the dump's temperature where it is sampled and carries no log-probabilities).
        on_policy: share of those tokens that are the argmax.
        logprob_error: mean |difference| from the log-probabilities that the dump carries, None without them.
        surprise: mean of logprob + entropy, which is 0 for tokens sampled from the distribution itself; None where
            it was not needed.
        count: tokens behind it.
    """

    norms: int
    shift: int
    mean_logprob: float
    on_policy: float
    logprob_error: float | None
    surprise: float | None
    count: int


@dataclass(frozen=True)
class ChosenRows:
    """The rows of one sample that are scored, in order: all finite.

    Attributes:
        next_ids: [N, 3] the recorded x[t + 1 + shift] for each of `SHIFTS`; -1 where there is none.
        own: [N, 3] the log-probabilities that the dump carries of those tokens, NaN where there are none.
    """

    state: Float[Tensor, "N H"]
    next_ids: Int[Tensor, "N 3"]
    own: Float[Tensor, "N 3"]
    rows: Int[Tensor, " N"]
    skipped: int


def chosen_rows(
    sample: Sample, boundary: Boundary, limit: int, vocabulary: int, *, supervised: bool = True
) -> ChosenRows:
    """Up to `limit` rows of a sample, evenly spaced, whose next token the loss mask marks (or does not mark).

    A row whose next token is outside the vocabulary is left out, as one with a value that is not finite is.
    """
    stored = sample.state(boundary)
    n = min(len(stored), len(sample.token_ids) - 1)
    marked, following = sample.loss_mask[1 : n + 1], sample.token_ids[1 : n + 1]
    known = (following >= 0) & (following < vocabulary)
    rows = spaced(torch.arange(n)[known & (marked if supervised else ~marked)], limit)
    state = stored[rows].float()
    finite = state.isfinite().all(-1)
    rows = rows[finite]
    position = rows[:, None] + 1 + torch.tensor(SHIFTS)
    known = position < len(sample.token_ids)
    position = position.clamp(max=len(sample.token_ids) - 1)
    nothing = torch.full(position.shape, torch.nan)
    own = nothing if sample.logprobs is None else torch.where(known, sample.logprobs.float()[position], nothing)
    ids = sample.token_ids[position]
    ids = torch.where(known & (ids >= 0) & (ids < vocabulary), ids, -1)
    return ChosenRows(state[finite], ids, own, rows, int((~finite).sum()))


def spaced(rows: Tensor, limit: int) -> Tensor:
    """At most `limit` of the rows, evenly spaced: the same ones every time."""
    if len(rows) <= limit:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, limit).long()]


def as_read(target: Target, state: Float[Tensor, "N H"], norms: int) -> Float[Tensor, "N H"]:
    """What the head is given where the stored state has so many final norms behind it."""
    if norms == 0:
        return target.final_norm(state)
    if norms == 1:
        return state
    # norm(norm(h)) = w ∘ u with u ∝ norm(h) of unit rms; norm(h)'s own rms is about w's.
    weight = target.norm_weight
    return state / torch.where(weight == 0, torch.inf, weight) * weight.square().mean().sqrt()


def unit_rows(target: Target, state: Float[Tensor, "N H"]) -> Bool[Tensor, " N"]:
    """Which rows have the root mean square of a normed state: rms(h / w) = 1."""
    kept = target.norm_weight != 0
    return ((state[:, kept] / target.norm_weight[kept]).square().mean(-1).sqrt() - 1).abs() < UNIT_RMS


def joined(chosen: Sequence[ChosenRows]) -> ChosenRows:
    """The rows of several samples, one after another."""
    names = ("state", "next_ids", "own", "rows")
    return ChosenRows(
        *(torch.cat([getattr(c, name) for c in chosen]) for name in names), sum(c.skipped for c in chosen)
    )


def reading_name(reading: Reading) -> str:
    """How pages call a way of reading."""
    ways = ("norm and head", "head alone", "one norm undone")
    return ways[reading.norms] + (f", shift {reading.shift:+d}" if reading.shift else "")


def stated_norms(boundary: Boundary) -> int:
    """How many norms the boundary's name says the stored state has behind it."""
    return 1 if boundary == FINAL_NORMED else 0


def measured(norms: int, scores: Scores, chosen: ChosenRows) -> list[Reading]:
    """One reading a shift, of rows that the target has scored; a shift at which no row has a token is left out."""
    found = []
    for column, shift in enumerate(SHIFTS):
        ids, logprob = chosen.next_ids[:, column], scores.logprob[:, column]
        there = ids >= 0
        if not there.any():
            continue
        error = (logprob - chosen.own[:, column])[there].abs()
        known = ~error.isnan()
        surprise = None if scores.entropy is None else float((logprob + scores.entropy)[there].mean())
        found.append(
            Reading(
                norms,
                shift,
                mean_logprob=float(logprob[there].mean()),
                on_policy=float((scores.argmax == ids)[there].float().mean()),
                logprob_error=float(error[known].mean()) if known.any() else None,
                surprise=surprise,
                count=int(there.sum()),
            )
        )
    return found
