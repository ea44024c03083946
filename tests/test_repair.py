"""The ladder: a planted wiring is climbed, a rung that suffices ends it, and what is not held is said so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toys

from eagle3lib.acceptance import acceptance
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.errors import InputError
from eagle3lib.material import Material
from eagle3lib.repair import climb
from eagle3lib.rewire import rewire
from eagle3lib.rollout import rollout
from eagle3lib.rungs import recovered_share
from eagle3lib.sample import Sample

TRAINED = Wiring((0, 2, 3))
N_PROMPTS = 36


def sharp_draft(folder: Path) -> Draft:
    """A draft that leans on `fc`, whose first slot is worth nothing."""
    tensors = toys.draft_tensors()
    tensors["fc.weight"][:, : toys.HIDDEN] = 0
    tensors["lm_head.weight"] = 2 * tensors["lm_head.weight"]
    tensors["layers.0.self_attn.o_proj.weight"] = 0.3 * tensors["layers.0.self_attn.o_proj.weight"]
    return load_draft(toys.write_draft(folder, tensors), device="cpu")


def told_by(draft: Draft, sample: Sample) -> Sample:
    """The sample with the draft's own choices under the training wiring as its tokens."""
    while not bool((found := rollout(draft, sample, TRAINED, 1)).hit.all()):
        tokens = sample.token_ids.clone()
        tokens[found.starts + 2] = found.predicted[:, 0]
        sample = replace(sample, token_ids=tokens)
    return sample


def prompt(i: int) -> Sample:
    """B(1) and B(4) are linear in B(2) and B(3) and back; B(5) is of nothing."""
    sample = toys.make_sample(200 + i, length=40, turns=((4, 38),), name=f"prompt {i}")
    states = {b: state / (1 + b) for b, state in sample.states.items()}
    source = toys.generator(9)
    both = torch.cat([states[2], states[3]], dim=1) @ torch.linalg.qr(toys.random_weight(64, 64, source)).Q
    return replace(sample, states={**states, 1: both[:, : toys.HIDDEN], 4: both[:, toys.HIDDEN :]})


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[Draft, list[Material]]:
    """A draft, and prompts that it answered itself as trained, in three sets."""
    draft = sharp_draft(tmp_path_factory.mktemp("ladder"))
    return draft, Material.of([told_by(draft, prompt(i)) for i in range(N_PROMPTS)]).parts((4, 1, 1))


def test_no_prompt_is_in_two_sets():
    """Every prompt once; the same sets at every call; too few prompts are refused."""
    material = Material.of([toys.make_sample(i, name=str(i)) for i in range(11)])
    parts = material.parts((3, 1, 1))
    names = [sample.name for part in parts for sample in part.served]
    assert sorted(names, key=int) == [str(i) for i in range(11)]
    assert names == [sample.name for part in material.parts((3, 1, 1)) for sample in part.served]
    assert [len(part.served) for part in parts] == [7, 2, 2]
    with pytest.raises(InputError, match="at least 3 prompts .* found 2"):
        material.chosen([0, 1]).parts((3, 1, 1))


def test_stacks_that_hold_other_tokens_are_refused():
    with pytest.raises(InputError, match="hold other tokens"):
        Material((toys.make_sample(1),), (toys.make_sample(2),))
    with pytest.raises(InputError, match="2 samples, the training one's 1"):
        Material((toys.make_sample(1),) * 2, (toys.make_sample(1),))


def test_moved_columns_suffice_where_the_zeroed_slot_is_worth_nothing(planted):
    """Served on [2, 3, 5]: all comes back without a fit, and the ladder ends there."""
    draft, sets = planted
    ladder = climb(draft, TRAINED, Wiring((2, 3, 5)), sets, steps=2)
    assert [rung.name for rung in ladder.rungs] == ["served", "rewire"]
    assert ladder.chosen.name == "rewire"
    assert ladder.chosen.gain.low > 0
    assert ladder.chosen.lost.value == 0
    assert ladder.chosen.recovered.value == 1
    assert ladder.chosen.worst == 0
    assert ladder.zeroed[0].value == 0
    assert ladder.fit is None
    assert "rewire brings" in ladder.sentence


