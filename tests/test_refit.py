"""Refitting and tuning: a linear relation comes back, little data leaves the rewired columns, sinks are bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import toys

from eagle3lib import fusion
from eagle3lib import refit as room
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.errors import InputError
from eagle3lib.material import Material
from eagle3lib.normal_equations import bytes_needed, collect
from eagle3lib.refit import goodness, memory_needed, refit
from eagle3lib.rewire import move_columns, rewire
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample
from eagle3lib.target import load_target
from eagle3lib.tune import last_normed, tune

TRAINED, SERVED = Wiring((0, 2, 3)), Wiring((1, 4, 5))
WIDTH = toys.HIDDEN


def made_by(source: Sample, maps: dict[int, torch.Tensor]) -> Sample:
    """The sample with the trained boundaries' states linear in the served ones."""
    served = torch.cat([source.states[b] for b in SERVED.slots], dim=1)
    return replace(source, states={**source.states, **{b: served @ m for b, m in maps.items()}})


def linear_material(n: int, seed: int = 60) -> Material:
    """Prompts of 35 pairs whose trained boundaries are linear in the served ones, so that a perfect `fc` exists."""
    source = toys.generator(9)
    maps = {b: toys.random_weight(3 * WIDTH, WIDTH, source) for b in TRAINED.slots}
    return Material.of([made_by(toys.make_sample(seed + i, name=f"prompt {i}"), maps) for i in range(n)])


def told_by(draft: Draft, material: Material) -> Material:
    """The prompts with the draft's own choices under the training wiring as their tokens, as a recorded answer is."""
    told = []
    for sample in material.trained:
        while not bool((found := rollout(draft, sample, TRAINED, 1)).hit.all()):
            tokens = sample.token_ids.clone()
            tokens[found.starts + 2] = found.predicted[:, 0]
            sample = replace(sample, token_ids=tokens)
        told.append(sample)
    return Material.of(told)


@pytest.mark.parametrize("input_norm", ["none", "slots", "concat"])
def test_an_exactly_linear_relation_is_recovered(input_norm, tmp_path):
    """To 1e-6 of the fused state, at a vanishing penalty; with an input norm, where x is what the norm gives."""
    draft = load_draft(toys.write_draft(tmp_path, input_norm=input_norm), device="cpu")
    material = linear_material(8)
    start = move_columns(draft, TRAINED, SERVED).draft
    truth = toys.random_weight(WIDTH, 3 * WIDTH, toys.generator(4))
    rows = []
    for sample in material.served:
        x = fusion.fc_input(start, sample, SERVED)
        rows.append((x, x @ truth.T, torch.ones(len(x))))
    found = collect(rows, start.weights.fc).solve(1e-12)
    assert float((found - truth).norm() / truth.norm()) < 1e-6


def test_a_refit_finds_the_training_fused_state(draft):
    """States linear in one another: nothing is left of the residual on prompts that were not fitted."""
    fit, validation = linear_material(20), told_by(draft, linear_material(6, seed=90))
    found = refit(draft, TRAINED, SERVED, fit, validation)
    assert found.tried[found.penalty] == min(found.tried.values()) < found.tried[max(room.PENALTIES)]
    assert found.penalty == min(room.PENALTIES), "the least penalty predicts best where the relation is exact"
    assert found.residual < 1e-3
    assert found.scale_ratio == pytest.approx(1, abs=0.02)
    assert (found.tokens, found.inputs) == (20 * 35, 3 * WIDTH)
    assert found.tokens_per_input == pytest.approx(700 / 96)
    residual, _ = goodness(draft, draft, TRAINED, SERVED, validation)
    assert residual > 0.5, "the draft as served must be far off"


