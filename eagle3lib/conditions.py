"""The conditions under which a replayed acceptance length equals the server's, each checked or said not to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3lib.case import Case
from eagle3lib.config import DraftConfig
from eagle3lib.reconstruction import Reconstruction
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import walk
from eagle3lib.sample import Sample
from eagle3lib.sampling import Sampling
from eagle3lib.soundness import ON_POLICY

HOLDS, VIOLATED, NOT_CHECKED = "holds", "violated", "not checked"
Status = Literal["holds", "violated", "not checked"]

#: Mean error in nats of log-probabilities that bfloat16 states give of sampled tokens stays below this.
SAMPLED_ERROR = 0.05
#: What rounding states to 16 bits changes of a draft's choices, as seen on small targets.
ROUNDING = "expect 0.1 to 0.3 % of the draft's choices to flip"


@dataclass(frozen=True)
class Condition:
    """One condition of exactness. `detail` says what was seen, what to expect, or what would check it."""

    name: str
    status: Status
    detail: str

    def __str__(self) -> str:
        return f"{self.name}: {self.status}" + ("; " if self.status == HOLDS else ": ") + self.detail


def conditions(
    case: Case,
    samples: Sequence[Sample],
    last: Reconstruction | None,
    *,
    sampling: Sampling | None = None,
    draft: DraftConfig | None = None,
    rollouts: Sequence[Rollout] = (),
    steps: int | None = None,
    flips: float | None = None,
) -> list[Condition]:
    """The list that stands beside every replayed length.

    Args:
        last: the recorded tokens as the last state sees them, None where no dump holds it.
        sampling: how the server draws; None is greedy.
        draft: to see whether its windows and positions were reached.
        rollouts: of the samples, with `steps`, to count where responses end inside a round.
        flips: share of the draft's choices that change between stored and unrounded states, where it was measured.
    """
    sampling = sampling or Sampling(0.0)
    return [
        _on_policy(last, sampling),
        _drawn_alike(samples, sampling),
        _numerics(samples, flips),
        _draft_length(case, steps),
        _keys(samples),
        _positions(samples, draft),
        _ends(rollouts, steps),
        Condition(
            "no penalties or grammar",
            NOT_CHECKED,
            "a server's penalties change which tokens follow; the recorded ones must come from the same settings",
        ),
    ]


def _on_policy(last: Reconstruction | None, sampling: Sampling) -> Condition:
    """Greedy: recorded tokens are the argmax. Sampled: their log-probabilities are those the dump carries."""
    name = "tokens are the target's own"
    if last is None:
        return Condition(name, NOT_CHECKED, "no dump holds B(n); capture it")
    if sampling.temperature == 0:
        seen = f"{last.on_policy:.1%} of {last.count} recorded tokens are the last state's argmax"
        if last.on_policy >= ON_POLICY:
            return Condition(name, HOLDS, seen)
        return Condition(name, VIOLATED, f"expect another acceptance on the server's own responses; {seen}")
    if last.logprob_error is None:
        return Condition(
            name, NOT_CHECKED, "sampled tokens need not be the argmax; store their log-probabilities with them"
        )
    seen = f"log-probabilities of {last.count} recorded tokens are {last.logprob_error:.4f} nats off on average"
    if last.logprob_error <= SAMPLED_ERROR:
        return Condition(name, HOLDS, seen)
    return Condition(name, VIOLATED, f"expect another acceptance on the server's own responses; {seen}")


def _drawn_alike(samples: Sequence[Sample], sampling: Sampling) -> Condition:
    """Recorded at the temperature that is served. Truncation is not in a dump: `rules.score` checks it by tokens."""
    name = "greedy decoding" if sampling.temperature == 0 else f"drawn with {sampling}"
    found = {sample.temperature for sample in samples}
    if None in found or not found:
        return Condition(name, NOT_CHECKED, "state the temperature of each dump in the case")
    if found != {sampling.temperature}:
        listed = ", ".join(f"{t:g}" for t in sorted(found))
        return Condition(
            name, VIOLATED, f"expect other tokens and another acceptance; recorded at temperature {listed}"
        )
    if sampling.truncates:
        return Condition(name, NOT_CHECKED, "the temperature is the recording's; its top-k and top-p are as stated")
    return Condition(name, HOLDS, f"the case states temperature {sampling.temperature:g}")


def _numerics(samples: Sequence[Sample], flips: float | None) -> Condition:
    stored = {str(state.dtype).removeprefix("torch.") for sample in samples for state in sample.states.values()}
    seen = f"stored as {', '.join(sorted(stored))}"
    if flips is not None:
        status = VIOLATED if flips else HOLDS
        expect = "expect as many rounds to change; " if flips else ""
        return Condition(
            "states of the server's numerics", status, f"{expect}{flips:.2%} of the draft's choices flip; {seen}"
        )
    narrow = f"; {ROUNDING}" if stored & {"bfloat16", "float16"} else ""
    return Condition("states of the server's numerics", NOT_CHECKED, seen + narrow)


def _draft_length(case: Case, steps: int | None) -> Condition:
    name, served = "constant draft length", case.served.steps if case.served else None
    if steps and served and steps != served:
        return Condition(name, VIOLATED, f"expect another length; the case serves K = {served}, this is K = {steps}")
    stated = f"the case states K = {served}; " if served else ""
    return Condition(name, NOT_CHECKED, f"{stated}engines shorten drafts near a limit, adaptive ones anywhere")


def _keys(samples: Sequence[Sample]) -> Condition:
    """Draft keys come from target states at every position from the first on."""
    name = "draft keys rewritten from target states"
    late = sum(getattr(sample, "first_position", 0) > 0 for sample in samples)
    if late:
        return Condition(
            name, VIOLATED, f"expect lower acceptance here; the first states of {late} of {len(samples)} samples lack"
        )
    return Condition(
        name, NOT_CHECKED, "prefix-cache hits and chunk boundaries break it; serve with both off to compare"
    )


def _positions(samples: Sequence[Sample], draft: DraftConfig | None) -> Condition:
    """No sample is longer than what the draft's windows and positions cover, where engines differ."""
    name, longest = "within the draft's window and positions", max((len(s.token_ids) for s in samples), default=0)
    if draft is None:
        return Condition(name, NOT_CHECKED, "the draft's config was not given")
    limits = [w for w in draft.windows if w] + [draft.max_positions] * (draft.max_positions is not None)
    if not limits:
        return Condition(name, HOLDS, "the draft states neither")
    seen = f"the longest of {len(samples)} samples has {longest} tokens, the draft covers {min(limits)}"
    if longest <= min(limits):
        return Condition(name, HOLDS, seen)
    return Condition(name, VIOLATED, f"expect engines to differ beyond it; {seen}")


def _ends(rollouts: Sequence[Rollout], steps: int | None) -> Condition:
    name = "ends of turns apart"
    if not rollouts or not steps:
        return Condition(name, HOLDS, "the replay leaves each turn's last round out; do so with a server's too")
    last = [item for rollout in rollouts for item in walk(rollout, steps) if item.last]
    cut = sum(item.cut for item in last)
    return Condition(
        name,
        HOLDS,
        f"{len(last)} last rounds are left out, {cut} of them ended inside the draft; leave a server's out too",
    )
