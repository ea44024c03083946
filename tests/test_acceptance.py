"""Walks, rates and intervals, on hit patterns whose numbers are worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lib import bootstrap
from eagle3lib.acceptance import acceptance, length_difference
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Round, counted, walk

# One turn of nine starts, three steps. Read down: hits of step 0, 1, 2 at each start.
#   start   0  1  2  3  4  5  6  7  8
#   step 0  1  0  1  1  0  1  1  1  1
#   step 1  1  1  0  1  1  0  1  1  -
#   step 2  0  1  1  1  1  0  1  -  -
NINE = [[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]]


def test_a_walk_goes_from_each_round_s_end_to_the_next():
    """0 accepts two and goes on at 3; 3 accepts all three and goes on at 7, whose two hits reach the turn's end."""
    assert walk(toys.hand_rollout(NINE), 3) == [
        Round(start=0, turn=0, accepted=2, last=False, cut=False, committed=3),
        Round(start=3, turn=0, accepted=3, last=False, cut=False, committed=4),
        Round(start=7, turn=0, accepted=2, last=True, cut=True, committed=2),
    ]


def test_every_draft_length_walks_its_own_starts():
    """One draft a round: hits at 0, 2, 5 and 7 skip a start, the miss at 4 does not. Two drafts: all are kept."""
    assert [(r.start, r.length) for r in walk(toys.hand_rollout(NINE), 1)] == [(0, 2), (2, 2), (4, 1), (5, 2), (7, 2)]
    assert [(r.start, r.length) for r in walk(toys.hand_rollout(NINE), 2)] == [(0, 3), (3, 3), (6, 3)]


@pytest.mark.parametrize(
    ("hits", "steps", "last"),
    [
        ([[0, 0]], 2, Round(0, 0, 0, True, False, 1)),  # rejected: its correction is the turn's last token
        ([[1, 0]], 2, Round(0, 0, 1, True, True, 1)),  # the one token left was drafted, nothing to reject
        ([[1, 0]], 1, Round(0, 0, 1, True, False, 1)),  # K was reached at the very end
        ([[0, 0], [1, 0]], 2, Round(1, 0, 1, True, True, 1)),
        ([[1, 0], [1, 1]], 2, Round(0, 0, 1, True, False, 2)),  # one kept, the correction ends the turn
    ],
)
def test_a_last_round_is_cut_only_where_the_turn_ended_before_a_rejection(hits, steps, last):
    """`cut`: neither a miss nor K ended the round."""
    assert walk(toys.hand_rollout(hits), steps)[-1] == last


def test_turns_are_walked_apart():
    """The first turn's last round would run into the second; the second starts at its own first start."""
    hits = [[1, 1], [1, 1], [1, 1]] + [[1, 0], [0, 0], [0, 0], [1, 1]]
    rounds = walk(toys.hand_rollout(hits, [3, 4]), 2)
    assert [(r.turn, r.start, r.accepted, r.last, r.cut) for r in rounds] == [
        (0, 0, 2, True, False),
        (1, 100, 1, False, False),
        (1, 102, 0, False, False),
        (1, 103, 1, True, True),
    ]


def test_rates_along_the_walk_by_hand():
    """Rounds before the last accept 2, 3: S = (1, 1, 1/2), c = (1, 1, 1/2), AL = 1 + 5/2."""
    result = acceptance([toys.hand_rollout(NINE)], 3)
    assert result.round_lengths == (0, 0, 1, 1)
    assert result.last_rounds == (0, 0, 1, 0)
    assert [e.value for e in result.walk.survival] == [1, 1, 0.5]
    assert [e.value for e in result.walk.conditional] == [1, 1, 0.5]
    assert [e.count for e in result.walk.conditional] == [2, 2, 2]
    assert result.walk.length.value == 3.5
    assert result.walk.length.count == 2


