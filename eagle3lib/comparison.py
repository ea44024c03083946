"""Two dumps of the same tokens, as of the training stack and the serving stack, state by state.

Samples are paired by their tokens, whatever they are called: the two may go on differently, as greedy answers of
two numerics do, and are then compared up to the first difference. States of a causal model over common tokens are
equal to rounding, so what differs beyond is numerics, a scale, or another boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import torch

from eagle3lib.acceptance import length_difference
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.rollout import Rollout, rollout
from eagle3lib.sample import Sample

#: Samples of either dump that wait for their partner; an older one is given up, so that memory stays flat.
WAITING = 32
#: Rows of a pair whose states are held against every boundary of the other dump.
MATCHED_ROWS = 64


@dataclass(frozen=True)
class Pair:
    """Two samples cut to the tokens that they have in common; both carry the first one's name, mask and tokens."""

    first: Sample
    second: Sample


@dataclass(frozen=True)
class Unpaired:
    """A sample without a partner, and where the sample at its place in the other dump differs.

    Attributes:
        position: of the first difference; `own` and `other` are the tokens there, None past an end.
    """

    name: str
    other_name: str | None
    position: int
    own: int | None
    other: int | None


def paired(first: Iterable[Sample], second: Iterable[Sample]) -> Iterator[Pair | Unpaired]:
    """Pair two dumps by their tokens, in one pass over each.

    Two samples are of the same tokens where one begins with the other, or where they have the first one's prompt in
    common. Of several, the one with the longest common beginning is taken.
    """
    waiting: tuple[list[Sample], list[Sample]] = ([], [])
    beside: dict[str, Sample | None] = {}
    for a, b in zip_longest(first, second):
        if a is not None:
            beside[a.name] = b and replace(b, states={})
        for side, sample in ((0, a), (1, b)):
            if sample is None:
                continue
            partner = _best_partner(sample, waiting[1 - side])
            if partner is None:
                waiting[side].append(sample)
                continue
            waiting[1 - side][:] = [other for other in waiting[1 - side] if other is not partner]
            beside.pop((sample, partner)[side].name, None)
            yield _cut(*(sample, partner)[:: 1 - 2 * side])
        while len(waiting[1]) > WAITING:
            waiting[1].pop(0)
        while len(waiting[0]) > WAITING:
            yield _unpaired(own := waiting[0].pop(0), beside.pop(own.name, None))
    for own in waiting[0]:
        yield _unpaired(own, beside.pop(own.name, None))


def _best_partner(sample: Sample, others: list[Sample]) -> Sample | None:
    best, longest = None, 0
    for other in others:
        common = sample.common_tokens(other)
        whole = common == min(len(sample.token_ids), len(other.token_ids))
        if common > longest and (whole or _covers_prompt(sample, other, common)):
            best, longest = other, common
    return best


def _covers_prompt(a: Sample, b: Sample, common: int) -> bool:
    """Whether what two samples have in common reaches the first generated token of either."""
    begins = [sample.turns[0].begin for sample in (a, b) if sample.turns]
    return bool(begins) and 0 < min(begins) <= common


def _cut(first: Sample, second: Sample) -> Pair:
    n = first.common_tokens(second)
    rows = min(n, *(len(state) for s in (first, second) for state in s.states.values()))

    def part(sample: Sample) -> Sample:
        states = {boundary: state[:rows] for boundary, state in sample.states.items()}
        return Sample(first.name, first.token_ids[:n], first.loss_mask[:n], states, temperature=first.temperature)

    return Pair(part(first), part(second))


def _unpaired(own: Sample, other: Sample | None) -> Unpaired:
    at = own.common_tokens(other) if other is not None else 0

    def token(sample: Sample | None) -> int | None:
        return int(sample.token_ids[at]) if sample is not None and at < len(sample.token_ids) else None

    return Unpaired(own.name, other and other.name, at, token(own), token(other))


@dataclass(frozen=True)
class StateDifference:
    """One boundary of two dumps, over all common rows that are finite in both.

    Attributes:
        norm_ratio: geometric mean of ‖second‖ / ‖first‖; `norm_spread` the standard deviation of its logarithm.
        cosine: mean over rows.
        relative: mean of ‖second - first‖ / ‖first‖ over rows; `relative_max` the largest.
        largest: the largest |second - first| of any value.
        nearest: the first dump's boundary that the second's state is nearest to, by median angle.
        angle: median angle in degrees to the same id; `nearest_angle` to the nearest.
    """

    boundary: Boundary
    norm_ratio: float
    norm_spread: float
    cosine: float
    relative: float
    relative_max: float
    largest: float
    nearest: Boundary
    angle: float
    nearest_angle: float


