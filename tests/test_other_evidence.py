"""The battery on a server's numbers, boundaries that were not captured, and what the checks say of each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import toys
from told import TRUE, confident_draft, random_samples, told_by

from eagle3lib.acceptance import acceptance
from eagle3lib.battery import battery
from eagle3lib.boundaries import Wiring
from eagle3lib.checks.hypotheses import (
    check_missing_boundary,
    check_recorded_tokens,
    check_served_numbers,
)
from eagle3lib.findings import Severity
from eagle3lib.missing_boundary import mixtures
from eagle3lib.recorded_evidence import RecordedTokens
from eagle3lib.rollout import rollout
from eagle3lib.served_evidence import ServedNumbers
from eagle3lib.served_rates import ServedRates

OWN, STEPS = Wiring(TRUE), 3


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A draft, and samples of which it told every round's three tokens, a fifth of them changed at random."""
    draft = confident_draft(tmp_path_factory.mktemp("plain"))
    samples = []
    for i, sample in enumerate(random_samples(draft)):
        told = told_by(draft, sample, OWN, STEPS)
        noise = torch.rand(len(told.token_ids), generator=toys.generator(i)) < 0.1
        samples.append(replace(told, token_ids=torch.where(noise, sample.token_ids, told.token_ids)))
    return draft, samples


def counted(draft, samples, wiring: Wiring, rounds: int = 5000) -> ServedRates:
    """What a server would print that does this pass."""
    found = acceptance([rollout(draft, sample, wiring, STEPS) for sample in samples], STEPS)
    return ServedRates(tuple(e.value for e in found.walk.survival), rounds)


@pytest.mark.parametrize(
    ("served", "family"),
    [
        (Wiring((2, 3, 5)), "shifted ids"),
        (replace(OWN, norm_before_residual=True), "residual"),
        (replace(OWN, norm_output=True), "feedback"),
        (replace(OWN, token_shift=-1), "token shift"),
    ],
    ids=str,
)
def test_what_an_engine_does_is_named_or_ties(plain, served, family):
    """The planted change brings the replay to the server's numbers: it is named, or said to explain them too."""
    draft, samples = plain
    rates = counted(draft, samples, served)
    outcome = battery(draft, OWN, ServedNumbers(samples, rates))
    (change,) = outcome.changes
    named = {change.hypothesis.family, *(tie.hypothesis.family for tie in change.ties)}
    assert family in named
    finding = check_served_numbers(outcome, rates)[0]
    assert (finding.code, finding.severity) == ("served.engine_does", Severity.FAULT)
    assert finding.evidence["change"] == change.hypothesis.label


def test_a_server_that_does_as_believed_needs_no_change(plain):
    """Its own numbers are explained, and so are they with the noise of few rounds."""
    draft, samples = plain
    for rounds in (60, 5000):
        rates = counted(draft, samples, OWN, rounds)
        outcome = battery(draft, OWN, ServedNumbers(samples, rates))
        assert outcome.changes == ()
        assert [f.code for f in check_served_numbers(outcome, rates)] == ["served.rates_explained"]


def test_numbers_of_no_single_change_are_said_to_be_so(plain):
    """A server far above what any pass gives."""
    draft, samples = plain
    rates = ServedRates((0.99, 0.985, 0.98), 5000)
    outcome = battery(draft, OWN, ServedNumbers(samples, rates))
    (finding,) = check_served_numbers(outcome, rates)
    assert (finding.code, finding.severity) == ("served.rates_unexplained", Severity.RISK)