def test_rates_over_all_starts_by_hand():
    """Nine starts can check step 0, eight step 1, seven step 2; a chain is alive while every step before hit.

    Alive: step 0 at 0 2 3 5 6 7 8 (7 of 9); step 1 at 0 3 6 7 (4 of 8, 6 of them alive before); step 2 at 3 6
    (2 of 7; alive before and checkable: 0 3 6).
    """
    rates = acceptance([toys.hand_rollout(NINE)], 3).all_starts
    assert [e.value for e in rates.survival] == pytest.approx([7 / 9, 4 / 8, 2 / 7])
    assert [e.count for e in rates.survival] == [9, 8, 7]
    assert [e.value for e in rates.conditional] == pytest.approx([7 / 9, 4 / 6, 2 / 3])
    assert [e.count for e in rates.conditional] == [9, 6, 3]
    assert rates.length.value == pytest.approx(1 + 7 / 9 + 4 / 8 + 2 / 7)


def test_the_two_averages_differ():
    """The walk skips the starts inside an accepted run: mixing the two would be seen on this pattern."""
    result = acceptance([toys.hand_rollout(NINE)], 3)
    assert abs(result.walk.length.value - result.all_starts.length.value) > 0.5


def test_all_starts_need_one_walk_for_every_draft_length():
    """S_1 over all starts is the same for every K; along the walk it is not."""
    by_steps = [acceptance([toys.hand_rollout(NINE)], steps) for steps in (1, 2, 3)]
    assert len({a.all_starts.survival[0].value for a in by_steps}) == 1
    assert len({a.walk.survival[0].value for a in by_steps}) > 1


def test_the_ceiling_counts_tokens_inside_the_draft_vocabulary():
    """Three of nine first tokens without a probability: 6/9, and later steps do not count."""
    rollout = toys.hand_rollout(NINE)
    rollout.logprob[[1, 4, 5], 0] = -torch.inf
    rollout.logprob[2, 1] = -torch.inf
    ceiling = acceptance([rollout], 3).ceiling
    assert (ceiling.value, ceiling.count) == (pytest.approx(6 / 9), 9)


def test_full_rates_and_ceilings_by_position_by_hand():
    """Whatever came before, 7 of 9, 6 of 8 and 5 of 7 drafts are right; a ceiling is of all tokens up to its step."""
    rollout = toys.hand_rollout(NINE)
    rollout.logprob[1, 0] = rollout.logprob[1, 2] = rollout.logprob[2, 1] = -torch.inf
    result = acceptance([rollout], 3)
    assert [e.value for e in result.full] == pytest.approx([7 / 9, 6 / 8, 5 / 7])
    assert [e.value for e in result.ceilings] == pytest.approx([8 / 9, 6 / 8, 5 / 7])
    assert [e.count for e in result.full] == [e.count for e in result.ceilings] == [9, 8, 7]


def test_the_mean_over_requests_is_another_than_over_rounds():
    """3.5 tokens in two rounds, and 1 in eight: 1.5 over rounds, 2.25 over requests."""
    pair = [toys.hand_rollout(NINE), toys.hand_rollout([[0, 0, 0]] * 9, name="other")]
    result = acceptance(pair, 3)
    assert result.walk.length.value == pytest.approx((2 * 3.5 + 8) / 10)
    assert (result.requests.value, result.requests.count) == (2.25, 2)


def test_counts_alone_give_what_a_chain_gives():
    """A tree with one branch knows only how many drafts were accepted: same walk, same rates over all starts."""
    chain = toys.hand_rollout(NINE + NINE, [9, 9])
    accepted = chain.hit.int().cumprod(1).sum(1)
    tree = counted(chain.sample, chain.starts, chain.turns, accepted, chain.valid)
    assert walk(tree, 3) == walk(chain, 3)
    by_counts, by_hits = acceptance([tree], 3), acceptance([chain], 3)
    assert (by_counts.walk, by_counts.all_starts) == (by_hits.walk, by_hits.all_starts)
    assert by_counts.full == by_counts.ceilings == ()
    assert np.isnan(by_counts.ceiling.value)


