"""The conditions under which a replayed acceptance length equals the server's, each checked or said not to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3lib.case import Case
from eagle3lib.reconstruction import Reconstruction
from eagle3lib.sample import Sample
from eagle3lib.soundness import ON_POLICY


@dataclass(frozen=True)
class Condition:
    """One condition of exactness."""

    name: str
    status: Literal["holds", "violated", "not checked"]
    detail: str


def conditions(case: Case, samples: Sequence[Sample], last: Reconstruction | None) -> list[Condition]:
    """The list that stands beside every replayed length."""
    temperatures = {sample.temperature for sample in samples}
    stored = {str(state.dtype).removeprefix("torch.") for sample in samples for state in sample.states.values()}
    narrow = stored & {"bfloat16", "float16"}
    if last is None:
        on_policy = Condition("tokens are the target's own", "not checked", "no dump holds B(n); capture it")
    else:
        on_policy = Condition(
            "tokens are the target's own",
            "holds" if last.on_policy >= ON_POLICY else "violated",
            f"{last.on_policy:.1%} of {last.count} recorded tokens are the last state's argmax",
        )
    greedy = temperatures == {0.0}
    return [
        on_policy,
        Condition(
            "greedy decoding",
            "holds" if greedy else "not checked" if None in temperatures else "violated",
            "the case states temperature 0" if greedy else "state the temperature of each dump in the case",
        ),
        Condition(
            "states of the server's numerics",
            "not checked",
            f"stored as {', '.join(sorted(stored))}"
            + ("; expect 0.1 to 0.3 % of the draft's choices to flip" if narrow else ""),
        ),
        Condition(
            "constant draft length", "not checked", "the replay drafts K tokens a round; adaptive servers do not"
        ),
        Condition(
            "draft keys rewritten from target states",
            "not checked",
            "prefix-cache hits and chunk boundaries break it; serve with both off to compare",
        ),
        Condition(
            "ends of turns apart", "holds", "the replay leaves each turn's last round out; do so with a server's too"
        ),
        Condition(
            "no penalties or grammar",
            "not checked",
            "a server's penalties change which tokens follow; the recorded ones must come from the same settings",
        ),
    ]
