"""The cost model against published effects of chain depth and batch size; each row of `field-faults.md` is cited."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3lib.batches import Roofline, by_batch, gaining
from eagle3lib.bootstrap import Estimate
from eagle3lib.case import CostPoint, CostSection
from eagle3lib.plans import Shape, best, plan_at, plans
from eagle3lib.roofline import DEVICES, widening
from eagle3lib.speeds import break_even, exact, measured_speeds
from eagle3lib.target_shape import target_cost
from eagle3lib.throughput import fit
from eagle3lib.worked_example import CASE, KIMI, LLAMA

DENSE, SPARSE = target_cost(LLAMA, "Llama-3.1-8B"), target_cost(KIMI, "Kimi-K2.5")
#: Bytes that a step of yuhuili's draft for Llama-3.1-8B reads: its layer and a head of 32,000 tokens, in 16 bits.
DRAFT_BYTES = 2 * (2 * 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336 + 32000 * 4096)


def lengths(survival) -> dict[Shape, Estimate]:
    """AL(K) = 1 + S_1 + ... + S_K of chains, without an interval of note."""
    return {Shape.chain(k): exact(1 + sum(survival[:k])) for k in range(1, len(survival) + 1)}


def server(token_ms: float, fixed: float, a_step: float):
    """The model of a server whose chain rounds take fixed + a_step · K milliseconds, as two points say it."""
    points = [
        CostPoint(steps=k, topk=1, tokens_per_second=1e3 / (fixed + a_step * k), acceptance_length=1) for k in (1, 6)
    ]
    return fit(measured_speeds(CostSection(baseline=1e3 / token_ms, points=points), None))


def test_wrong_layers_cost_speed_and_the_right_ones_pay():
    """Row B1, vllm#50170: AL 1.036 served at 0.70 to 0.79 times the speed; with its own layers the draft has 2.77."""
    for ratio in (0.70, 0.79):
        point = CostPoint(steps=3, topk=1, tokens_per_second=100 * ratio, acceptance_length=1.036)
        off, served = measured_speeds(CostSection(baseline=100, points=[point]), None)
        needed = break_even(served.round_ms, off.round_ms).value
        assert 1.3 < needed < 1.5
        assert 1.036 < needed < 2.77
        (plan,) = [p for p in plans(fit([off, served]), {Shape.chain(3): exact(2.77)}) if p.shape.steps]
        assert 1.8 < plan.speed.value / 100 < 2.2


def test_a_roofline_bounds_what_was_measured():
    """Section 3, vllm#16937: 133 tokens/s on an H100, 220 with K = 2; AL(2) = 1 + .77 + .55 by vllm#18909."""
    roofline = Roofline(DENSE, DEVICES["H100"])
    assert 1e3 / 133 * 0.5 < roofline.ms(1, 1) < 1e3 / 133 * 0.9  # kernels reach a half to nine tenths
    found = lengths([0.77, 0.55, 0.38, 0.29])
    bare = roofline.model(1e3 / 133, DRAFT_BYTES, 1)
    bound = plan_at(plans(bare, found), Shape.chain(2)).speed.value
    assert 220 < bound < 300
    point = CostPoint(steps=2, topk=1, tokens_per_second=220, acceptance_length=2.32)
    known = measured_speeds(CostSection(points=[point]), None)[0]
    held = roofline.model(1e3 / 133, DRAFT_BYTES, 1, known)
    assert plan_at(plans(held, found), Shape.chain(2)).speed.value == pytest.approx(220)
    left = held.round_ms(0).value.value - held.token_ms.value
    assert 1 < left < 4  # milliseconds of launches and synchronisation that no roofline tells


def test_a_measured_round_below_the_roofline_shrinks_what_is_verified():
    """Kimi-K2.5's 16 nodes in 40.7 ms against 11.1 ms a token: independent experts would take 58 ms to read."""
    alone, _, sixteen = measured_speeds(CASE, None)
    roofline = Roofline(SPARSE, DEVICES["H200"])
    model = roofline.model(alone.round_ms.value, 0.0, 1, sixteen)
    assert widening(SPARSE, DEVICES["H200"], 16) * alone.round_ms.value > sixteen.round_ms.value
    assert model.round_ms(15).value.value == pytest.approx(sixteen.round_ms.value)
    times = [model.round_ms(k).value.value for k in range(16)]
    assert times[0] == pytest.approx(alone.round_ms.value)
    assert all(a < b for a, b in zip(times, times[1:], strict=False))
    assert "as the measured round has it" in model.round_ms(3).why