def test_a_strong_penalty_leaves_the_rewired_columns(draft):
    """Shrunk towards the rewired columns, not towards zero."""
    served = Wiring((2, 3, 5))
    start = rewire(draft, TRAINED, served).draft
    rows = room._rows(draft, start, TRAINED, served, Material.of([toys.make_sample(70)]))
    equations = collect(rows, start.weights.fc)
    torch.testing.assert_close(equations.solve(1e12).float(), start.weights.fc, rtol=0, atol=1e-6)
    assert float((equations.solve(1e-3) - start.weights.fc).norm() / start.weights.fc.norm()) > 0.1
    assert float(start.weights.fc.norm()) > 1


def test_where_every_trained_boundary_is_served_nothing_moves(draft):
    """The rewired columns leave no residual, so no penalty changes them."""
    served = Wiring((3, 0, 2))
    material = Material.of([toys.make_sample(70 + i, name=str(i)) for i in range(4)])
    found = refit(draft, TRAINED, served, material.chosen([0, 1, 2]), material.chosen([3]))
    torch.testing.assert_close(
        found.draft.weights.fc, rewire(draft, TRAINED, served).draft.weights.fc, atol=1e-5, rtol=0
    )
    assert found.residual < 1e-9


def test_streamed_sums_are_the_dense_solution(draft):
    """Against the ridge written out in channels of one size, by another route: an augmented least-squares problem."""
    start = move_columns(draft, TRAINED, Wiring((2, 4, 5))).draft
    material = linear_material(3)
    rows = list(room._rows(draft, start, TRAINED, Wiring((2, 4, 5)), material))
    x, g, share = (torch.cat([part[i] for part in rows]).double() for i in range(3))
    weighted = share[:, None] * x
    scale = (weighted.square().sum(0) / share.square().sum()).sqrt()
    penalty, n = 0.1, share.square().sum()
    rest = share[:, None] * (g - x @ start.weights.fc.double().T)
    above = torch.cat([weighted / scale, (penalty * n).sqrt() * torch.eye(len(scale), dtype=torch.float64)])
    dense = torch.linalg.lstsq(above, torch.cat([rest, torch.zeros(len(scale), WIDTH, dtype=torch.float64)])).solution
    expected = start.weights.fc.double() + (dense / scale[:, None]).T
    found = collect(rows, start.weights.fc)
    torch.testing.assert_close(found.solve(penalty), expected, rtol=1e-7, atol=1e-9)
    eigenvalues = torch.linalg.eigvalsh((weighted / scale).T @ (weighted / scale) / n) + penalty
    assert found.condition(penalty) == pytest.approx(float(eigenvalues[-1] / eigenvalues[0]), rel=0.1)


def test_rows_of_runaway_norm_are_bounded(draft, monkeypatch):
    """A sink a thousand times the others' norm, whose states follow no relation, does not spoil the fit."""
    clean, validation = linear_material(20), told_by(draft, linear_material(6, seed=90))

    def with_sink(sample: Sample) -> Sample:
        states = {b: state.clone() for b, state in sample.states.items()}
        for state in states.values():
            state[0] = 1000 * torch.randn(WIDTH, generator=toys.generator(len(states)))
        return replace(sample, states=states)

    spoiled = Material.of([with_sink(sample) for sample in clean.served])
    found = refit(draft, TRAINED, SERVED, spoiled, validation)
    assert found.bounded >= len(spoiled.served)
    monkeypatch.setattr(room, "BOUND", 1e9)
    unbounded = refit(draft, TRAINED, SERVED, spoiled, validation)
    assert unbounded.bounded == 0
    assert found.residual < 0.05 < unbounded.residual


def test_values_that_are_not_finite_and_no_rows_are_refused(draft):
    material = linear_material(3)
    material.served[0].states[4][3, 3] = torch.nan
    with pytest.raises(InputError, match="not finite"):
        refit(draft, TRAINED, SERVED, material, material)
    with pytest.raises(InputError, match="found none"):
        collect([], draft.weights.fc)


