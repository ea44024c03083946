"""Slices, checkpoints, the two averages and the oracle, on hit patterns worked out by hand or simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import toys
from test_acceptance import NINE

from eagle3lib.acceptance import acceptance, length_difference
from eagle3lib.averages import averages, oracle_gap
from eagle3lib.checkpoints import compare, contender_rows, verdict_of
from eagle3lib.checks.training_run import check_training_run
from eagle3lib.errors import InputError
from eagle3lib.findings import Severity
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import chances
from eagle3lib.slices import FEW_ROUNDS, SPEED_BENCH, by_column, by_prompt_length, by_turn, slice_rows, slices

K = 3


def responses(rate: float, n: int = 40, length: int = 125, seed: int = 0, names: str = "sample") -> list[Rollout]:
    """Responses of so many tokens whose drafts are right at a rate that differs by response."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        own = np.clip(rate + 0.08 * rng.normal(), 0, 1)
        hits = (rng.random((length, K)) < own).astype(int).tolist()
        found.append(toys.hand_rollout(hits, name=f"{names} {i}"))
    return found


def other(rollouts: list[Rollout], lost: float, gained: float = 0.0, seed: int = 1) -> list[Rollout]:
    """Another draft on the same samples: a share of right drafts is wrong, a share of wrong ones right."""
    rng, found = np.random.default_rng(seed), []
    for r in rollouts:
        coin = rng.random(r.hit.shape)
        hits = np.where(r.hit.numpy(), coin >= lost, coin < gained)
        found.append(toys.hand_rollout(hits.astype(int).tolist(), name=r.sample))
    return found


# Slices


def test_a_planted_slice_is_told_apart_and_equal_ones_are_not():
    """Half of the samples draft worse: the column that says so finds it, an unrelated column does not."""
    good, bad = responses(0.6, 20), responses(0.4, 20, seed=3, names="hard")
    rollouts = good + bad
    table = pd.DataFrame({"sample": [r.sample for r in rollouts]})
    table["category"] = ["qa"] * 20 + ["math"] * 20
    table["coin"] = ["heads", "tails"] * 20
    found = slices(rollouts, by_column(rollouts, table, "category"), K)
    assert [s.name for s in found] == ["math", "qa"]
    assert all(s.apart.excludes_zero and not s.degenerate for s in found)
    assert found[0].length.value == pytest.approx(acceptance(bad, K).walk.length.value)
    assert found[0].apart.value == pytest.approx(-found[1].apart.value)
    assert not any(s.apart.excludes_zero for s in slices(rollouts, by_column(rollouts, table, "coin"), K))


def test_rounds_of_all_slices_are_the_walk_s():
    """Nothing is lost or counted twice, and the shares' mean is the whole's length; also where chance decides."""
    rollouts = [toys.hand_rollout(NINE + NINE, [9, 9], name=f"s{i}") for i in range(3)]
    unsettled = [replace(chances(r), chance=r.hit.double()) for r in rollouts]
    for given in (rollouts, unsettled):
        found = slices(given, by_turn(given), K)
        whole = acceptance(given, K).walk.length
        assert [s.name for s in found] == ["turn 1", "turn 2"]
        assert sum(s.length.count for s in found) == whole.count
        assert sum(s.length.value * s.length.count for s in found) == pytest.approx(whole.value * whole.count)


@pytest.mark.parametrize(
    ("rollouts", "words"),
    [
        ([toys.hand_rollout(NINE, name=f"s{i}") for i in range(3)], f"6 rounds, fewer than {FEW_ROUNDS}"),
        (responses(0.5, 1, 200), "one sample"),
        ([toys.hand_rollout([[0, 0, 0]] * 40, name=f"s{i}") for i in range(3)], "every round has 1 tokens"),
    ],
)
def test_a_degenerate_slice_is_named(rollouts, words):
    """Too few rounds, one sample, or all rounds alike; it is never called told apart."""
    (row,) = slice_rows(slices(rollouts, dict.fromkeys(by_turn(rollouts), "all"), K))
    assert words in row["degenerate"]
    assert not row["told apart"]


