"""A sampled dump under every rule by which engines verify sampled tokens without loss."""

from __future__ import annotations

from collections.abc import Iterable

from eagle3lib import rules
from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.ecosystems import Engine
from eagle3lib.rollout import rollout
from eagle3lib.rounds import Chances
from eagle3lib.sample import Sample
from eagle3lib.sampling import Sampling
from eagle3lib.target import Target

ONE_HOT, TOKEN_WISE, BLOCK = "one-hot draft", "rejection sampling", "block verification"


def by_rule(
    draft: Draft,
    samples: Iterable[Sample],
    wiring: Wiring,
    steps: int,
    recorded: Sampling,
    engine: Engine,
    target: Target | None,
    last: Boundary | None,
) -> dict[str, list[Chances]]:
    """The chances of each start, by rule; rules that need the target's probabilities only with B(n) at hand.

    Args:
        recorded: how the responses were drawn, and so how the engine is taken to draw.
        last: the boundary whose norm and head give p, None where no dump holds it.

    Raises:
        InputError: as `rollout` and `rules.expect_recording`.
    """
    drawn = engine.draft_sampling(recorded)
    found: dict[str, list[Chances]] = {ONE_HOT: [], TOKEN_WISE: [], BLOCK: []}
    for sample in samples:
        own = rollout(draft, sample, wiring, steps, drawn)
        found[ONE_HOT].append(rules.one_hot(own, sample, recorded, recorded))
        if target is not None and last is not None:
            scored = rules.score(own, sample, target, last, recorded, recorded)
            found[TOKEN_WISE].append(rules.rejection_sampling(own, scored))
            found[BLOCK].append(rules.block_verification(own, scored))
    return {rule: chances for rule, chances in found.items() if chances}