def test_a_distance_is_that_of_its_formula():
    """By hand for one step, and the quantile of χ²: 3.841, 7.815 (scipy.stats.chi2.ppf(0.95, k)) to 1 %."""
    from eagle3lib.bootstrap import Estimate

    rates = ServedRates((0.5,), 999)
    replayed = Estimate(0.6, 0.6 - 0.0196, 0.6 + 0.0196, 1)  # a standard error of 0.01
    assert rates.distance([replayed]) == pytest.approx(0.1**2 / (0.24 / 1000 + 0.01**2), rel=1e-3)
    none = ServedRates((0.0,), 9)  # nine rounds without an acceptance, which 0.34 gives one time in forty
    assert none.distance([Estimate(0.34, 0.34, 0.34, 1)]) < 6
    assert rates.expected == pytest.approx(3.841, rel=0.03)
    assert ServedRates((0.5, 0.4, 0.3), 9).expected == pytest.approx(7.815, rel=0.01)
    with pytest.raises(ValueError, match="falling"):
        ServedRates((0.4, 0.5), 10)


def drifting(draft, steps: int = 1):
    """Samples whose states drift from boundary to boundary, as a residual stream does, told under `TRUE`."""
    samples = []
    for sample in random_samples(draft):
        states, state = {}, torch.zeros_like(sample.state(0))
        for b, drift in sample.states.items():
            state = state + drift
            states[b] = state
        samples.append(told_by(draft, replace(sample, states=states), OWN, steps))
    return samples


def test_a_boundary_that_was_not_captured_is_named(tmp_path):
    """Without B(2) the best captured slot is its neighbour; a mixture of B(1) and B(3) does better and says so."""
    draft = confident_draft(tmp_path)
    samples = drifting(draft)
    without = [replace(s, states={b: h for b, h in s.states.items() if b != 2}) for s in samples]
    found = mixtures(draft, without, Wiring((1, 3, 4)))
    assert (found[0].slot, found[0].stands_for) == (1, 2)
    finding = check_missing_boundary(Wiring((1, 3, 4)), found, [0, 1, 3, 4, 5], 5)
    assert (finding.code, finding.severity) == ("wiring.boundary_missing", Severity.RISK)
    assert "B(2)" in finding.title
    assert mixtures(draft, samples, OWN) == []
    assert check_missing_boundary(OWN, [], [0, 1, 2, 3, 4, 5], 5).code == "wiring.boundaries_captured"
    # The first captured is in a slot, and nothing before it was captured: no mixture can tell.
    edge = check_missing_boundary(OWN, [], [1, 2, 3, 4, 5], 5)
    assert (edge.code, edge.severity) == ("wiring.boundary_unknown", Severity.NOTE)


def test_what_the_battery_says_of_recorded_tokens(plain):
    """Right, better otherwise, and one sample that decides nothing."""
    draft, samples = plain
    right = battery(draft, OWN, RecordedTokens(samples))
    (finding,) = check_recorded_tokens(right, len(samples))
    assert (finding.code, finding.severity) == ("wiring.right", Severity.OK)
    assert f"no change of {right.tried} tried" in finding.title
    better = battery(draft, Wiring((2, 3, 5)), RecordedTokens(samples))
    (finding,) = check_recorded_tokens(better, len(samples))
    assert (finding.code, finding.severity) == ("wiring.better_otherwise", Severity.FAULT)
    assert "ids shifted by -1" in finding.title
    one = battery(draft, OWN, RecordedTokens(samples[:1]))
    assert [f.code for f in check_recorded_tokens(one, 1)] == ["wiring.too_few_samples"]


def test_a_weak_draft_is_not_a_wrong_wiring(plain):
    """Recorded tokens mostly of another source: acceptance is low, and no change improves it."""
    draft, samples = plain
    weak = []
    for i, sample in enumerate(samples):
        other = draft.target_ids[torch.randint(0, 40, (len(sample.token_ids),), generator=toys.generator(200 + i))]
        kept = torch.rand(len(other), generator=toys.generator(300 + i)) < 0.3
        weak.append(replace(sample, token_ids=torch.where(kept, sample.token_ids, other)))
    outcome = battery(draft, OWN, RecordedTokens(weak))
    assert [f.code for f in check_recorded_tokens(outcome, len(weak))] == ["wiring.right"]
