"""Long sequences in windows, so that a pass over them takes memory for one window.

A window of `longest` tokens begins with half of that as context: its states and tokens are there, and its mask is
False, since the window before had it supervised. For a draft whose sliding window is no longer than the context,
nothing is lost; another draft sees no keys before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from eagle3lib.sample import Sample, TeacherProbs


def windows(sample: Sample, longest: int | None) -> Iterator[Sample]:
    """The sample itself, or where it is longer than `longest` tokens, its windows that hold the target's tokens.

    Every supervised token is in the mask of exactly one window. Windows are views.
    """
    n = len(sample.token_ids)
    if longest is None or n <= longest:
        yield sample
        return
    context = longest // 2
    for begin in range(0, n - context, longest - context):
        window = _window(sample, begin, min(begin + longest, n), context if begin else 0)
        if window.loss_mask.any():
            yield window


def _window(sample: Sample, begin: int, end: int, context: int) -> Sample:
    """Tokens begin .. end - 1, the first `context` of them without supervision."""
    rows, teacher = slice(begin, end), sample.teacher
    mask = sample.loss_mask[rows].clone()
    mask[:context] = False
    if teacher is not None:
        teacher = TeacherProbs(teacher.probs[rows], None if teacher.ids is None else teacher.ids[rows])
    return replace(
        sample,
        name=f"{sample.name} tokens {begin}-{end - 1}",
        token_ids=sample.token_ids[rows],
        loss_mask=mask,
        states={boundary: state[rows] for boundary, state in sample.states.items()},
        logprobs=None if sample.logprobs is None else sample.logprobs[rows],
        teacher=teacher,
        first_position=sample.first_position + begin,
    )
