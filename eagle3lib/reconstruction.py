"""The recorded tokens as a dump's last state sees them, under every way in which that state may be meant.

A sound last state gives the target's own log-probabilities back under the reading that is stated for it. Log-
probability judges, not the argmax: a state that lacked a small part of the residual kept 96 % of the argmaxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from eagle3lib.boundaries import Boundary
from eagle3lib.errors import InputError
from eagle3lib.readings import (
    ChosenRows,
    Reading,
    as_read,
    chosen_rows,
    joined,
    measured,
    spaced,
    stated_norms,
    unit_rows,
)
from eagle3lib.sample import Sample
from eagle3lib.target import VOCAB_CHUNK, Scores, Target

#: Rows that are scored, at most: of one sample, and of all. The head is read once for all of them.
ROWS_A_SAMPLE, ROWS = 128, 2048
#: Of those, the rows that are also read in the other ways, and those held against the dump's own teacher.
ROWS_READ_OTHERWISE, ROWS_OF_TEACHER = 256, 256
#: Rows outside the loss mask: of one sample, and of all.
OUTSIDE_A_SAMPLE, ROWS_OUTSIDE = 16, 256


@dataclass(frozen=True)
class SampleFit:
    """One sample under the stated reading."""

    name: str
    mean_logprob: float
    on_policy: float
    logprob_error: float | None
    surprise: float | None
    count: int


@dataclass(frozen=True)
class Reconstruction:
    """What a state gives of the recorded tokens.

    Attributes:
        boundary: the state's, as stated.
        temperature: of the responses, None where unknown or mixed.
        readings: the stated one first (shift 0), then its other shifts, then the others.
        samples: the samples that were read, under the stated reading.
        normed_rows: share of rows whose h / w has a root mean square of 1, which only a normed state has.
        teacher_error: mean over rows of Σ p |log p - log q| against the teacher's distributions that the dump carries,
            both over the teacher's own ids; None without them.
        outside: share of tokens outside the loss mask that are the argmax, None where there are none.
        outside_count: how many tokens that is of.
        skipped: rows left out because a value in them is not finite.
    """

    boundary: Boundary
    temperature: float | None
    readings: tuple[Reading, ...]
    samples: tuple[SampleFit, ...] = field(default=(), repr=False)
    normed_rows: float = 0.0
    teacher_error: float | None = None
    outside: float | None = None
    outside_count: int = 0
    skipped: int = 0

    @property
    def stated(self) -> Reading:
        """The reading that the boundary's name says."""
        return self.readings[0]

    @property
    def on_policy(self) -> float:
        """Share of recorded response tokens that are the argmax."""
        return self.stated.on_policy

    @property
    def mean_logprob(self) -> float:
        """Of the recorded response tokens."""
        return self.stated.mean_logprob

    @property
    def logprob_error(self) -> float | None:
        """From the log-probabilities that the dump carries, None without them."""
        return self.stated.logprob_error

    @property
    def count(self) -> int:
        """Response tokens behind the stated reading."""
        return self.stated.count

    def to_json(self) -> dict:
        """A plain dictionary for a results file, the four numbers of the stated reading beside the rest."""
        names = ("on_policy", "mean_logprob", "logprob_error", "count")
        return {**{name: getattr(self, name) for name in names}, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict) -> Reconstruction:
        """The inverse of `to_json`."""
        own = {f.name: data[f.name] for f in fields(cls)}
        own["readings"] = tuple(Reading(**reading) for reading in data["readings"])
        return cls(**{**own, "samples": tuple(SampleFit(**fit) for fit in data["samples"])})