def test_labels_by_prompt_length():
    """Turns are labelled by the tokens before them, up to and beyond the last edge."""
    sample = toys.make_sample(turns=((6, 17), (22, 33)))
    assert list(by_prompt_length([sample], (10, 20)).values()) == ["0 to 9 tokens", "20 tokens and more"]


def test_a_side_table_that_does_not_fit_is_refused():
    """A column it lacks, a sample without a row, one named twice, another number of rows."""
    rollouts = responses(0.5, 2, 10)
    names = [r.sample for r in rollouts]
    for table, words in (
        (pd.DataFrame({"sample": names}), "no column 'category'; it has sample"),
        (pd.DataFrame({"sample": names[:1], "category": ["qa"]}), "no row for 1 of 2 samples, the first 'sample 1'"),
        (pd.DataFrame({"sample": names[:1] * 2, "category": ["qa"] * 2}), "names the sample 'sample 0' twice"),
        (pd.DataFrame({"category": ["qa"] * 3}), "3 rows for 2 samples"),
    ):
        with pytest.raises(InputError, match=words):
            by_column(rollouts, table, "category")


def test_a_table_without_names_goes_by_order():
    """And an empty cell is a label of its own."""
    rollouts = responses(0.5, 2, 10)
    found = by_column(rollouts, pd.DataFrame({"category": ["qa", None]}), "category")
    assert list(found.values()) == ["qa", "(empty)"]


def test_the_standard_categories_are_eleven():
    """SPEED-Bench's."""
    assert len(set(SPEED_BENCH)) == 11


# What the data can tell


def test_a_loss_of_four_percent_is_told_on_5000_response_tokens():
    """40 responses of 125 tokens. A wiring that loses 4 % net, right drafts becoming wrong and others right: told in
    at least 19 of 20 trials."""
    told, lost = 0, []
    for seed in range(20):
        rollouts = responses(0.5, seed=seed)
        difference = length_difference(rollouts, other(rollouts, 0.12, 0.06, seed=100 + seed), K)
        lost.append(difference.value / acceptance(rollouts, K).walk.length.value)
        told += difference.low > 0
    assert np.mean(lost) == pytest.approx(0.04, abs=0.003)
    assert told >= 19


def test_no_loss_is_rarely_taken_for_one():
    """Two independent drafts of the same quality on 5000 tokens: told apart in few of 40 trials, as 95 % says."""
    told = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rates = 0.5 + 0.08 * rng.normal(size=40)
        pair = [
            [
                toys.hand_rollout((rng.random((125, K)) < r).astype(int).tolist(), name=f"s{i}")
                for i, r in enumerate(rates)
            ]
            for _ in range(2)
        ]
        told += length_difference(*pair, K).excludes_zero
    assert told <= 6


def test_the_number_that_would_tell_does():
    """10 responses cannot tell that loss and say how many rounds would: twice as many do, in 9 of 10 trials."""
    few = responses(0.5, 10, seed=5)
    difference = length_difference(few, other(few, 0.12, 0.06, seed=1), K)
    assert not difference.excludes_zero
    assert verdict_of(difference) == f"cannot tell; about {difference.count_to_tell:.0f} rounds would"
    enough = int(2 * len(few) * difference.count_to_tell / difference.count)
    told = 0
    for seed in range(10):
        many = responses(0.5, enough, seed=seed)
        told += length_difference(many, other(many, 0.12, 0.06, seed=seed), K).excludes_zero
    assert told >= 9


def test_one_sample_tells_nothing():
    """No number of its rounds would."""
    one = responses(0.5, 1)
    assert "two samples" in verdict_of(length_difference(one, other(one, 0.3), K))


# Checkpoints


def contenders(rates: list[float], losses: list[float | None]):
    """Checkpoints over the same samples, each with drafts right at a rate."""
    base = responses(max(rates), seed=9)
    rollouts = {f"step {i}": other(base, 1 - r / max(rates), seed=20 + i) for i, r in enumerate(rates)}
    training = {f"step {i}": (1000 * i, loss) for i, loss in enumerate(losses)}
    return compare(rollouts, K, training)


