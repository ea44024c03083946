"""What the searches say of the wiring that the files imply."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from eagle3lib.boundaries import Wiring
from eagle3lib.checks.wiring import check_training_wiring
from eagle3lib.findings import Severity
from eagle3lib.scores import Ranking, Score
from eagle3lib.search import Search, spread_evenly, training_wiring

FIVE, EVERY = (0, 3, 16, 28, 30), tuple(range(31))


def search(dump: str, boundaries: tuple, *best: tuple, **flags: object) -> Search:
    """A finished search under these flags whose best wirings tie, ahead of one that is a nat worse."""
    worse = tuple(reversed(best[0]))
    scores = [Score(slots, np.array([[10.0, 10, 5, 10]] * 3)) for slots in best]
    scores.append(Score(worse, np.array([[20.0, 10, 5, 10]] * 3)))
    scorer = SimpleNamespace(flags=Wiring((), **flags))
    return Search(Ranking(tuple(scores), 10, len(boundaries) ** 3), scorer, dump, boundaries)


def codes(trained: tuple, small: Search | None, deep: Search | None) -> list[str]:
    return [finding.code for finding in check_training_wiring(Wiring(trained), small, deep)]


def test_the_deep_search_is_the_judge():
    """Where the small dump cannot hold what fits best, the deep search confirms or contradicts."""
    small, deep = search("five", FIVE, (0, 3, 16)), search("every", EVERY, (1, 3, 16))
    assert codes((1, 3, 16), small, deep) == ["wiring.search_confirms", "wiring.search_needs_more"]
    assert codes((0, 3, 16), small, deep) == ["wiring.search_contradicts", "wiring.search_needs_more"]
    assert codes((0, 3, 16), small, None) == ["wiring.search_confirms"]
    assert codes((0, 3, 16), None, deep) == ["wiring.search_contradicts"]
    assert codes((0, 3, 16), None, None) == []


def test_searches_that_share_a_best_wiring_agree():
    """One of the ties is enough."""
    small, deep = search("five", FIVE, (0, 3, 16)), search("every", EVERY, (0, 2, 16), (0, 3, 16))
    assert codes((0, 3, 16), small, deep) == ["wiring.search_confirms"]


def test_two_dumps_that_could_agree_and_do_not_are_a_risk():
    """Both hold what each fits best: a boundary is misstated somewhere, or tokens are few."""
    small, deep = search("five", FIVE, (3, 16, 28)), search("every", EVERY, (0, 3, 16))
    found = check_training_wiring(Wiring((0, 3, 16)), small, deep)
    assert [finding.code for finding in found] == ["wiring.search_confirms", "wiring.searches_disagree"]
    assert found[1].severity is Severity.RISK
    assert "'five' fits [3, 16, 28]" in found[1].title


def test_a_dump_without_a_trained_boundary_cannot_tell():
    """No contradiction is claimed of a wiring that could not be tried, and the boundary to capture is named."""
    (finding,) = check_training_wiring(Wiring((2, 3, 16)), search("five", FIVE, (0, 3, 16)), None)
    assert finding.code == "wiring.not_captured"
    assert "B(2)" in finding.title
    assert "[0, 3, 16]" in finding.meaning


def test_boundaries_are_spread_from_the_first_to_the_last():
    assert spread_evenly(EVERY, 3) == (0, 15, 30)
    assert spread_evenly(FIVE, 2) == (0, 30)
    assert spread_evenly((5, "final_normed"), 1) == ("final_normed",)


def test_the_training_wiring_is_the_files_unless_the_states_contradict():
    """A tie, or a boundary that the dump lacks, is no contradiction; else, and without ids, the best is taken, with the
    flags by which it was scored."""
    found = search("five", FIVE, (0, 3, 16), (3, 3, 16), norm_output=True)
    for slots in ((0, 3, 16), (3, 3, 16), (2, 3, 16)):
        assert training_wiring(Wiring(slots, norm_output=True), found) == Wiring(slots, norm_output=True)
    assert training_wiring(Wiring((3, 16, 28), norm_output=True), found) == Wiring((0, 3, 16), norm_output=True)
    assert training_wiring(None, found) == Wiring((0, 3, 16), norm_output=True)
    assert training_wiring(Wiring((0, 3, 16)), None) == Wiring((0, 3, 16))
    assert training_wiring(None, None) is None
