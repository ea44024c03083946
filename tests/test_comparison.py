"""Two dumps of the same tokens: rounding is silent, and each planted difference is named with its price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from bundled import CASE, living_target

from eagle3lib import Wiring, load_case
from eagle3lib.acceptance import acceptance
from eagle3lib.bootstrap import Estimate
from eagle3lib.checks.comparison import ROUNDING, check_comparison
from eagle3lib.comparison import WAITING, Comparison, Cost, Pair, Unpaired, acceptance_cost, compare, paired
from eagle3lib.findings import Severity
from eagle3lib.investigation import Investigation
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample

TRAINED = Wiring((0, 3, 16))


@pytest.fixture(scope="module")
def inv() -> Investigation:
    return Investigation(load_case(CASE), "cpu")


def samples_of(inv: Investigation, name: str, limit: int | None = None) -> list[Sample]:
    return list(inv.open(next(s for s in inv.case.dumps if s.name == name)))[:limit]


@pytest.fixture(scope="module")
def five(inv: Investigation) -> list[Sample]:
    return samples_of(inv, "five", 4)


def rewritten(samples: list[Sample], change: Callable[[int, torch.Tensor], torch.Tensor]) -> list[Sample]:
    """Every state changed by its boundary."""
    return [replace(s, states={b: change(b, h) for b, h in s.states.items()}) for s in samples]


def noise(state: torch.Tensor, size: float, seed: int = 0) -> torch.Tensor:
    """Gaussian noise of a share of each row's norm."""
    drawn = torch.randn(state.shape, generator=toys.generator(seed))
    return state.float() + size * state.float().norm(dim=-1, keepdim=True) / state.shape[-1] ** 0.5 * drawn


def compared(first: list[Sample], second: list[Sample]) -> Comparison:
    return compare(paired(iter(first), iter(second)))


def codes(first: list[Sample], second: list[Sample], cost: Cost | None = None) -> list[tuple[str, str]]:
    return [(f.code, f.severity.value) for f in check_comparison("first", "second", compared(first, second), cost)]


def test_a_dump_agrees_with_itself_and_with_its_rounding(five) -> None:
    assert codes(five, five) == [("dump.states_agree", "ok")]
    rounded = rewritten(five, lambda b, h: (h.float() * 1.003).bfloat16())
    assert codes(five, rounded) == [("dump.states_agree", "ok")]


def test_measures_against_sums_by_hand(five) -> None:
    second = rewritten(five, lambda b, h: noise(h, 0.1))
    found = {s.boundary: s for s in compared(five, second).states}
    a, b = (torch.cat([s.states[16].double() for s in dump]) for dump in (five, second))
    assert found[16].relative == pytest.approx(float(((b - a).norm(dim=-1) / a.norm(dim=-1)).mean()), rel=1e-4)
    assert found[16].largest == pytest.approx(float((b - a).abs().max()), rel=1e-4)
    assert found[16].norm_ratio == pytest.approx(float((b.norm(dim=-1) / a.norm(dim=-1)).log().mean().exp()), rel=1e-4)
    assert found[16].cosine == pytest.approx(float(torch.cosine_similarity(a, b, dim=-1).mean()), rel=1e-4)


def test_a_scaled_boundary_is_named(five) -> None:
    second = rewritten(five, lambda b, h: h * 2 if b == 16 else h)
    (found,) = check_comparison("first", "second", compared(five, second))
    assert (found.code, found.severity) == ("dump.compared_scaled", Severity.FAULT)
    assert "B(16) 2 times" in found.title


def test_a_permuted_pair_is_named(five) -> None:
    second = [replace(s, states=dict(s.states) | {3: s.states[16], 16: s.states[3]}) for s in five]
    (found,) = check_comparison("first", "second", compared(five, second))
    assert (found.code, found.severity) == ("dump.compared_permuted", Severity.FAULT)
    assert "B(3) is first's B(16), B(16) is first's B(3)" in found.title