def test_the_best_of_several_is_marked_and_ties_are_told():
    """Equal drafts tie; a worse one is told apart."""
    base = responses(0.6)
    found = compare({"a": base, "b": base, "c": other(base, 0.3)}, K)
    assert [c.best for c in found] == [True, False, False]
    assert [c.tie for c in found] == [False, True, False]
    assert [row["verdict"] for row in contender_rows(found)] == [
        "best",
        "cannot tell: no difference seen",
        "told apart",
    ]
    assert found[2].behind.low > 0


def test_acceptance_that_falls_while_the_loss_improves_advises_to_stop():
    """Planted: the best is in the middle, the loss falls on."""
    finding = check_training_run(contenders([0.4, 0.6, 0.45], [2.0, 1.5, 1.2]))
    assert (finding.code, finding.severity) == ("training.stop_earlier", Severity.RISK)
    assert "after step 1000" in finding.title
    assert "while the loss fell from 1.5 to 1.2" in finding.title


def test_a_run_that_rises_or_stays_is_not_blamed():
    """Rising at the end, flat at the end, and a single checkpoint."""
    assert check_training_run(contenders([0.3, 0.45, 0.6], [3.0, 2.0, 1.0])).code == "training.still_rising"
    assert check_training_run(contenders([0.3, 0.6, 0.6], [3.0, 2.0, 1.0])).code == "training.run_flat"
    assert check_training_run(contenders([0.6], [1.0])).code == "training.run_unknown"


# The two averages, and the oracle


def test_the_difference_of_the_averages_by_hand():
    """NINE: rounds start at 0 and 3 with 3 and 4 tokens. Lengths at all nine: 3 1 2 4 1 2 4 3 2, in all 22."""
    found = averages([toys.hand_rollout(NINE)], K)
    assert found.walk == 3.5
    assert found.visited == pytest.approx(2 / 9)
    assert found.uniform == pytest.approx(22 / 9)
    assert found.skipped == pytest.approx((22 - 7) / 7)
    assert found.all_starts == pytest.approx(1 + 7 / 9 + 4 / 8 + 2 / 7)
    assert found.landing + found.ends == pytest.approx(found.all_starts - found.walk)
    assert found.uniform == pytest.approx(found.visited * found.walk + (1 - found.visited) * found.skipped)


def test_easy_runs_are_what_the_walk_skips():
    """Hits in runs: the starts inside a run are skipped, so the walk's rounds are shorter, and the sentence says so."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(60):
        hits += [[0, 0, 0]] * int(rng.integers(1, 4)) + [[1, 1, 1]] * int(rng.integers(3, 9))
    found = averages([toys.hand_rollout(hits)], K)
    assert found.skipped > found.walk
    assert "behind accepted drafts and are easier" in str(found)
    assert f"{found.all_starts:.3f} over all starts" in str(found)


def test_the_oracle_wastes_no_node():
    """Each fixed K verifies K + 1 nodes; the oracle as many as it gets tokens, at the longest K's length."""
    rollouts = responses(0.5)
    *fixed, oracle = oracle_gap([acceptance(rollouts, k).walk.length for k in range(1, K + 1)])
    assert [b.nodes for b in fixed] == [2, 3, 4]
    assert fixed[-1].length == oracle.length
    assert (oracle.nodes, oracle.tokens_per_node) == (oracle.length.value, 1.0)
    assert all(b.tokens_per_node == pytest.approx(b.length.value / b.nodes) for b in fixed)


def test_two_dumps_may_name_their_samples_alike():
    """A side table's row is found by the file's name, whatever dump it is of."""
    table = pd.DataFrame({"sample": ["a", "b"], "kind": ["code", "prose"]})
    rollouts = [toys.hand_rollout([[1], [0], [1]], name=f"dump/{name}") for name in ("a", "b")]
    assert set(by_column(rollouts, table, "kind").values()) == {"code", "prose"}