@dataclass(frozen=True)
class Comparison:
    """Two dumps, boundary by boundary.

    Attributes:
        states: of each boundary that both hold, in the first dump's order.
        pairs: samples compared; `tokens` rows in them.
        unpaired: samples of the first dump that have no partner.
    """

    states: tuple[StateDifference, ...]
    pairs: int
    tokens: int
    unpaired: tuple[Unpaired, ...]


def compare(items: Iterable[Pair | Unpaired]) -> Comparison:
    """Hold the states of paired samples against each other, in one pass; a few numbers a row are kept."""
    rows: dict[Boundary, list[torch.Tensor]] = {}
    largest: dict[Boundary, float] = {}
    angles: dict[Boundary, list[torch.Tensor]] = {}
    order: tuple[Boundary, ...] = ()
    unpaired: list[Unpaired] = []
    pairs = tokens = 0
    for item in items:
        if isinstance(item, Unpaired):
            unpaired.append(item)
            continue
        pairs, order = pairs + 1, tuple(item.first.states)
        common = [b for b in order if b in item.second.states]
        tokens += len(next(iter(item.first.states.values())))
        for boundary in common:
            a, b = (sample.states[boundary].float() for sample in (item.first, item.second))
            fit = a.isfinite().all(-1) & b.isfinite().all(-1) & (a.norm(dim=-1) > 0) & (b.norm(dim=-1) > 0)
            a, b = a[fit], b[fit]
            if not len(a):
                continue
            norms = a.norm(dim=-1), b.norm(dim=-1)
            gap = b - a
            measured = [
                (norms[1] / norms[0]).log(),
                (a * b).sum(-1) / (norms[0] * norms[1]),
                gap.norm(dim=-1) / norms[0],
            ]
            rows.setdefault(boundary, []).append(torch.stack(measured))
            largest[boundary] = max(largest.get(boundary, 0.0), float(gap.abs().max()))
            some = torch.linspace(min(1, len(b) - 1), len(b) - 1, min(len(b), MATCHED_ROWS)).long()
            known = torch.stack([item.first.states[k][fit][some].float() for k in order])
            cosine = torch.cosine_similarity(known, b[some], dim=-1).clamp(-1, 1)
            angles.setdefault(boundary, []).append(torch.rad2deg(cosine.arccos()))
    found = []
    for boundary in (b for b in order if b in rows):
        log_ratio, cosine, relative = torch.cat(rows[boundary], 1)
        angle = torch.cat(angles[boundary], 1).nan_to_num(90.0).median(1).values
        nearest = int(angle.argmin())
        found.append(
            StateDifference(
                boundary,
                norm_ratio=float(log_ratio.mean().exp()),
                norm_spread=float(log_ratio.std(correction=0)),
                cosine=float(cosine.mean()),
                relative=float(relative.mean()),
                relative_max=float(relative.max()),
                largest=largest[boundary],
                nearest=order[nearest],
                angle=float(angle[order.index(boundary)]),
                nearest_angle=float(angle[nearest]),
            )
        )
    return Comparison(tuple(found), pairs, tokens, tuple(unpaired))


@dataclass(frozen=True)
class Cost:
    """What the second dump's states cost the draft on the first's tokens (chain, greedy, along the walk).

    Attributes:
        steps: K of the chain.
        lost: acceptance length under the first dump's states less that under the second's, paired by sample, with
            the bonus token in both.
        agreement: share of step-0 choices that the two have in common.
    """

    steps: int
    lost: Estimate
    agreement: float


def acceptance_cost(draft: Draft, items: Iterable[Pair | Unpaired], wiring: Wiring, steps: int) -> Cost:
    """Roll the draft out on the same tokens with either dump's states.

    Raises:
        InputError: if a sample of either dump lacks a boundary of the wiring.
    """
    runs: tuple[list[Rollout], list[Rollout]] = ([], [])
    alike = total = 0
    for item in items:
        if isinstance(item, Unpaired):
            continue
        ours, theirs = (rollout(draft, sample, wiring, steps) for sample in (item.first, item.second))
        runs[0].append(ours)
        runs[1].append(theirs)
        valid = ours.valid[:, 0]
        alike += int((ours.predicted[:, 0] == theirs.predicted[:, 0])[valid].sum())
        total += int(valid.sum())
    lost = length_difference(*runs, steps) if runs[0] else Estimate(np.nan, np.nan, np.nan, 0)
    return Cost(steps, lost, alike / total if total else np.nan)
