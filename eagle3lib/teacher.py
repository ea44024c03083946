"""What the trainer's teacher says of the recorded tokens: the accuracy of its perfect pupil."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from eagle3lib.boundaries import Boundary
from eagle3lib.readings import as_read, chosen_rows, joined, stated_norms
from eagle3lib.reconstruction import ROWS, ROWS_A_SAMPLE
from eagle3lib.sample import Sample
from eagle3lib.target import Target


@dataclass(frozen=True)
class TeacherAudit:
    """How often a pupil that always says what the teacher says gives the recorded response token.

    Attributes:
        boundary: whose norm and head teach (the head alone on `final_normed`).
        full: share of recorded tokens that are the teacher's argmax over the whole vocabulary.
        draft: the same over the draft vocabulary, a token outside it a miss; None without a draft.
        mean_logprob: of the recorded tokens under the teacher, over the whole vocabulary.
        count: recorded tokens that were held against it.
    """

    boundary: Boundary
    full: float
    draft: float | None
    mean_logprob: float
    count: int


@torch.inference_mode()
def audit_teacher(
    target: Target, samples: Iterable[Sample], boundary: Boundary, draft_ids: Int[Tensor, " Vd"] | None = None
) -> TeacherAudit | None:
    """Hold a teacher against the recorded tokens; None where no row is both finite and supervised.

    Args:
        samples: read until `ROWS` rows are chosen, as `reconstruct` does.
        draft_ids: target id of each draft id.
    """
    chosen, left = [], ROWS
    for sample in samples:
        chosen.append(chosen_rows(sample, boundary, min(ROWS_A_SAMPLE, left), target.vocab_size))
        left -= len(chosen[-1].rows)
        if left <= 0:
            break
    if left == ROWS:
        return None
    rows = joined(chosen)
    normed, ids = as_read(target, rows.state, stated_norms(boundary)), rows.next_ids[:, 1]
    scores = target.score(normed, ids)
    restricted = None if draft_ids is None else target.score(normed, ids, among=draft_ids).argmax
    return TeacherAudit(
        boundary,
        full=float((scores.argmax == ids).float().mean()),
        draft=None if restricted is None else float((restricted == ids).float().mean()),
        mean_logprob=float(scores.logprob.mean()),
        count=len(ids),
    )