def test_more_steps_than_were_rolled_out_are_refused():
    """The sentence names the sample and both numbers."""
    with pytest.raises(ValueError, match="rollout of toy has 3 steps, 4 were asked for"):
        acceptance([toys.hand_rollout(NINE)], 4)
    with pytest.raises(ValueError, match="at least one rollout"):
        acceptance([], 3)


@st.composite
def hand_rollouts(draw: st.DrawFn, steps: int = 4) -> Rollout:
    """A rollout of one to three turns with any hits."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    rows = st.lists(st.integers(0, 1), min_size=steps, max_size=steps)
    return toys.hand_rollout(draw(st.lists(rows, min_size=sum(lengths), max_size=sum(lengths))), lengths)


@settings(deadline=None, max_examples=60)
@given(hand_rollouts())
def test_a_walk_covers_every_turn_once(rollout):
    """Each round starts where the last one ended, and the last one of a turn reaches the turn's end."""
    rounds = walk(rollout, 4)
    for turn in rollout.turns.unique().tolist():
        group, starts = [r for r in rounds if r.turn == turn], rollout.starts[rollout.turns == turn]
        assert group[0].start == int(starts[0])
        assert [r.start + r.length for r in group[:-1]] == [r.start for r in group[1:]]
        assert [r.last for r in group] == [False] * (len(group) - 1) + [True]
        assert group[-1].start + group[-1].length > int(starts[-1])
        assert not any(r.cut for r in group[:-1])
        assert [r.committed for r in group[:-1]] == [r.length for r in group[:-1]]
        assert sum(r.committed for r in group) == len(starts), "every token of the turn stands in one round"


@settings(deadline=None, max_examples=25)
@given(st.lists(hand_rollouts(), min_size=1, max_size=4))
def test_identities_along_the_walk(rollouts):
    """1 + sum of S_k is the mean round length, S_k never rises, and c_k = S_k / S_(k-1); 1e-12."""
    result = acceptance(rollouts, 4)
    rounds = [r for rollout in rollouts for r in walk(rollout, 4) if not r.last]
    if not rounds:
        assert np.isnan(result.walk.length.value)
        return
    survival = [1.0] + [e.value for e in result.walk.survival]
    assert sum(survival) == pytest.approx(np.mean([r.length for r in rounds]), abs=1e-12)
    assert result.walk.length.value == pytest.approx(sum(survival), abs=1e-12)
    assert all(later <= earlier for earlier, later in itertools.pairwise(survival))
    for k, conditional in enumerate(result.walk.conditional, start=1):
        if survival[k - 1] > 0:
            assert conditional.value == pytest.approx(survival[k] / survival[k - 1], abs=1e-12)
        else:
            assert np.isnan(conditional.value)
    assert sum(result.round_lengths) == len(rounds) == result.walk.length.count
    assert sum(result.last_rounds) == sum(len(set(rollout.turns.tolist())) for rollout in rollouts)


@settings(deadline=None, max_examples=25)
@given(st.lists(hand_rollouts(), min_size=1, max_size=4))
def test_counts_over_all_starts(rollouts):
    """Every count is the number of starts whose recorded token lies in the turn; AL = 1 + sum of S_k."""
    rates = acceptance(rollouts, 4).all_starts
    for k, survival in enumerate(rates.survival):
        valid = sum(int(r.valid[:, k].sum()) for r in rollouts)
        alive = sum(int((r.hit[:, : k + 1].all(1) & r.valid[:, k]).sum()) for r in rollouts)
        assert survival.count == valid
        assert np.isnan(survival.value) if valid == 0 else survival.value == pytest.approx(alive / valid)
    known = [e.value for e in rates.survival if e.count]
    assert rates.length.value == pytest.approx(1 + sum(known), abs=1e-12)


def several(seed: int, n: int = 6, rate: float = 0.6) -> list[Rollout]:
    """Samples of one turn of 40 starts each, hits drawn at a rate."""
    source = toys.generator(seed)
    return [
        toys.hand_rollout((torch.rand(40, 3, generator=source) < rate).int().tolist(), name=f"sample {i}")
        for i in range(n)
    ]


