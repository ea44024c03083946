"""The battery on drafts that told their own samples: each planted change is named first, two at once both are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import toys
from told import N_SAMPLES, TRUE, confident_draft, random_samples, told_by

from eagle3lib import variants
from eagle3lib.battery import Outcome, battery, look, widened
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.hypotheses import FAMILIES
from eagle3lib.recorded_evidence import RecordedTokens
from eagle3lib.target import Target

OWN = Wiring(TRUE)


@dataclass(frozen=True)
class Plant:
    """A pass that told the samples, and the pass that is believed.

    Attributes:
        family: which has to be named first.
        label: what its label has to contain.
        draft: how the plain draft is written.
        change: the plain draft as the truth had it.
        steps: told in rounds of so many steps, where step 0 does not see the change.
        n: samples; where rounds have several steps, only every so manyth start is told by step 0.
    """

    family: str
    label: str
    truth: Wiring = OWN
    believed: Wiring = OWN
    draft: Callable[[Path], Draft] = confident_draft
    change: Callable[[Draft, Target], Draft] | None = None
    steps: int = 1
    n: int = N_SAMPLES


def flagged(family: str, label: str, *, draft: Callable = confident_draft, steps: int = 1, **flags: object) -> Plant:
    return Plant(family, label, truth=replace(OWN, **flags), draft=draft, steps=steps)


def normed(kind: str) -> Callable[[Path], Draft]:
    return lambda folder: confident_draft(folder, kind)


def windowed(size: int) -> Callable[[Path], Draft]:
    def write(folder: Path) -> Draft:
        draft = confident_draft(folder)
        return replace(draft, config=replace(draft.config, windows=(size,)))

    return write


PLANTS = {
    "shifted ids": Plant("shifted ids", "by -1", believed=Wiring((2, 3, 5))),
    "shifted by two": Plant("shifted ids", "by +2", truth=Wiring((2, 3, 5)), believed=Wiring((0, 1, 3))),
    "B(0) missing": Plant("embedding slot", "B(0) in front", truth=Wiring((0, 1, 2))),
    "B(0) too much": Plant("embedding slot", "without B(0)", truth=Wiring((1, 2, 4)), believed=Wiring((0, 1, 2))),
    "slot order": Plant("slot order", "[B(1), B(2), B(4)]", believed=Wiring((4, 1, 2))),
    "slot repeated": Plant("slot repeated", "B(4) repeated", truth=Wiring((1, 4, 4))),
    "one slot": Plant("one slot", "B(2) in slot 2", believed=Wiring((1, 3, 4))),
    "norm before fc ignored": flagged("input norm", "no norm", draft=normed("concat"), input_norm="none"),
    "fc_norm ignored": flagged("input norm", "no norm", draft=normed("slots"), input_norm="none"),
    "concat order": flagged("concat order", "[hidden, embed]", hidden_first=True),
    "tokens not shifted": flagged("token shift", "(h[i], x[i])", token_shift=-1),
    "states behind": flagged("token shift", "(h[i - 1], x[i + 1])", token_shift=1),
    "residual": flagged("residual", "is the normed", norm_before_residual=True),
    "residual source": flagged("residual source", "is the embedding", residual_embedding=True),
    "feedback": flagged("feedback", "fed back is normed", norm_output=True, steps=3),
    "head norm": flagged("head norm", "un-normed", norm_head=False),
    "q/k norm": Plant(
        "q/k norm",
        "un-normed",
        draft=lambda folder: confident_draft(folder, head_norms=True),
        change=lambda draft, target: variants.without_head_norms(draft),
    ),
    "rope theta": flagged("rope", "theta 10000", rope_theta=1e4),
    "rotary fraction": flagged("rope", "50%", rope_fraction=0.5),
    "rope pairing": flagged("rope", "interleaved", rope_interleaved=True),
    "positions stand still": flagged("positions", "stand still", position_advance=0, steps=3),
    "window ignored": flagged("window", "no attention window", draft=windowed(6), window="off"),
    "window origin": flagged("window origin", "from the round", draft=windowed(2), window_from="start", steps=2),
    "target's embedding": Plant(
        "embedding", "target's", change=lambda draft, target: variants.with_embedding(draft, target)
    ),
    "no embedding": Plant(
        "embedding", "no embedding", change=lambda draft, target: variants.with_embedding(draft, scale=0.0)
    ),
    "target's head": Plant("head", "target's", change=variants.with_target_head),
    "d2t as ids": Plant(
        "vocabulary", "as target ids", change=lambda draft, target: variants.with_vocabulary(draft, "absolute ids")
    ),
    "d2t ignored": Plant("vocabulary", "ignored", change=lambda draft, target: variants.with_vocabulary(draft, "none")),
}


def investigate(plant: Plant, folder: Path, target: Target) -> Outcome:
    """The battery from the believed pass, on samples that the planted one told."""
    draft = plant.draft(folder)
    truth = plant.change(draft, target) if plant.change else draft
    samples = [told_by(truth, sample, plant.truth, plant.steps) for sample in random_samples(truth, plant.n)]
    return battery(draft, plant.believed, RecordedTokens(samples), target=target)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_change_is_named_first_and_alone(name, tmp_path, target):
    """Its family and its label; the changed pass improves no further."""
    plant = PLANTS[name]
    outcome = investigate(plant, tmp_path, target)
    assert outcome.changes, "nothing was named"
    first = outcome.changes[0].hypothesis
    assert (first.family, outcome.labels) == (plant.family, (first.label,))
    assert plant.label in first.label
    assert outcome.changes[0].trial.length.low > 0


SILENT = {
    "nothing": Plant("", ""),
    "later steps too": Plant("", "", steps=3),
    # The layer norms each embedding, so a scale is seen only beside the norm's eps.
    "embedding scaled": Plant(
        "embedding", "", change=lambda draft, target: variants.with_embedding(draft, scale=toys.HIDDEN**0.5)
    ),
    # Queries and keys turn alike, so an offset of all positions changes no score.
    "position offset": flagged("positions", "", position_offset=1),
    "bfloat16": Plant("numerics", "", change=lambda draft, target: variants.in_dtype(draft, torch.bfloat16)),
}


@pytest.mark.parametrize("name", SILENT)
def test_a_right_pass_stays_as_it_is(name, tmp_path, target):
    """Nothing planted, and what no step can see: no change improves, of every family that applies."""
    outcome = investigate(SILENT[name], tmp_path, target)
    assert outcome.labels == ()
    assert outcome.tried > 30
    assert outcome.ground.wiring == OWN


PAIRS = {
    "shifted ids and an ignored norm": (
        Plant("", "", believed=Wiring((2, 3, 5), input_norm="none"), draft=normed("concat")),
        {"shifted ids", "input norm"},
    ),
    "wrong feedback and wrong theta": (
        replace(flagged("", "", norm_output=True, rope_theta=1e4, steps=2), n=20),
        {"feedback", "rope"},
    ),
    "slot order and tokens not shifted": (
        Plant("", "", truth=replace(OWN, token_shift=-1), believed=Wiring((4, 2, 1))),
        {"slot order", "token shift"},
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_planted_changes_are_both_named(name, tmp_path, target):
    """Both families and no third, and the pass that they lead to is the one that told the samples."""
    plant, families = PAIRS[name]
    outcome = investigate(plant, tmp_path, target)
    assert {change.hypothesis.family for change in outcome.changes} == families
    assert len(outcome.changes) == 2
    config = outcome.ground.draft.config
    assert outcome.ground.wiring.slots == plant.truth.slots
    assert config.under(outcome.ground.wiring) == config.under(plant.truth)


def test_every_family_is_planted_or_stands_among_what_cannot_be_seen():
    """No family without a test."""
    planted = {plant.family for plant in (*PLANTS.values(), *SILENT.values())}
    assert set(FAMILIES) - planted == {"search"}


def test_what_a_search_found_is_one_hypothesis(draft):
    """Two slots away from what is believed, where no single change of a slot leads."""
    samples = [told_by(draft, sample, Wiring((5, 0, 3))) for sample in random_samples(draft)]
    outcome = battery(draft, Wiring((1, 2, 4)), RecordedTokens(samples), searched=(5, 0, 3))
    assert [change.hypothesis.family for change in outcome.changes] == ["search"]
    assert outcome.ground.wiring.slots == (5, 0, 3)


def test_one_sample_decides_nothing(draft):
    """Its tokens are no independent draws, so whatever it shows stays inside the interval."""
    sample = told_by(draft, random_samples(draft, 1)[0], OWN)
    assert battery(draft, Wiring((2, 3, 5)), RecordedTokens([sample])).labels == ()
    with pytest.raises(ValueError, match="at least one sample"):
        battery(draft, OWN, RecordedTokens([]))


def test_intervals_widen_with_trials_and_with_few_samples():
    """Student's quantiles: 2.3646 for one trial of 8 samples, the normal 3.0233 for 20 trials of very many."""
    plain = Estimate(1.0, 1.0 - 1.959964, 1.0 + 1.959964, 100)
    assert widened(plain, 1, 8).low == pytest.approx(1 - 2.3646, abs=2e-3)
    assert widened(plain, 20, 10**6).high == pytest.approx(1 + 3.0233, abs=1e-3)
    assert widened(plain, 20, 8).low < widened(plain, 20, 16).low < widened(plain, 1, 16).low
    assert widened(plain, 1, 1).low == -float("inf")


def test_the_look_is_spread_and_cut(sample):
    """Samples from all over, each cut behind its first starts, whose recorded tokens it keeps."""
    samples = [replace(sample, name=str(i)) for i in range(10)]
    chosen = look(samples, 4, 5)
    assert [s.name for s in chosen] == ["0", "2", "5", "7"]
    assert all(sum(len(turn.starts) for turn in s.turns) == 5 for s in chosen)
    assert [s.name for s in look(samples[:2], 4, 10**6)] == ["0", "1"]