def test_a_refit_is_offered_where_nothing_can_be_moved(planted):
    """Served on [1, 4, 5], which hold the trained states in other axes: rewiring is no rung, refitting suffices."""
    draft, sets = planted
    ladder = climb(draft, TRAINED, Wiring((1, 4, 5)), sets, steps=2, margin=0.1)
    assert [rung.name for rung in ladder.rungs] == ["served", "refit"]
    assert (ladder.chosen.name, ladder.chosen.suffices) == ("refit", True)
    assert ladder.chosen.recovered.low > 0.9
    assert ladder.fit.residual < 0.01


def test_a_refit_is_not_offered_where_it_gains_nothing(planted):
    """Above moved columns that are perfect already."""
    draft, sets = planted
    ladder = climb(draft, TRAINED, Wiring((2, 3, 5)), sets, steps=2, every_rung=True)
    assert [(rung.name, rung.offered) for rung in ladder.rungs] == [
        ("served", False), ("rewire", True), ("refit", False),
    ]  # fmt: skip
    assert ladder.chosen.name == "rewire"


def test_a_zeroed_slot_that_matters_is_not_called_sufficient(planted):
    """Served on [2, 5, 5]: B(3) is lost, its slot is worth more than the margin, and no data replaces it."""
    draft, sets = planted
    ladder = climb(draft, TRAINED, Wiring((2, 5, 5)), sets, steps=2)
    rewired = next(rung for rung in ladder.rungs if rung.name == "rewire")
    assert not rewired.suffices
    assert ladder.zeroed[2].low > ladder.margin
    assert [rung.name for rung in ladder.rungs][-1] == "refit"


def test_served_states_that_hold_nothing_are_said_so(planted):
    """Three copies of a boundary that has nothing to do with the trained ones."""
    draft, sets = planted
    ladder = climb(draft, TRAINED, Wiring((5, 5, 5)), sets, steps=2)
    assert ladder.fit.residual > 0.5
    assert ladder.chosen is None
    assert "do not hold what fc needs" in ladder.sentence
    assert "Nothing is written" in ladder.sentence


def test_the_true_wiring_leaves_nothing_to_repair(planted):
    draft, sets = planted
    ladder = climb(draft, TRAINED, TRAINED, sets, steps=2)
    assert ladder.chosen is None
    assert "nothing to repair" in ladder.sentence


def test_the_recovered_share_is_that_of_the_lengths(planted):
    """Against acceptance's own lengths; an undefined share is NaN."""
    draft, (_, _, judged) = planted
    wrong = Wiring((2, 5, 5))
    true, broken = judged.true_rollouts(draft, TRAINED, 2), judged.rollouts(draft, wrong, 2)
    mended = judged.rollouts(rewire(draft, TRAINED, wrong).draft, wrong, 2)
    best, worst, found = (acceptance(r, 2).walk.length.value for r in (true, broken, mended))
    assert recovered_share(true, broken, mended, 2).value == pytest.approx((found - worst) / (best - worst))
    assert np.isnan(recovered_share(true, true, true, 2).value)


def test_a_ladder_is_a_table_and_plain_data(planted):
    draft, sets = planted
    ladder = climb(draft, TRAINED, Wiring((2, 3, 5)), sets, steps=2)
    table = ladder.table()
    assert list(table["rung"]) == ["served", "rewire", "true wiring"]
    assert table["length"].iloc[-1] == ladder.true.walk.length.value
    data = ladder.to_json()
    assert data["chosen"] == "rewire"
    assert data["rungs"]["rewire"]["offered"] is True
    assert len(data["true"]["conditional"]) == 2


def test_a_turned_target_is_refitted_in_its_own_axes(planted):
    """The served stack's states are turned by a rotation: a fit over them gives the training fused state back."""
    draft, sets = planted
    turn = torch.linalg.qr(torch.randn(toys.HIDDEN, toys.HIDDEN, generator=toys.generator(1))).Q

    def turned(material: Material) -> Material:
        served = tuple(replace(s, states={b: h @ turn for b, h in s.states.items()}) for s in material.served)
        return Material(served, material.trained)

    ladder = climb(draft, TRAINED, TRAINED, [turned(part) for part in sets], steps=2, margin=0.1, every_rung=True)
    assert ladder.broken.lost.low > 0
    refitted = next(rung for rung in ladder.rungs if rung.name == "refit")
    assert refitted.suffices
    assert ladder.fit.residual < 0.01
    assert ladder.chosen.name == "refit"