@torch.inference_mode()
def reconstruct(
    target: Target,
    samples: Iterable[Sample],
    boundary: Boundary,
    *,
    draft_ids: Int[Tensor, " Vd"] | None = None,
) -> Reconstruction | None:
    """Hold a state against the recorded next tokens under every reading.

    Samples are read until `ROWS` rows are chosen, `ROWS_A_SAMPLE` of each at most, so that a dump of any size costs
    the same; which samples come first is the stream's choice. None where no row is both finite and supervised.

    Args:
        draft_ids: target id of each draft id, for a teacher whose distributions are over the draft vocabulary.
    """
    inside, outside, names, temperatures, teachers = [], [], [], set(), []
    left, left_outside, left_teacher = ROWS, ROWS_OUTSIDE, ROWS_OF_TEACHER
    for sample in samples:
        chosen = chosen_rows(sample, boundary, min(ROWS_A_SAMPLE, left), target.vocab_size)
        beyond = chosen_rows(sample, boundary, min(OUTSIDE_A_SAMPLE, left_outside), target.vocab_size, supervised=False)
        inside.append(chosen)
        outside.append(beyond)
        names.append(sample.name)
        temperatures.add(sample.temperature)
        if left_teacher and (pair := _teacher_rows(sample, chosen, draft_ids, min(ROWS_A_SAMPLE // 4, left_teacher))):
            teachers.append(pair)
            left_teacher -= len(pair[0])
        left -= len(chosen.rows)
        left_outside -= len(beyond.rows)
        if left <= 0:
            break
    if not any(len(chosen.rows) for chosen in inside):
        return None
    all_inside, all_outside = joined(inside), joined(outside)
    few = _some(all_inside, ROWS_READ_OTHERWISE)
    stated = stated_norms(boundary)
    normed_rows = float(unit_rows(target, all_inside.state).float().mean())
    temperature = temperatures.pop() if len(temperatures) == 1 else None
    # Where nothing else can prove the state, sampled tokens are held against the distribution's own entropy.
    unproved = bool(all_inside.own.isnan().all()) and temperature != 0
    parts = [(stated, all_inside), (1 - stated, few), *[(2, few)] * (normed_rows > 0.5), (stated, all_outside)]
    scored = _scored(target, parts, (temperature or 1.0) if unproved else 1.0, unproved)
    readings = [r for (norms, chosen), s in zip(parts[:-1], scored, strict=False) for r in measured(norms, s, chosen)]
    agrees = scored[-1].argmax == all_outside.next_ids[:, 1]
    return Reconstruction(
        boundary,
        temperature,
        tuple(sorted(readings, key=lambda r: (r.norms != stated, r.norms, abs(r.shift)))),
        tuple(_by_sample(names, inside, scored[0])),
        normed_rows,
        _teacher_error(target, teachers, stated),
        float(agrees.float().mean()) if len(agrees) else None,
        len(agrees),
        all_inside.skipped,
    )


@torch.inference_mode()
def by_depth(
    target: Target, samples: Iterable[Sample], boundaries: Sequence[Boundary], rows: int = 128
) -> dict[Boundary, Reading]:
    """Norm and head on each boundary's state (head alone on `final_normed`), on the same few rows of each.

    The log-probability of the recorded token is right at B(n) alone; before it, it is high or low by chance of depth.
    """
    chosen: dict[Boundary, list[ChosenRows]] = {boundary: [] for boundary in boundaries}
    left = rows
    for sample in samples:
        for boundary in boundaries:
            chosen[boundary].append(chosen_rows(sample, boundary, min(left, -(-rows // 4)), target.vocab_size))
        left -= len(chosen[boundaries[0]][-1].rows)
        if left <= 0:
            break
    parts = [(stated_norms(boundary), joined(found)) for boundary, found in chosen.items() if found]
    scored = _scored(target, parts, 1.0, False)
    return {b: _unshifted(measured(n, s, c)) for b, (n, c), s in zip(chosen, parts, scored, strict=False)}


def _unshifted(readings: Sequence[Reading]) -> Reading:
    return next(reading for reading in readings if reading.shift == 0)


def _some(chosen: ChosenRows, limit: int) -> ChosenRows:
    """At most `limit` of the rows, evenly spaced."""
    kept = spaced(torch.arange(len(chosen.rows)), limit)
    return ChosenRows(chosen.state[kept], chosen.next_ids[kept], chosen.own[kept], chosen.rows[kept], chosen.skipped)


def _scored(target: Target, parts: Sequence[tuple[int, ChosenRows]], temperature: float, entropy: bool) -> list[Scores]:
    """Scores of each (norms, rows), in one pass over the head."""
    normed = torch.cat([as_read(target, chosen.state, norms) for norms, chosen in parts])
    ids = torch.cat([chosen.next_ids for _, chosen in parts])
    scores = target.score(normed / temperature, ids, entropy=entropy)
    ends = torch.tensor([0, *(len(chosen.rows) for _, chosen in parts)]).cumsum(0).tolist()
    return [_part(scores, begin, end) for begin, end in pairwise(ends)]


def _part(scores: Scores, begin: int, end: int) -> Scores:
    """The scores of some rows."""
    entropy = None if scores.entropy is None else scores.entropy[begin:end]
    return Scores(scores.logprob[begin:end], scores.argmax[begin:end], entropy)


def _by_sample(names: Sequence[str], inside: Sequence[ChosenRows], scores: Scores) -> list[SampleFit]:
    """The stated reading at shift 0, sample by sample; samples without a scored row are left out."""
    found, begin = [], 0
    for name, chosen in zip(names, inside, strict=True):
        end = begin + len(chosen.rows)
        if end > begin:
            fit = _unshifted(measured(0, _part(scores, begin, end), chosen))
            found.append(SampleFit(name, fit.mean_logprob, fit.on_policy, fit.logprob_error, fit.surprise, fit.count))
        begin = end
    return found


def _teacher_rows(
    sample: Sample, chosen: ChosenRows, draft_ids: Tensor | None, limit: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """State, probabilities and target ids of some rows that the dump's teacher speaks of; None without them."""
    teacher = sample.teacher
    if teacher is None or (teacher.ids is None and draft_ids is None):
        return None
    kept = spaced((chosen.rows < len(teacher.probs)).nonzero().flatten(), limit)
    probs = teacher.probs[chosen.rows[kept]].float()
    ids = draft_ids.expand(len(kept), -1) if teacher.ids is None else teacher.ids[chosen.rows[kept]].long()
    if ids.shape != probs.shape:
        raise InputError(
            f"{sample.name} holds teacher probabilities over {probs.shape[1]} tokens and ids of {ids.shape[1]}; a"
            " teacher over the draft vocabulary needs the draft that it taught."
        )
    return chosen.state[kept], probs, ids


def _teacher_error(target: Target, teachers: Sequence[tuple[Tensor, Tensor, Tensor]], norms: int) -> float | None:
    """Mean over rows of Σ p |log p - log q|, both normalised over the teacher's own ids."""
    total = count = 0
    for state, probs, ids in teachers:
        unique, inverse = ids.unique(return_inverse=True)
        x = as_read(target, state, norms)
        logits = torch.cat([x @ target.head_rows(part).T for part in unique.split(VOCAB_CHUNK)], dim=1)
        ours = logits.gather(1, inverse).log_softmax(-1)
        theirs = probs / probs.sum(-1, keepdim=True)
        total += float(torch.where(theirs > 0, theirs * (theirs.log() - ours).abs(), 0.0).sum())
        count += len(state)
    return total / count if count else None