def test_an_id_off_by_one_is_named_against_a_dump_of_every_boundary(inv: Investigation) -> None:
    every = samples_of(inv, "every")
    second = [replace(s, states={0: s.states[0]} | {b: s.states[b + 1] for b in (3, 16, 28)}) for s in every]
    (found,) = check_comparison("every", "second", compared(every, second))
    assert (found.code, found.severity) == ("dump.compared_shifted", Severity.FAULT)
    assert "off by +1" in found.title
    assert "B(16) is every's B(17)" in found.title


def test_an_id_off_by_one_is_found_where_deeper_states_agree(inv: Investigation) -> None:
    """Without every boundary nothing names the true id, but noise would be passed on to the last state."""
    every = samples_of(inv, "every")
    first, second = (
        [replace(s, states={b: s.states[t] for b, t in {0: 0, 3: 3, 16: at, 30: 30}.items()}) for s in every]
        for at in (16, 17)
    )
    (found,) = check_comparison("first", "second", compared(first, second))
    assert (found.code, found.severity) == ("dump.compared_other_state", Severity.FAULT)
    assert "B(16)" in found.title
    assert "B(3)" not in found.title


def test_noise_that_grows_with_depth_is_a_note_without_its_price_and_a_fault_with_a_loss(inv, five) -> None:
    second = rewritten(five, lambda b, h: noise(h, 1.5 * b / 30, b))
    assert codes(five, second) == [("dump.compared_noise", "note")]
    cost = acceptance_cost(inv.draft, paired(iter(five), iter(second)), TRAINED, 2)
    (found,) = check_comparison("first", "second", compared(five, second), cost)
    assert cost.lost.low > 0
    assert (found.code, found.severity) == ("dump.compared_noise", Severity.FAULT)
    assert f"to {compared(five, second).states[-1].relative:.1%} at B(30)" in found.title
    assert found.evidence["lost"] == [cost.lost.value, cost.lost.low, cost.lost.high]


def test_cost_is_the_difference_of_two_acceptances(inv: Investigation, five) -> None:
    few, second = five[:2], rewritten(five[:2], lambda b, h: noise(h, 0.5, b))
    cost = acceptance_cost(inv.draft, paired(iter(few), iter(second)), TRAINED, 2)
    lengths = [
        acceptance([rollout(inv.draft, s, TRAINED, 2) for s in dump], 2).walk.length.value for dump in (few, second)
    ]
    assert cost.lost.value == pytest.approx(lengths[0] - lengths[1], abs=1e-9)
    assert 0 < cost.agreement < 1


def test_no_loss_leaves_a_note() -> None:
    sample = toys.make_sample()
    second = [replace(sample, states={b: noise(h, 0.05 * b) for b, h in sample.states.items()})]
    cost = Cost(4, Estimate(0.01, -0.02, 0.04, 50), 0.98)
    (found,) = check_comparison("a", "b", compared([sample], second), cost)
    assert (found.code, found.severity) == ("dump.compared_noise", Severity.NOTE)
    assert "includes zero" in found.meaning


def test_samples_are_paired_by_tokens_in_any_order_and_cut_to_the_first_difference(five) -> None:
    """The second dump is in another order, under other names, and two answers go on differently."""
    changed = five[0].token_ids.clone()
    changed[150:] += 1
    second = [replace(five[2], name="x"), replace(five[0], name="y", token_ids=changed), replace(five[1], name="z")]
    pairs = list(paired(iter(five[:3]), iter(second)))
    assert all(isinstance(p, Pair) for p in pairs)
    by_name = {p.first.name: p for p in pairs}
    assert set(by_name) == {s.name for s in five[:3]}
    assert len(by_name[five[0].name].second.token_ids) == 150
    assert len(by_name[five[0].name].second.states[16]) == 150
    for sample in five[1:3]:
        torch.testing.assert_close(by_name[sample.name].second.states[16], sample.states[16])


