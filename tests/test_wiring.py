"""Scores of wirings, and the search for the one that was trained."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toys

from eagle3lib import scorer as scorer_room
from eagle3lib import wiring
from eagle3lib.boundaries import Wiring
from eagle3lib.case import load_case
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.errors import InputError
from eagle3lib.investigation import Investigation
from eagle3lib.kept import Kept
from eagle3lib.own_layout import write_sample
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample
from eagle3lib.search import exhaustive, training_wiring
from eagle3lib.wiring import Scorer, coordinate_search, every_permutation, every_wiring

BOUNDARIES = tuple(range(toys.N_LAYERS + 1))
PLANTED = (4, 1, 3)
INPUT_NORMS = ("none", "slots", "concat")


def confident_draft(folder: Path, input_norm: str = "none") -> Draft:
    """A draft whose choices depend on what it is fed: a larger head, and an `fc` that outweighs the attention."""
    tensors = toys.draft_tensors(input_norm)
    tensors["lm_head.weight"] = 2 * tensors["lm_head.weight"]
    tensors["layers.0.self_attn.o_proj.weight"] = 0.3 * tensors["layers.0.self_attn.o_proj.weight"]
    return load_draft(toys.write_draft(folder, tensors), device="cpu")


def told_by(draft: Draft, sample: Sample, slots: wiring.Slots, **flags: object) -> Sample:
    """The sample with its generated tokens replaced by the draft's own greedy choices under a wiring.

    A choice depends on the tokens before it, so each round settles at least one more.
    """
    while True:
        found = rollout(draft, sample, Wiring(slots, **flags), 1)
        if bool(found.hit.all()):
            return sample
        tokens = sample.token_ids.clone()
        tokens[found.starts + 2] = found.predicted[:, 0]
        sample = replace(sample, token_ids=tokens)


def planted_samples(draft: Draft, n: int = 3) -> list[Sample]:
    """Samples whose states are independent by boundary and of one size, told by the draft under `PLANTED`."""
    samples = []
    for i in range(n):
        sample = toys.make_sample(20 + i, length=40, turns=((4, 20), (24, 39)), name=f"sample {i}")
        states = {b: state / (1 + b) for b, state in sample.states.items()}
        samples.append(told_by(draft, replace(sample, states=states), PLANTED))
    return samples


@pytest.fixture(scope="module", params=INPUT_NORMS)
def planted(request, tmp_path_factory) -> tuple[Draft, list[Sample]]:
    """A draft of each input norm, and samples whose tokens it chose itself under `PLANTED`."""
    draft = confident_draft(tmp_path_factory.mktemp("planted"), request.param)
    return draft, planted_samples(draft)


@pytest.mark.parametrize("input_norm", INPUT_NORMS)
@pytest.mark.parametrize("slots", [toys.SLOTS, (5, 5, 1), (3, 0, 2)])
def test_a_score_is_step_0_of_a_rollout(input_norm, slots, tmp_path):
    """Cross-entropy (1e-5), in-vocabulary count, hits and positions, from sums of kept contributions."""
    draft = load_draft(toys.write_draft(tmp_path, input_norm=input_norm), device="cpu")
    lengths = {5: 36, 6: 34, 7: 40}  # laid end to end inside, so they differ
    samples = [toys.make_sample(seed, length=length, name=str(seed)) for seed, length in lengths.items()]
    score = Scorer(draft, samples).score(slots)
    for sums, sample in zip(score.sums, samples, strict=True):
        found = rollout(draft, sample, Wiring(slots), 1)
        known = found.logprob[:, 0].isfinite()
        assert sums[0] == pytest.approx(float(-found.logprob[known, 0].sum()), rel=1e-5)
        assert sums[1:].tolist() == [int(known.sum()), int(found.hit.sum()), len(found.starts)]
    assert 0 < score.sums[:, 1].sum() < score.sums[:, 3].sum(), "some recorded tokens must lie outside"
    assert score.cross_entropy_value == pytest.approx(score.cross_entropy.value)


def test_flags_are_scored_as_a_rollout_has_them(draft):
    """A flag that the wiring sets changes the score as it changes the pass; 1e-5."""
    sample = toys.make_sample()
    plain = Scorer(draft, [sample, toys.make_sample(9, length=40, name="longer")]).score(toys.SLOTS).cross_entropy_value
    plants = [{"norm_before_residual": True}, {"rope_theta": 7.0}, {"residual_embedding": True}]
    for flags in (*plants, {"token_shift": -1}, {"token_shift": 1}):
        samples = [sample, toys.make_sample(9, length=40, name="longer")]
        score = Scorer(draft, samples, Wiring(toys.SLOTS, **flags)).score(toys.SLOTS)
        found = torch.cat([rollout(draft, s, Wiring(toys.SLOTS, **flags), 1).logprob[:, 0] for s in samples])
        assert score.cross_entropy_value == pytest.approx(float(-found[found.isfinite()].mean()), rel=1e-5)
        assert score.cross_entropy_value != pytest.approx(plain, rel=1e-3)


def test_kept_contributions_do_not_leak_between_candidates(draft):
    """A score is the same whether its candidate comes first or after others."""
    samples = [toys.make_sample()]
    scorer = Scorer(draft, samples)
    first = scorer.score((0, 2, 3)).sums
    for slots in ((3, 2, 0), (2, 2, 2), (0, 2, 5)):
        scorer.score(slots)
    assert (scorer.score((0, 2, 3)).sums == first).all()
    assert (Scorer(draft, samples).score((3, 2, 0)).sums == scorer.score((3, 2, 0)).sums).all()


def test_ranking_every_wiring_finds_the_planted_wiring(planted):
    """All 216 candidates, the best of them in full; the draft is right everywhere, and nothing ties."""
    draft, samples = planted
    ranking = Scorer(draft, samples).rank(every_wiring(BOUNDARIES, 3))
    assert ranking.best.slots == PLANTED
    assert ranking.best.accuracy.value == 1.0
    assert [score.slots for score in ranking.ties] == [PLANTED]
    assert ranking.candidates == 216
    assert all(
        a.cross_entropy_value <= b.cross_entropy_value for a, b in zip(ranking.scores, ranking.scores[1:], strict=False)
    )


@pytest.mark.parametrize("start", [(0, 2, 5), (5, 5, 5), (3, 4, 1)], ids=str)
def test_coordinate_search_finds_the_planted_wiring_from_anywhere(planted, start):
    """From no right slot, from one boundary everywhere, and from the right boundaries in another order."""
    draft, samples = planted
    ranking = coordinate_search(Scorer(draft, samples), BOUNDARIES, [start])
    assert ranking.best.slots == PLANTED
    assert ranking.candidates == 216
    assert ranking.evaluated < 216


def test_permutations_find_the_planted_order(planted):
    """The given order comes first among the candidates, and the planted one first in the ranking."""
    draft, samples = planted
    candidates = every_permutation(tuple(sorted(PLANTED)))
    assert candidates[0] == tuple(sorted(PLANTED))
    assert len(set(candidates)) == 6
    assert Scorer(draft, samples).rank(candidates).best.slots == PLANTED


def test_without_the_planted_boundary_no_candidate_is_right(planted):
    """The same search over boundaries that lack one: its best is far from the planted score, so a miss is seen."""
    draft, samples = planted
    scorer = Scorer(draft, samples)
    without = tuple(b for b in BOUNDARIES if b != PLANTED[0])
    best = coordinate_search(scorer, without, [without[:3]]).best
    excess = best.excess(scorer.score(PLANTED))
    assert excess.low > 0.1
    assert best.accuracy.value < 1.0


@pytest.mark.parametrize(("slot", "search"), [(0, "exhaustive"), (1, "coordinate"), (2, "coordinate")])
def test_boundaries_of_a_dead_slot_tie(slot, search, tmp_path):
    """A slot whose columns are zero: every boundary in it ties with the best, and no other candidate does."""
    draft = confident_draft(tmp_path)
    draft.weights.fc[:, slot * toys.HIDDEN : (slot + 1) * toys.HIDDEN] = 0
    scorer = Scorer(draft, planted_samples(draft))
    if search == "exhaustive":
        ranking = scorer.rank(every_wiring(BOUNDARIES, 3))
    else:
        ranking = coordinate_search(scorer, BOUNDARIES, [(0, 2, 5)])
    assert {score.slots for score in ranking.ties} == {(*PLANTED[:slot], b, *PLANTED[slot + 1 :]) for b in BOUNDARIES}


def test_a_dead_slot_ties_however_many_boundaries_there_are(tmp_path):
    """Twelve boundaries in a dead slot are twelve ties, not the eight that survive the cheap look."""
    draft = confident_draft(tmp_path)
    draft.weights.fc[:, 2 * toys.HIDDEN :] = 0
    many = tuple(range(12))
    samples = []
    for i in range(3):
        sample = toys.make_sample(40 + i, length=50, turns=((4, 48),), boundaries=many, name=f"sample {i}")
        states = {b: state / (1 + b) for b, state in sample.states.items()}
        samples.append(told_by(draft, replace(sample, states=states), PLANTED))
    ranking = coordinate_search(Scorer(draft, samples), many, [PLANTED])
    assert len(ranking.ties) == len(many)


def test_a_look_takes_few_starts_of_the_first_samples(draft, monkeypatch):
    """Every third start, so many of one sample at most, until there are enough; all where there are not so many."""
    samples = [toys.make_sample(seed, name=str(seed)) for seed in range(5)]
    monkeypatch.setattr(scorer_room, "PER_SAMPLE", 4)
    scorer = Scorer(draft, samples)
    assert scorer.score(toys.SLOTS, 9).sums[:, 3].tolist() == [4, 4, 1]
    assert scorer.score(toys.SLOTS, 1000).sums[:, 3].tolist() == [4] * 5
    found = rollout(draft, samples[0], Wiring(toys.SLOTS), 1)
    assert scorer.score(toys.SLOTS, 9).sums[0, 2] == int(found.hit[::3, 0][:4].sum())


@pytest.mark.parametrize("input_norm", INPUT_NORMS)
def test_scores_do_not_depend_on_what_is_kept_or_packed(input_norm, tmp_path, monkeypatch):
    """With no byte kept, and with one sample a pack, sums are those of one pack with everything kept; 1e-5."""
    draft = load_draft(toys.write_draft(tmp_path, input_norm=input_norm), device="cpu")
    samples = [toys.make_sample(seed, length=30 + seed, name=str(seed)) for seed in range(4)]
    samples.insert(1, toys.make_sample(turns=(), name="silent"))
    whole = Scorer(draft, samples)
    block = 40 * toys.HIDDEN * 4
    monkeypatch.setattr(scorer_room, "PACK_BYTES", block)
    small = Scorer(draft, samples, kept=5 * block)
    nothing = Scorer(draft, samples, kept=0)
    for slots in ((0, 2, 3), (5, 5, 1), (0, 2, 3), (4, 2, 1), (3, 2, 1)):
        for positions in (None, 12):
            sums = whole.score(slots, positions).sums
            np.testing.assert_allclose(small.score(slots, positions).sums, sums, rtol=1e-5)
            np.testing.assert_allclose(nothing.score(slots, positions).sums, sums, rtol=1e-5)
    assert nothing.kept_bytes == 0
    assert 0 < small.kept_bytes <= 5 * block < whole.kept_bytes


def test_the_least_recently_used_contribution_goes_first():
    """Under a budget of two."""
    kept, one = Kept(8), (torch.zeros(1),)
    kept.put("a", one), kept.put("b", one), kept.get("a"), kept.put("c", one)
    assert [kept.get(key) is not None for key in "abc"] == [True, False, True]
    kept.put("large", (torch.zeros(3),))
    assert kept.get("large") is None
    assert kept.bytes == 8


def test_samples_are_read_again_and_not_held(draft):
    """States are gone once they are used, a dump's files are opened anew; a generator is refused."""
    alive = weakref.WeakSet()

    class Streamed:
        def __iter__(self):
            for seed in range(3):
                sample = toys.make_sample(seed, name=str(seed))
                alive.update(sample.states.values())
                yield sample

    scorer = Scorer(draft, Streamed())
    held = Scorer(draft, list(Streamed()))
    alive.clear()
    assert (scorer.score(toys.SLOTS).sums == held.score(toys.SLOTS).sums).all()
    gc.collect()
    assert not alive
    with pytest.raises(ValueError, match="not a generator"):
        Scorer(draft, iter([toys.make_sample()])).score(toys.SLOTS)