def test_memory_is_said_before_it_is_taken(draft, monkeypatch):
    """Three slots of 7168: 7.4 GB for the matrix and its factor, the rest for blocks of D x H."""
    assert bytes_needed(21504, 7168) == pytest.approx(8 * (2 * 21504**2 + 3 * 21504 * 7168))
    assert memory_needed(draft) == bytes_needed(96, 32)
    monkeypatch.setattr(room, "free_bytes", lambda device: 1000)
    with pytest.raises(InputError, match=r"96 inputs takes 0.0 GB .* has 0.0 GB free"):
        refit(draft, TRAINED, SERVED, linear_material(1), linear_material(1))


def test_a_bfloat16_checkpoint_is_judged_as_it_is_written(tmp_path):
    tensors = {n: t.bfloat16() if t.is_floating_point() else t for n, t in toys.draft_tensors().items()}
    draft = load_draft(toys.write_draft(tmp_path, tensors), device="cpu")
    fc = refit(draft, TRAINED, SERVED, linear_material(6), linear_material(1, seed=90)).draft.weights.fc
    assert torch.equal(fc, fc.bfloat16().float())


@pytest.mark.parametrize("layers", [1, 2])
def test_tuning_lowers_the_loss_it_follows_and_moves_fc_alone(layers, tmp_path):
    """From columns that are slightly off; the best pass is kept, and where none gains the rung below stays."""
    target = load_target(toys.write_target(tmp_path / "target"))
    tensors = toys.draft_tensors()
    if layers == 2:
        more = {n.replace("layers.0.", "layers.1."): t for n, t in tensors.items() if n.startswith("layers.0.")}
        more = {n: t[:, :WIDTH] if n.split(".")[-2] in ("q_proj", "k_proj", "v_proj") else t for n, t in more.items()}
        tensors |= {n: t.clone() for n, t in more.items() if "hidden_norm" not in n}
    config = {"transformer_layer_config": toys.layer_config() | {"num_hidden_layers": layers}}
    draft = load_draft(toys.write_draft(tmp_path / "draft", tensors, **config), target, device="cpu")
    assert len(draft.weights.layers) == layers
    samples = [toys.make_sample(80 + i, length=60, turns=((4, 58),), name=str(i)) for i in range(5)]
    told = [_told_by_target(sample, target) for sample in samples]
    material = Material.of(told)
    found = tune(draft, TRAINED, target, material.chosen([0, 1, 2, 3]), material.chosen([4]))
    assert found.nats[found.passes] == min(found.nats)
    assert (found.passes > 0) == (not torch.equal(found.draft.weights.fc, draft.weights.fc))
    everything = material.chosen([0, 1, 2, 3])
    on_fitted = tune(draft, TRAINED, target, everything, everything)
    assert on_fitted.nats[-1] < on_fitted.nats[0], "the gradient lowers what it is taken of"
    assert on_fitted.draft.weights.head is draft.weights.head
    assert on_fitted.draft.weights.layers is draft.weights.layers


def _told_by_target(sample: Sample, target) -> Sample:
    """Tokens that are the target's own choices among the draft vocabulary, from its last state."""
    d2t, _ = toys.vocabulary_maps()
    ids = d2t + torch.arange(toys.DRAFT_VOCABULARY)
    chosen = target.score(last_normed(target, sample), sample.token_ids, among=ids).argmax
    tokens = sample.token_ids.clone()
    tokens[1:] = chosen[:-1]
    return replace(sample, token_ids=tokens)


def test_tuning_reads_either_last_state(tmp_path):
    """norm(B(n)) where it is stored, else the norm of B(n); without either it says what is lacking."""
    target = load_target(toys.write_target(tmp_path))
    sample = toys.make_sample()
    normed = target.final_norm(sample.states[toys.N_LAYERS])
    carried = replace(sample, states={0: sample.states[0], "final_normed": normed})
    assert torch.equal(last_normed(target, sample), last_normed(target, carried))
    with pytest.raises(InputError, match=r"B\(5\)"):
        last_normed(target, replace(sample, states={0: sample.states[0]}))
