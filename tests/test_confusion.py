"""On the bundled draft: a pass believed wrongly in one way or two is named first, and the right one is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bundled import CASE
from confusion import SILENCE, confusion_table, off_diagonal

from eagle3lib import load_case, variants
from eagle3lib.battery import battery, look
from eagle3lib.boundaries import Wiring
from eagle3lib.investigation import Investigation
from eagle3lib.missing_boundary import mixtures
from eagle3lib.recorded_evidence import RecordedTokens

TRUE = (0, 3, 16)
STORED = (0, 3, 16, 28, 30)


@pytest.fixture(scope="module")
def inv():
    """The bundled case, opened."""
    return Investigation(load_case(CASE), "cpu")


@pytest.fixture(scope="module")
def samples(inv):
    """Half of the held-out responses, the beginning of each: a few hundred starts."""
    return look(inv.samples(STORED), 8, 50)


def first_family(inv, samples, believed: Wiring, draft=None) -> str:
    """The family that the battery names first from a believed pass."""
    outcome = battery(draft or inv.draft, believed, RecordedTokens(samples), target=inv.target)
    return outcome.changes[0].hypothesis.family if outcome.changes else SILENCE


#: What is believed of a draft trained under `TRUE` without any flag, by the family that undoes it.
BELIEVED = {
    SILENCE: Wiring(TRUE),
    "embedding slot": Wiring((3, 16, 28)),
    "slot order": Wiring((16, 3, 0)),
    "residual": Wiring(TRUE, norm_before_residual=True),
    "residual source": Wiring(TRUE, residual_embedding=True),
    "concat order": Wiring(TRUE, hidden_first=True),
    "token shift": Wiring(TRUE, token_shift=-1),
    "feedback": Wiring(TRUE, norm_output=True),
    "head norm": Wiring(TRUE, norm_head=False),
    "rope": Wiring(TRUE, rope_theta=100.0),
}


@pytest.mark.slow
def test_the_bundled_confusion_table_is_diagonal(inv, samples):
    """Rows planted, columns named first."""
    plants = {name: lambda w=wiring: first_family(inv, samples, w) for name, wiring in BELIEVED.items()}
    plants["vocabulary"] = lambda: first_family(inv, samples, Wiring(TRUE), variants.with_vocabulary(inv.draft, "none"))
    table = confusion_table(plants)
    assert off_diagonal(table) == []
    assert table.to_numpy().sum() == len(plants)


@pytest.mark.slow
def test_two_faults_of_the_bundled_draft_are_both_undone(inv, samples):
    """As served, and fed back otherwise than trained: the pass that is left is the trained one."""
    outcome = battery(inv.draft, Wiring((3, 16, 28), norm_output=True), RecordedTokens(samples), target=inv.target)
    assert [change.hypothesis.family for change in outcome.changes] == ["embedding slot", "feedback"]
    assert outcome.ground.wiring == Wiring(TRUE, norm_output=False)


def test_a_boundary_missing_from_the_dump_is_named(inv):
    """Of every boundary but B(14) to B(18): the slot at B(13) needs one of those; with all there, none is missing."""
    every = inv.samples(range(31))
    without = [
        replace(sample, states={b: h for b, h in sample.states.items() if b not in range(14, 19)}) for sample in every
    ]
    best = mixtures(inv.draft, without, Wiring((0, 3, 13)))[0]
    assert (best.slot, best.low, best.high) == (2, 13, 19)
    assert best.stands_for in range(14, 19)
    assert best.gain.value > 0.1
    assert mixtures(inv.draft, every, Wiring(TRUE)) == []