def test_a_sample_without_a_start_counts_nothing(draft):
    """It neither fails nor moves the score of the others."""
    sample, silent = toys.make_sample(), toys.make_sample(turns=(), name="silent")
    both = Scorer(draft, [sample, silent]).score(toys.SLOTS)
    assert both.sums[1].tolist() == [0, 0, 0, 0]
    assert both.cross_entropy_value == Scorer(draft, [sample]).score(toys.SLOTS).cross_entropy_value


def test_wrong_wirings_are_refused_in_a_sentence(draft):
    """The wrong number of slots, and a boundary that the sample does not hold."""
    scorer = Scorer(draft, [toys.make_sample(boundaries=(0, 2, 3))])
    with pytest.raises(InputError, match="3 slots, 2 boundaries"):
        scorer.score((0, 2))
    with pytest.raises(InputError, match=r"toy holds B\(0\), B\(2\), B\(3\) and not B\(4\)"):
        scorer.score((0, 2, 4))


@pytest.mark.parametrize("input_norm", ["concat", "slots"])
def test_a_norm_that_the_draft_does_not_hold_is_refused(input_norm, draft):
    """As `fusion.fuse` does, in a sentence."""
    with pytest.raises(InputError, match="input norm"):
        Scorer(draft, [toys.make_sample()], Wiring(toys.SLOTS, input_norm=input_norm)).score(toys.SLOTS)


