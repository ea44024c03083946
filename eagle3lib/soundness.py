"""Whether a last state, as it was read, gives the recorded tokens back.

Limits, and what the bundled dumps give (SmolLM2, 30 blocks; nats of log-probability):

| state, read as stated     | error  | greedy argmax | surprise of tokens sampled at 0.8 |
|---------------------------|--------|---------------|-----------------------------------|
| B(30)                     | 0.003  | 0.9995        | 0.2                               |
| B(29) as B(30)            | 1.4    | 0.62          |                                   |
| B(28) as B(30)            | 2.9    | 0.57          | -3.3                              |
| normed, as B(30)          | 9      | 0.20          | -15                               |
| B(30), as `final_normed`  | 265    | 0.12          | -546                              |
| B(30), next or last token | 13     | 0.02          |                                   |
| rows of other sequences   | 14     | 0.03          | -13                               |
"""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lib.readings import Reading
from eagle3lib.reconstruction import Reconstruction, SampleFit

#: Share of greedily recorded tokens that the last state's argmax gives back: healthy, and the least that is sound.
#: Between the two lie states of other numerics (a quantised target); a public fault lay at 0.96.
HEALTHY_ON_POLICY, ON_POLICY = 0.995, 0.98
#: Mean error of a sound state's log-probabilities: bfloat16 storage gives 0.003, a public fault gave 0.11.
LOGPROB_ERROR = 0.05
#: Sampled tokens less likely than their distribution's entropy says, by more than this, are not its own. A sound
#: state's surprise is 0 but for chance (0.2 ± 0.1 on 512 tokens); truncated sampling makes it positive.
SURPRISE = 0.5
#: One norm undone leaves the scale a guess: 0.06 on the bundled dumps.
UNDONE_ERROR, UNDONE_ON_POLICY = 0.5, 0.95
#: One sample that fits so badly beside others that fit: its error, its share of argmaxes on at least so many tokens,
#: or its surprise.
SAMPLE_ERROR, SAMPLE_ON_POLICY, SAMPLE_TOKENS, SAMPLE_SURPRISE = 0.5, 0.9, 10, 2.0


def fits(reading: Reading, temperature: float | None, error: float | None) -> bool | None:
    """Whether a reading gives the recorded tokens back; None where sampled tokens cannot show it."""
    if error is not None:
        return error <= (UNDONE_ERROR if reading.norms == 2 else LOGPROB_ERROR)
    if reading.on_policy >= (UNDONE_ON_POLICY if reading.norms == 2 else ON_POLICY):
        return True
    if temperature == 0 or (reading.surprise is not None and reading.surprise < -SURPRISE):
        return False
    return None


def is_sound(last: Reconstruction) -> bool | None:
    """Whether the stated reading gives the recorded tokens back; None where sampled tokens cannot show it."""
    if last.logprob_error is None and last.teacher_error is not None and last.teacher_error <= LOGPROB_ERROR:
        return True  # a larger error may be the teacher's, see `check_teacher_probabilities`
    proved = fits(last.stated, last.temperature, last.logprob_error)
    # A scale that is wrong leaves every argmax as it is, so the rows' own size is asked where nothing else is left.
    if proved and last.logprob_error is None and (last.normed_rows > 0.5) != (last.stated.norms == 1):
        return False
    return proved


def misfit_samples(last: Reconstruction) -> list[SampleFit]:
    """The samples whose tokens do not fit their rows, where those of all others do; [] where none or all are so."""

    def bad(fit: SampleFit) -> bool:
        if fit.logprob_error is not None:
            return fit.logprob_error > SAMPLE_ERROR
        if last.temperature == 0:
            return fit.on_policy < SAMPLE_ON_POLICY and fit.count >= SAMPLE_TOKENS
        return fit.surprise is not None and fit.surprise < -SAMPLE_SURPRISE

    misfits, rest = [f for f in last.samples if bad(f)], [f for f in last.samples if not bad(f)]
    if not misfits or not rest:
        return []
    names = ("mean_logprob", "on_policy", "logprob_error", "surprise")
    together = {name: _mean([(getattr(fit, name), fit.count) for fit in rest]) for name in names}
    others = Reading(last.stated.norms, 0, **together, count=sum(fit.count for fit in rest))
    return [] if fits(others, last.temperature, others.logprob_error) is False else misfits


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    """Weighted by counts, over the values that are there."""
    there = [(value, count) for value, count in values if value is not None]
    return sum(value * count for value, count in there) / sum(count for _, count in there) if there else None
