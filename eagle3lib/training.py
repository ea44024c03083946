"""The trainer's number, computed again: which accuracy, against which truth, at which positions.

A trainer's step-k accuracy compares the draft's choice with the argmax of a *teacher*: the target's head over
the draft vocabulary, on the norm of some boundary. That truth differs from the recorded token wherever the
teacher is not the last state, wherever the recorded token was not the argmax, and wherever it lies outside
the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear

from eagle3lib import draft_head
from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.boundaries import FINAL_NORMED, Boundary, Wiring, boundary_name
from eagle3lib.checkpoint import Draft
from eagle3lib.rollout import chain_states
from eagle3lib.sample import Sample
from eagle3lib.target import Target

#: The truth that is the recorded token itself, not a teacher.
RECORDED = "recorded"


@dataclass(frozen=True)
class Teacher:
    """A teacher in full: whose state, whether the target's final norm was applied to it, over which vocabulary.

    A bare boundary in its place is the usual one: normed, unless the state is normed already, over the draft
    vocabulary.
    """

    boundary: Boundary
    normed: bool = True
    full: bool = False

    @classmethod
    def of(cls, truth: Boundary | Teacher) -> Teacher:
        """A bare boundary spelt out."""
        return truth if isinstance(truth, Teacher) else cls(truth, normed=truth != FINAL_NORMED)


Truth = Boundary | str | Teacher


@dataclass(frozen=True)
class StepCounts:
    """Sums and totals behind full_acc_k and cond_acc_k, by sample: each [n, K].

    full_acc_k = full_sum / full_total: correct at every step up to k, over supervised targets of step k.
    cond_acc_k = full_sum / cond_total: the same, over pairs correct at every step before k.
    (speculators 0.9.0, models/metrics.py compute_accuracy_single_step)
    """

    full_sum: np.ndarray
    full_total: np.ndarray
    cond_total: np.ndarray

    def by_name(self) -> dict[str, np.ndarray]:
        """The counts by the library's names for them, each [n, K]."""
        return {
            "full_acc_sum": self.full_sum,
            "full_acc_total": self.full_total,
            "cond_acc_sum": self.full_sum,
            "cond_acc_total": self.cond_total,
        }

    def full_acc(self, step: int) -> Estimate:
        """full_acc_k for k = step, with its interval over samples."""
        return self._ratio(self.full_sum[:, step], self.full_total[:, step])

    def cond_acc(self, step: int) -> Estimate:
        """cond_acc_k for k = step, with its interval over samples."""
        return self._ratio(self.full_sum[:, step], self.cond_total[:, step])

    @staticmethod
    def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> Estimate:
        return estimate(np.stack([numerator, denominator], axis=1), ratio(0, 1), denominator.sum())


def step_counts(
    draft: Draft,
    samples: Iterable[Sample],
    wiring: Wiring,
    steps: int,
    truths: Sequence[Truth],
    target: Target | None = None,
) -> dict[Truth, StepCounts]:
    """speculators' counts of every sample, with each of `truths` in the teacher's place; one pass serves all.

    Args:
        truths: boundaries whose norm and head teach (over the draft vocabulary), teachers, or `RECORDED`.
        target: needed for a teacher.

    Raises:
        InputError: if a sample lacks a boundary that the wiring or a truth needs.
        ValueError: if a teacher is asked for without a target, or there is no sample.
    """
    return counts_by_wiring(draft, samples, [wiring], steps, truths, target)[wiring]