def test_depth_four_is_best_at_a_quarter_more_speed_where_rounds_have_a_fixed_cost():
    """Section 2, row 7: a sweep of chain depths found 4 best, +25 %. Without the fixed cost a shorter chain is best."""
    found = lengths(np.cumprod([0.75] * 8))  # flat conditional rates, as section 3's rule of thumb has them
    swept = plans(server(10, 16, 2.1), found)
    assert best(swept).shape == Shape.chain(4)
    assert best(swept).speed.value / 100 - 1 == pytest.approx(0.25, abs=0.01)
    assert best(plans(server(10, 10, 2.1), found)).shape.steps < 4


def test_a_draft_that_accepts_more_is_served_longer():
    """Section 3, Llama-4-Maverick, K = 1 to 7: code 1.83 to 3.62, summarisation 1.69 to 2.63."""
    best_lengths = []
    for first, last in ((1.83, 3.62), (1.69, 2.63)):
        start, low, high = first - 1, 0.1, 0.99
        for _ in range(50):  # the flat later rate that gives both ends
            rate = (low + high) / 2
            low, high = (rate, high) if 1 + start * sum(rate**j for j in range(7)) < last else (low, rate)
        found = lengths([start * rate**j for j in range(7)])
        assert found[Shape.chain(7)].value == pytest.approx(last, abs=1e-6)
        best_lengths.append(best(plans(server(10, 12, 1.5), found)).shape.steps)
    code, summaries = best_lengths
    assert code > summaries >= 1


def test_wide_trees_stop_paying_at_batches_where_chains_still_do():
    """Section M, EAGLE#298: 32-token trees slow down at batch > 1. A dense target on an A100; a chain of 4 nodes."""
    a100 = DEVICES["A100"]
    assert widening(DENSE, a100, 32) == widening(DENSE, a100, 4) == widening(DENSE, a100, 4, batch=8) == 1
    assert widening(DENSE, a100, 32, batch=8) > 1.5
    assert widening(DENSE, a100, 32, batch=64) > 6.1  # more than tau of the paper's trees: slower than no draft


def test_speculation_gains_less_with_the_batch_and_is_switched_off():
    """Section 3, the EAGLE-3 paper and SGLang: 2.4 times on an H100 at batch 1 (373 of 158), 1.38 times at batch 64."""
    roofline = Roofline(DENSE, DEVICES["H100"])
    found = {Shape(5, 8, 32): exact(4.68), **lengths([0.77, 0.55, 0.38])}
    models = [roofline.model(None, DRAFT_BYTES, b) for b in (1, 8, 32, 64, 128, 256, 512)]
    trees = [plans(m, found)[1].speed.value / plan_at(plans(m, found), Shape.chain(0)).speed.value for m in models]
    assert all(a >= b for a, b in zip(trees, trees[1:], strict=False))
    assert trees[0] > 373.25 / 158.34  # a roofline is a bound
    assert trees[3] < 1.38  # no tree of that width was served at batch 64
    at = {a.batch: a for a in by_batch(models, found, Shape.chain(3))}
    assert at[64].gain > 0.38  # chains are what is left
    assert at[1].gain >= at[64].gain > at[512].gain == 0
    assert at[512].best.shape.steps == 0
    assert gaining(list(at.values())) == "Speculation gains at batch 1, 8, 32, 64, 128, nothing at 256, 512"


@pytest.mark.parametrize(
    ("batch", "length", "gained", "row"),
    [
        (8, 3.490, 1.80, "AQ-MedAI Kimi-K2-Instruct, Math500, steps 3, topk 1, draft 4, HF card"),
        (16, 2.95, 1.91, "lightseekorg Kimi-K2.7-coder 3.1, rag, 1-3-4, concurrency 16, tokenspeed#795"),
        (16, 2.26, 1.36, "the same, roleplay"),
    ],
)
def test_independent_experts_overestimate_a_sparse_target_s_verification(batch, length, gained, row):
    """Section 3: a round of 4 nodes costs more than the dense target's 1 decoding step, less than independence says."""
    served = length / gained
    assert widening(DENSE, DEVICES["H200"], 4, batch) < served, row
    assert served < widening(SPARSE, DEVICES["H200"], 4, batch), row
