"""A sampled dump under every rule by which engines verify sampled tokens without loss."""

from __future__ import annotations

from collections.abc import Iterable

from eagle3lib import rules
from eagle3lib.acceptance import acceptance
from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.ecosystems import ENGINES, Engine
from eagle3lib.errors import InputError
from eagle3lib.investigation import Investigation
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


def sampled_rows(inv: Investigation, wiring: Wiring, steps: int) -> tuple[list[dict], list[tuple[str, str]]]:
    """Every sampled dump under every rule, one row each; and which dumps are refused, with why.

    The engine is the case's own, else SGLang; it is taken to draw as the responses were drawn.
    """
    rows, refused = [], []
    engine, n = inv.engine or ENGINES["sglang"], inv.shape.n_layers if inv.shape else None
    for section in inv.sections(wiring.slots, greedy=False):
        if not (temperature := inv.temperature(section)):
            continue
        recorded = Sampling(temperature, section.top_k, section.top_p, engine.temperature_last)
        last = n if n in inv.stored_boundaries(section) else None
        needed = dict.fromkeys([*wiring.slots, *([] if last is None else [last])])
        try:
            found = by_rule(
                inv.draft, inv.open(section, tuple(needed)), wiring, steps, recorded, engine, inv.target, last
            )
        except InputError as error:
            refused.append((section.name, str(error)))
            continue
        for rule, chances in found.items():
            a = acceptance(chances, steps)
            row = {"dump": section.name, "rule": rule, "drawn with": str(recorded)}
            row |= {"walk": a.walk.length.value, "low": a.walk.length.low, "high": a.walk.length.high}
            row |= {"all starts": a.all_starts.length.value, "S_1": a.walk.survival[0].value}
            rows.append({**row, "approximate": a.approximate})
    return rows, refused