def counts_by_wiring(
    draft: Draft,
    samples: Iterable[Sample],
    wirings: Sequence[Wiring],
    steps: int,
    truths: Sequence[Truth],
    target: Target | None = None,
) -> dict[Wiring, dict[Truth, StepCounts]]:
    """The same under several wirings; what the teachers say is computed once for all.

    Raises:
        InputError, ValueError: as `step_counts`.
    """
    if target is None and any(truth != RECORDED for truth in truths):
        raise ValueError(f"the truths {list(truths)} need a target")
    head = teacher_head(draft, target) if target is not None else None
    rows: dict[Wiring, dict[Truth, list[np.ndarray]]] = {w: {truth: [] for truth in truths} for w in wirings}
    for sample in samples:
        # labels[j] is the truth about x[j + 1], as a teacher's row j is.
        labels = {
            truth: sample.token_ids[1:]
            if truth == RECORDED
            else teacher_choices(draft, target, head, sample, truth).cpu()
            for truth in truths
        }
        for wiring, found in rows.items():
            config = draft.config.under(wiring)
            predicted = [draft_head.greedy(draft, u, config).cpu() for u in chain_states(draft, sample, wiring, steps)]
            for truth in truths:
                found[truth].append(_sample_counts(sample, predicted, labels[truth], steps))
    if not all(made for found in rows.values() for made in found.values()):
        raise ValueError("step_counts needs at least one sample and one truth")
    return {
        wiring: {truth: StepCounts(*np.stack(made).transpose(1, 0, 2)) for truth, made in found.items()}
        for wiring, found in rows.items()
    }


@torch.inference_mode()
def teacher_choices(
    draft: Draft, target: Target, head: Float[Tensor, "Vd H"], sample: Sample, truth: Boundary | Teacher
) -> Int[Tensor, " R"]:
    """What a teacher says after each token: argmax over the draft vocabulary or the whole one, as target ids.

    Args:
        head: as `teacher_head` gives it.
    """
    teacher = Teacher.of(truth)
    last = sample.state(teacher.boundary).float()
    normed = target.final_norm(last) if teacher.normed else last
    if teacher.full:
        return target.score(normed, torch.zeros(len(normed), dtype=torch.long)).argmax
    return draft.target_ids[linear(normed.to(draft.device), head).argmax(-1)]


def teacher_head(draft: Draft, target: Target) -> Tensor:
    """The target's head, cut to the draft vocabulary: [Vd, H] float32."""
    return target.head_rows(draft.target_ids).to(draft.device)


def truth_name(truth: Truth) -> str:
    """How pages call a truth."""
    if truth == RECORDED:
        return "recorded token"
    teacher = Teacher.of(truth)
    usual = Teacher.of(teacher.boundary)
    norm = "" if teacher.normed == usual.normed else ", normed again" if teacher.normed else ", not normed"
    return f"teacher {boundary_name(teacher.boundary)}{norm}{', whole vocabulary' if teacher.full else ''}"


def accuracy_rows(by_truth: Mapping[str, StepCounts]) -> list[dict]:
    """One row a truth and step: full_acc_k with its interval, cond_acc_k, and how many targets are behind it."""
    rows = []
    for name, counts in by_truth.items():
        for k in range(counts.full_sum.shape[1]):
            full = counts.full_acc(k)
            row = {"truth": name, "step": k, "full_acc": full.value, "low": full.low, "high": full.high}
            rows.append({**row, "cond_acc": counts.cond_acc(k).value, "targets": full.count})
    return rows


def _sample_counts(
    sample: Sample, predicted: Sequence[Int[Tensor, " R"]], labels: Int[Tensor, " L"], steps: int
) -> np.ndarray:
    """[3, K] full_sum, full_total and cond_total of one sample."""
    mask = sample.loss_mask
    sums = np.zeros((3, steps), dtype=np.int64)
    correct = mask[1 : sample.n_pairs + 1]  # pairs whose own token x[i + 1] is supervised
    for k, choices in enumerate(predicted):
        # Pair i's step k is held against row i + 1 + k of the teacher, supervised where x[i + 1 + k] is.
        n = min(len(choices), len(labels) - 1 - k)
        supervised = mask[1 + k : 1 + k + n]
        sums[2, k] = int(correct[:n].sum())
        correct = correct[:n] & (choices[:n] == labels[1 + k : 1 + k + n])
        sums[0, k] = int((correct & supervised).sum())
        sums[1, k] = int(supervised.sum())
    return sums