def test_states_of_another_width_are_refused(draft):
    """As `fusion.fuse` does, in a sentence."""
    sample = toys.make_sample()
    wide = replace(sample, states={b: torch.cat([state, state], dim=1) for b, state in sample.states.items()})
    with pytest.raises(InputError, match="width 64"):
        Scorer(draft, [wide]).score(toys.SLOTS)


def test_a_search_heeds_the_flags_that_the_case_states(tmp_path):
    """Told with the halves of the layer's input exchanged: with that flag stated the search finds what was planted, and
    says so with the flag; without it the scores are another pass's."""
    (tmp_path / "draft").mkdir()
    draft = confident_draft(tmp_path / "draft")
    toys.write_target(tmp_path / "target")
    for i in range(3):
        sample = toys.make_sample(20 + i, length=40, turns=((4, 20), (24, 39)), name=f"sample {i}")
        sample = replace(sample, states={b: state / (1 + b) for b, state in sample.states.items()})
        told = told_by(draft, sample, PLANTED, hidden_first=True)
        write_sample(tmp_path / "dump", i, told.token_ids, told.loss_mask, told.states)
    text = (
        '[draft]\npath = "draft"\n[target]\npath = "target"\n[[dumps]]\nname = "d"\npath = "dump"\ntemperature = 0.0\n'
    )
    found = {}
    for name, flags in (("stated", "[training]\nflags = { hidden_first = true }\n"), ("unstated", "")):
        (tmp_path / f"{name}.toml").write_text(text + flags)
        inv = Investigation(load_case(tmp_path / f"{name}.toml"), "cpu")
        found[name] = exhaustive(inv)
        assert exhaustive(inv, most=10).ranking.best.sums.shape[0] == 1, "one sample holds as many tokens"
        assert found[name].wiring(PLANTED).hidden_first is (True if flags else None)
        assert training_wiring(None, found[name]) == found[name].wiring(found[name].ranking.best.slots)
    right = {name: search.scorer.score(PLANTED) for name, search in found.items()}
    assert found["stated"].ranking.best.slots == PLANTED
    assert right["stated"].accuracy.value == 1.0 > right["unstated"].accuracy.value