def test_the_difference_of_equal_rollouts_is_exactly_zero():
    """Paired resamples: the interval has no width at all."""
    difference = length_difference(several(1), several(1), 3)
    assert (difference.value, difference.low, difference.high) == (0.0, 0.0, 0.0)
    assert not difference.excludes_zero


def test_a_paired_difference_is_told_apart_where_an_unpaired_one_is_not():
    """Twenty hits more in every sample: the paired interval excludes zero, the two lengths' own overlap."""
    worse = several(2)
    better = []
    for rollout in worse:
        hits = rollout.hit.int()
        hits[::2, 0] = 1
        better.append(toys.hand_rollout(hits.tolist(), name=rollout.sample))
    difference = length_difference(better, worse, 3)
    lengths = [acceptance(rollouts, 3).walk.length for rollouts in (better, worse)]
    assert difference.value == pytest.approx(lengths[0].value - lengths[1].value, abs=1e-12)
    assert difference.low > 0
    assert difference.excludes_zero
    opposite = length_difference(worse, better, 3)
    assert (opposite.low, opposite.high) == pytest.approx((-difference.high, -difference.low))


def test_a_difference_of_other_samples_is_refused():
    """Other names, another order, another number."""
    for other in (several(1)[::-1], several(1)[:-1], [toys.hand_rollout(NINE)]):
        with pytest.raises(ValueError, match="same samples in the same order"):
            length_difference(several(1), other, 3)


def test_intervals_are_the_same_on_every_call():
    """No global random state enters: seeding numpy and torch otherwise changes nothing."""
    first = acceptance(several(3), 3)
    np.random.seed(1)
    torch.manual_seed(1)
    assert acceptance(several(3), 3) == first
    assert acceptance(several(4), 3) != first


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    """300 experiments of 30 samples of 20 draws at rates that vary by sample (mean 0.6): 95 % within 88..99 %."""
    source = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        rates = source.uniform(0.3, 0.9, size=30)
        sums = np.stack([source.binomial(20, rates), np.full(30, 20)], axis=1)
        found = bootstrap.estimate(sums, bootstrap.ratio(0, 1), 600)
        covered += found.low <= 0.6 <= found.high
    assert 0.88 <= covered / 300 <= 0.99


def test_an_interval_is_over_samples_not_tokens():
    """Ten samples all right or all wrong: as wide as ten coin throws, not as a thousand."""
    sums = np.array([[100, 100]] * 5 + [[0, 100]] * 5)
    found = bootstrap.estimate(sums, bootstrap.ratio(0, 1), 1000)
    assert found.high - found.low > 0.4
    assert (found.value, found.count) == (0.5, 1000)


def test_nothing_counted_is_not_a_number():
    """No samples, or a denominator of zero: NaN, never a rate."""
    assert np.isnan(bootstrap.estimate(np.zeros((0, 2)), bootstrap.ratio(0, 1), 0).value)
    assert np.isnan(bootstrap.estimate(np.zeros((3, 2)), bootstrap.ratio(0, 1), 0).value)


def test_no_starts_have_no_length():
    """A rollout without starts knows no acceptance length, along the walk or over all starts."""
    empty = toys.hand_rollout(NINE)
    empty = Rollout(
        "toy", *(getattr(empty, f)[:0] for f in ("starts", "turns", "recorded", "predicted", "hit", "logprob", "valid"))
    )
    result = acceptance([empty], 3)
    assert np.isnan(result.walk.length.value)
    assert np.isnan(result.all_starts.length.value)


def test_one_sample_has_no_interval():
    """A difference on a single sample cannot be told from zero."""
    first, second = toys.hand_rollout([[1, 0, 0]] * 9), toys.hand_rollout([[0, 0, 0]] * 9)
    difference = length_difference([first], [second], 3)
    assert difference.value == 1
    assert not difference.excludes_zero