def test_other_tokens_are_named_at_the_first_difference(five) -> None:
    other = five[0].token_ids.clone()
    other[20] += 7  # in the prompt
    second = [replace(five[0], token_ids=other, name="other")]
    (lost,) = paired(iter(five[:1]), iter(second))
    assert lost == Unpaired(five[0].name, "other", 20, int(five[0].token_ids[20]), int(other[20]))
    (found,) = check_comparison("first", "second", compared(five[:1], second))
    assert (found.code, found.severity) == ("dump.tokens_differ", Severity.FAULT)
    assert "at token 20" in found.title


def test_waiting_samples_are_bounded() -> None:
    """Samples without partners are given up one by one, not held."""
    first = (toys.make_sample(i, name=f"a{i}") for i in range(60))
    second = (toys.make_sample(1000 + i, name=f"b{i}") for i in range(60))
    stream = paired(first, second)
    next(stream)  # given up long before the end
    assert next(first).name == f"a{WAITING + 1}"
    lost = list(stream)
    assert len(lost) == 60 - 2
    assert all(isinstance(item, Unpaired) for item in lost)
    assert compare(lost).states == ()


def test_rows_that_are_not_finite_or_zero_are_left_out(five) -> None:
    second = rewritten(five[:1], lambda b, h: h.float().clone())
    second[0].states[16][3] = torch.nan
    second[0].states[16][4] = 0
    assert codes(five[:1], second) == [("dump.states_agree", "ok")]


@pytest.mark.slow
def test_a_target_run_in_bfloat16_and_one_with_int4_weights(inv: Investigation, five) -> None:
    """The bundled target again: in bfloat16, and with its weights rounded to 4 bits in groups of 32."""
    import copy

    target = living_target()
    sample, whole = five[1], target.model
    cut = {b: h[:64] for b, h in sample.states.items()}
    sample = replace(sample, token_ids=sample.token_ids[:64], loss_mask=sample.loss_mask[:64], states=cut)

    def states_of(model) -> list[Sample]:
        target.model = model
        states, _ = target.prefill(sample.token_ids, (0, 3, 16, 28, 30))
        return [replace(sample, states={b: h.float() for b, h in states.items()})]

    def round_to_4_bits(weight: torch.Tensor) -> torch.Tensor:
        groups = weight.reshape(-1, 32)
        scale = groups.abs().amax(1, keepdim=True).clamp_min(1e-8) / 7
        return ((groups / scale).round().clamp(-8, 7) * scale).reshape(weight.shape)

    try:
        exact = states_of(whole)
        assert codes([sample], exact) == [("dump.states_agree", "ok")]
        narrow = compared(exact, states_of(copy.deepcopy(whole).bfloat16()))
        rough = copy.deepcopy(whole)
        with torch.no_grad():
            for layer in rough.model.layers:
                for module in layer.modules():
                    if isinstance(module, torch.nn.Linear):
                        module.weight.copy_(round_to_4_bits(module.weight))
        quantised = compared(exact, states_of(rough))
    finally:
        target.model = whole
    for found in (narrow, quantised):
        assert all(s.nearest == s.boundary for s in found.states)
        assert {f.code for f in check_comparison("exact", "other", found)} == {"dump.compared_noise"}
    narrow_by, rough_by = (np.array([s.relative for s in found.states]) for found in (narrow, quantised))
    assert narrow_by[0] < ROUNDING
    assert (rough_by[1:] > narrow_by[1:]).all()


def test_the_figure_shows_the_differences(five) -> None:
    from eagle3lib import plots

    found = compared(five, rewritten(five, lambda b, h: noise(h, 0.1 * b)))
    figure = plots.state_differences(found, "Noise grows with depth")
    left, right = figure.axes
    np.testing.assert_allclose(left.lines[0].get_ydata(), [100 * s.relative for s in found.states])
    np.testing.assert_allclose(right.lines[1].get_ydata(), [s.norm_ratio for s in found.states])
