"""Planted costs are named, healthy ones are not, and what cannot be told says what to measure."""

from __future__ import annotations

import json
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from bundled import CASE
from cells import run_cells
from story import COST_SECTION

from eagle3lib.batches import Roofline, by_batch, gaining
from eagle3lib.bootstrap import Estimate
from eagle3lib.case import Case, CostPoint, CostSection, load_case
from eagle3lib.checks.cost import check_cost
from eagle3lib.errors import InputError
from eagle3lib.findings import Finding, Severity
from eagle3lib.levers import LIMIT, better_rates, levers
from eagle3lib.plans import OFF, Shape, against_break_even, best, plan_at, plans, replayed_lengths, told_apart
from eagle3lib.roofline import Device
from eagle3lib.serving_cost import ServingCost, serving_cost
from eagle3lib.speeds import exact, measured_speeds
from eagle3lib.target_shape import target_cost
from eagle3lib.throughput import CostModel, fit
from eagle3lib.verdict import conclude
from eagle3lib.worked_example import CASE as STORY
from eagle3lib.worked_example import LLAMA

#: Conditional rates of a draft, flat, and its lengths with an interval of 4 % to either side.
RATE = 0.6
LENGTHS = {
    Shape.chain(k): Estimate(v, v * 0.96, v * 1.04, 500)
    for k, v in ((k, sum(RATE**j for j in range(k + 1))) for k in range(1, 9))
}


def model_of(
    fixed: float, step: float, node: float, *, profiled: bool = True, baseline: float | None = 100
) -> CostModel:
    """Rounds of fixed + step · K + node · (K + 1) milliseconds at K = 1 and 6, against 10 ms a token."""
    points = [
        CostPoint(
            steps=k, topk=1, tokens_per_second=2e3 / (fixed + step * k + node * (k + 1)), acceptance_length=2,
            draft_ms=step * k if profiled else None,
        )
        for k in (1, 6)
    ]  # fmt: skip
    return fit(measured_speeds(CostSection(baseline=baseline, points=points), None))


def found_by(model: CostModel | None, steps: int = 3, lengths=LENGTHS) -> dict[str, Finding]:
    made = plans(model, lengths) if model else []
    changes = levers(model, lengths, [RATE] * 8, 0.4) if model else []
    return {f.code: f for f in check_cost(model, made, Shape.chain(steps), "trained", changes)}


def test_a_round_that_pays_is_found_right():
    """9 ms fixed, 0.5 a step and a node: K = 3 of 2.2 tokens in 12.5 ms."""
    found = found_by(model_of(9, 0.5, 0.5))
    assert set(found) == {"cost.pays"}
    assert found["cost.pays"].severity == Severity.OK
    assert found["cost.pays"].evidence["break_even"][0] == pytest.approx(1.25)


def test_a_fixed_cost_is_named():
    """The published case's shape: most of the round is spent before anything is drafted."""
    fault = found_by(model_of(26, 0.4, 0.5))["cost.fixed_cost"]
    assert fault.severity == Severity.FAULT
    assert "26.5 of its 29.2 ms" in fault.title
    assert fault.evidence["root_alone_ms"][0] == pytest.approx(26.5)
    assert fault.evidence["round_ms"][0] == pytest.approx(26 + 1.2 + 2)
    assert fault.remedy.startswith("Switch speculation off: 100.0 tokens/s.")
    assert "the fixed 16.5 ms beyond a token are gone" in fault.remedy
    assert not {"cost.too_long", "cost.too_short"} & set(found_by(model_of(26, 0.4, 0.5)))  # off is better than any


def test_dear_nodes_are_named():
    """Nothing is fixed beyond a token; every node costs half a token, as on a processor without room to spare."""
    fault = found_by(model_of(5, 0.5, 5.0), steps=6)["cost.does_not_pay"]
    assert fault.severity == Severity.FAULT
    assert fault.title.startswith("Speculation does not pay at K = 6: a round costs 4.30 tokens' time and yields 2.4")
    assert "verified node costs half" in fault.remedy


def test_lengths_are_too_long_or_too_short():
    """Cheap steps want a longer draft, dear ones a shorter; the length that is fastest is left alone."""
    long = found_by(model_of(9, 0.5, 2.0), steps=8)
    assert long["cost.too_long"].severity == Severity.RISK
    short = found_by(model_of(20, 0.1, 0.1), steps=1)
    assert "cost.too_short" in short
    assert short["cost.too_short"].evidence["best_steps"] > 1
    model = model_of(9, 0.5, 2.0)
    fastest = best(plans(model, LENGTHS)).shape.steps
    assert not {"cost.too_long", "cost.too_short"} & set(found_by(model, steps=fastest))


def test_what_cannot_be_told_says_what_to_measure():
    assert "cost.baseline" in found_by(None)["cost.no_baseline"].remedy
    assert set(found_by(model_of(9, 0.5, 0.5, baseline=None))) == {"cost.no_baseline"}
    alone = fit(measured_speeds(CostSection(baseline=100, points=STORY.points[:1]), None))
    assert "two draft lengths" in found_by(alone)["cost.no_round"].remedy
    open_ = found_by(model_of(9, 0.5, 0.5, profiled=False))
    assert set(open_) == {"cost.pays", "cost.not_separated"}
    assert "draft_ms and verify_ms" in open_["cost.not_separated"].remedy
    near = found_by(model_of(16, 0.6, 1.0))  # 21.8 ms for 2.18 tokens
    assert near["cost.cannot_tell"].severity == Severity.NOTE
    single = {shape: Estimate(e.value, -np.inf, np.inf, 9) for shape, e in LENGTHS.items()}
    assert "cost.cannot_tell" in found_by(model_of(9, 0.5, 0.5), lengths=single)
    for finding in (*open_.values(), *near.values()):
        assert finding.severity == Severity.OK or "Cannot tell" in finding.title


def of_points(*rounds: tuple[int, float], baseline: float = 100) -> CostModel:
    """Chains of K steps that took so many milliseconds."""
    points = [CostPoint(steps=k, topk=1, tokens_per_second=2e3 / ms, acceptance_length=2) for k, ms in rounds]
    return fit(measured_speeds(CostSection(baseline=baseline, points=points), None))


def test_speeds_that_contradict_each_other_are_no_finding_of_the_draft():
    below = found_by(of_points((3, 6.7)))
    assert below["cost.round_below_token"].severity == Severity.RISK
    assert "6.7 ms" in below["cost.round_below_token"].title
    assert not {"cost.pays", "cost.does_not_pay"} & set(below)
    falling = found_by(of_points((2, 33), (7, 16)))
    assert falling["cost.rounds_fall"].severity == Severity.NOTE
    assert "cost.fixed_cost" not in falling
    assert not {"cost.rounds_fall", "cost.round_below_token"} & set(found_by(of_points((2, 12.1), (7, 12.0))))
    chain = CostPoint(steps=3, topk=1, tokens_per_second=200, acceptance_length=2)
    tree = CostPoint(steps=3, topk=4, draft_tokens=4, tokens_per_second=100, acceptance_length=2)
    beside = fit(measured_speeds(CostSection(baseline=200, points=[tree, chain]), None))
    assert "cost.rounds_fall" not in found_by(beside)  # as many nodes and steps


def test_one_round_does_not_tell_why_it_is_dear():
    dear = found_by(of_points((3, 30)))["cost.does_not_pay"]
    assert "a speed at another draft length would tell" in dear.meaning
    assert "mostly what its nodes cost" in found_by(of_points((1, 15), (6, 45)))["cost.does_not_pay"].meaning
    flat = found_by(of_points((1, 30), (6, 31)))["cost.fixed_cost"]
    assert "No draft" not in flat.meaning  # a round of K = 3 may yield 4 tokens, and costs 3
    assert (
        "No draft of this length earns it" in found_by(of_points((1, 30), (6, 31)), steps=1)["cost.fixed_cost"].meaning
    )
    off = found_by(of_points((3, 30)))["cost.does_not_pay"].remedy
    assert "still" in off  # what is gained most is less than what serving without a draft gives


def test_a_batch_that_was_not_measured_is_said():
    model = fit(measured_speeds(CostSection(baseline=90, batch=4, points=STORY.points), None), 4)
    told = found_by(model)["cost.no_round"]
    assert "at batch 4" in told.title
    assert "4 at once" in told.remedy


def test_levers_change_what_they_say():
    """Each against the same model by hand."""
    model = model_of(12, 1.0, 2.0)
    changed = {lever.name: lever.plan for lever in levers(model, LENGTHS, [RATE] * 8, 0.4)}
    assert changed["nothing changes"].shape == best(plans(model, LENGTHS)).shape

    def took(name: str) -> float:
        return changed[name].round_ms.value

    k = {name: plan.shape.steps for name, plan in changed.items()}
    name = "each further verified node costs half"
    assert took(name) == pytest.approx(14 + (1 + 1.0) * k[name])
    assert took("the fixed 4.0 ms beyond a token are gone") == pytest.approx(
        10 + 3.0 * k["the fixed 4.0 ms beyond a token are gone"]
    )
    assert took("the draft vocabulary is halved") == pytest.approx(
        14 + (0.8 + 2.0) * k["the draft vocabulary is halved"]
    )
    assert took(LIMIT) == pytest.approx(14 + 2.0 * k[LIMIT])
    better = better_rates(LENGTHS, [RATE] * 8)
    assert better[Shape.chain(2)].value == pytest.approx(1 + 0.65 + 0.65**2)
    sure = better_rates({Shape.chain(2): exact(3.0)}, [1.0, 0.98])
    assert sure[Shape.chain(2)].value == pytest.approx(3 * 3 / 2.98)


def test_levers_of_whole_rounds_leave_out_what_is_not_known_apart():
    names = [lever.name for lever in levers(model_of(12, 1.0, 2.0, profiled=False), LENGTHS, [RATE] * 8, 0.4)]
    assert not any("vocabulary" in name or name == LIMIT for name in names)
    assert any("drafted and verified" in name for name in names)


def test_words_about_break_even():
    found = plans(model_of(5, 0.5, 5.0), LENGTHS)
    assert against_break_even(found, exact(10.0)) == "below break-even at K = 2 to K = 8; cannot be told at K = 1"
    assert plan_at(found, Shape.chain(0)).shape == OFF
    assert told_apart(plan_at(found, Shape.chain(0)), plan_at(found, Shape.chain(8)))


def test_a_measured_model_moves_with_the_batch_as_the_roofline_does():
    """Rounds of 64 sequences by hand: 1,000 GB/s and 100 TFLOP/s, no context."""
    target = target_cost(LLAMA, "Llama-3.1-8B")
    roofline, model = Roofline(target, Device("round numbers", 1000, 100)), model_of(9, 0.5, 0.5)
    assert roofline.moved(model, 1) is model
    moved = roofline.moved(model, 64)
    one, wide = target.total * 2 / 1e9, 2 * 64 * 4 * target.total / 1e11  # ms: read once, or multiplied for 4 nodes
    assert wide > one
    assert moved.token_ms.value == pytest.approx(10)
    assert moved.round_ms(6).value.value == pytest.approx(15.5 + 10 * (2 * 64 * 7 * target.total / 1e11 / one - 1))
    at = by_batch([roofline.moved(model, b) for b in (1, 64, 512)], LENGTHS, Shape.chain(3))
    assert at[0].gain > at[1].gain >= at[2].gain == 0
    assert at[1].off.speed.value == pytest.approx(6400)
    assert at[0].ratio.low < 1 + at[0].gain == at[0].ratio.value < at[0].ratio.high


def test_overhead_does_not_grow_with_the_batch():
    """A token of ten times its roofline: all but twice the roofline stays as it is."""
    target = target_cost(LLAMA, "Llama-3.1-8B")
    roofline = Roofline(target, Device("round numbers", 1000 * target.total * 2 / 1e9, 100), context=1000)
    assert 1 < roofline.ms(1, 1) < 1.01  # the weights in a millisecond
    model = fit(measured_speeds(CostSection(baseline=100, points=STORY.points), None))
    moved = roofline.moved(model, 8)
    grown = roofline.ms(1, 8) - roofline.ms(1, 1)
    assert grown > 0
    assert moved.token_ms.value == pytest.approx(10 + 2 * grown)
    bare = roofline.model(10, 0, 1)
    assert bare.token_ms.value == bare.round_ms(0).value.value == pytest.approx(10)
    at = by_batch([roofline.moved(model, b) for b in (1, 8)], {Shape.chain(1): exact(1.01)}, Shape.chain(1))
    assert gaining(at) == "Speculation gains nothing at batch 1, 8: switch it off"


def test_replayed_lengths_come_from_notebook_05():
    rows = [
        {"wiring": "trained", "K": k, "walk": 1.5 + k / 10, "low": 1.5, "high": 2.5, "rounds": 9} for k in range(1, 9)
    ]
    tree = {"steps": 3, "topk": 2, "verified nodes": 8, "gain": 0.2, "gain low": 0.1, "gain high": 0.3}
    tree |= {"walk": 3.0, "low": 2.5, "high": 3.5, "rounds": 4}
    found = replayed_lengths({"acceptance_length": rows, "trees": [tree, tree | {"topk": 1}]})["trained"]
    assert len(found) == 9
    assert found[Shape(3, 2, 8)].value == pytest.approx(2.2 + 0.2)
    assert found[Shape(3, 2, 8)].high == pytest.approx(2.4 + np.hypot(0.5, 0.1))
    lone = replayed_lengths({"acceptance_length": rows[:1], "trees": [tree]})["trained"]
    assert lone[Shape(3, 2, 8)].value == 3.0
    open_ = {"wiring": "trained", "K": 1, "walk": 1.5, "low": None, "high": None, "rounds": 3}
    assert not replayed_lengths({"acceptance_length": [open_]})["trained"][Shape.chain(1)].has_interval
    assert replayed_lengths({}) == {}


WIRING = Finding("wiring.other", Severity.FAULT, "The slots differ", "", "Move them.")
COST = Finding("cost.fixed_cost", Severity.FAULT, "The fixed cost of a round is too high", "", "Mend it.")
DUMP = Finding("dump.values", Severity.FAULT, "States are zero", "", "Dump again.")


def test_the_verdict_names_a_fault_that_stands_beside_the_first():
    """The wiring decides and the cost is named after it; a dump that is not sound leaves nothing to believe."""
    both = conclude([COST, WIRING], (), {}, ())
    assert both.code == "wiring.other"
    assert both.sentence == (
        "The wiring is at fault: the slots differ; besides, the fixed cost of a round is too high. Move them."
    )
    assert "besides" not in conclude([WIRING], (), {}, ()).sentence
    assert "besides" not in conclude([COST, DUMP], (), {}, ()).sentence
    assert conclude([COST], (), {}, ()).sentence.startswith("Speculation costs more than it saves: the fixed cost")
    pays = Finding("cost.pays", Severity.OK, "Speculation pays", "")
    assert conclude([pays], (), {}, ()).sentence.endswith("what is left is data.")


def test_the_verdict_doubts_a_case_that_the_server_s_own_numbers_deny():
    """A wiring fault of the files stands, and that the server accepts as trained is said with it."""
    lengths = {"trained_acceptance_length": [1.6, 1.5, 1.7], "served_acceptance_length": [1.1, 1.0, 1.2]}
    differs = Finding(
        "wiring.served_differs", Severity.FAULT, "T", "", "", {"trained": [0, 3, 16], "served": [3, 16, 28], **lengths}
    )
    for explained, doubted in ((["trained"], True), (["rewired"], False)):
        other = Finding("served.other_wiring", Severity.RISK, "T", "", "", {"explained_by": explained})
        sentence = conclude([differs, other], (), {}, ()).sentence
        assert ("the server's own numbers are those of the trained wiring" in sentence) == doubted


@pytest.fixture(scope="module")
def earlier() -> dict:
    """What notebook 05 leaves, as far as notebook 06 reads it."""
    lengths = [
        {
            "wiring": name,
            "K": s.steps,
            "walk": e.value * less,
            "low": e.low * less,
            "high": e.high * less,
            "rounds": 500,
        }
        for name, less in (("trained", 1.0), ("served", 0.6))
        for s, e in LENGTHS.items()
    ]
    rates = [{"wiring": w, "k": k, "c_k": RATE} for w in ("trained", "served") for k in range(1, 9)]
    return {"acceptance_length": lengths, "rates": rates}


def cost_of(section: CostSection | None, earlier: dict) -> ServingCost | None:
    bundled = load_case(CASE)
    return serving_cost(Case(**(bundled.model_dump() | {"cost": section}), path=bundled.path), earlier)


def test_a_case_s_cost_is_judged_as_trained(earlier):
    assert cost_of(None, earlier) is None
    found = cost_of(STORY, earlier)
    assert found.judged == "trained"
    assert set(found.plans) == {"trained", "served"}
    assert cost_of(STORY, {}).judged is None
    assert cost_of(STORY, {}).levers == []
    assert found.batches(Shape.chain(3)) == []
    assert 0 < found.head_share < 1
    then = {p.shape: p for p in found.explored(0.1, 0.5)}
    assert then[Shape.chain(1)].length.value == pytest.approx(1.7)
    assert then[Shape.chain(1)].round_ms.value == pytest.approx((27.275 + 28.169) / 2, abs=1e-3)


def test_a_roofline_times_what_no_round_was_measured_for(earlier, tmp_path):
    """Without any speed, and held to one measured round: what the roofline leaves of it stays in every round."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    told = {"model": tmp_path / "config.json", "device": "H100", "context": 1000}
    bare = cost_of(CostSection(**told), earlier)
    assert "roofline" in bare.model.round_ms(3).why
    assert bare.model.token_assumed
    point = CostPoint(steps=3, topk=1, tokens_per_second=150, acceptance_length=2.2)
    held = cost_of(CostSection(**told, baseline=130, points=[point]), earlier)
    assert held.model.round_ms(3).value.value == pytest.approx(2.2 / 150 * 1e3)
    assert held.model.token_ms.value == pytest.approx(1e3 / 130)
    assert [at.batch for at in held.batches(Shape.chain(3))][:3] == [1, 2, 4]
    with pytest.raises(InputError, match="H200"):
        cost_of(CostSection(**told | {"device": "abacus"}), earlier)


def test_points_at_two_batches_answer_for_the_batch(earlier):
    points = [
        CostPoint(steps=k, topk=1, batch=b, acceptance_length=2 if k else None, tokens_per_second=speed)
        for b, k, speed in ((1, 0, 100), (1, 1, 150), (1, 4, 140), (8, 0, 700), (8, 1, 600), (8, 4, 300))
    ]
    found = cost_of(CostSection(points=points), earlier).batches(Shape.chain(4))
    assert [at.batch for at in found] == [1, 8]
    assert found[0].gain > 0
    assert found[1].best.shape == OFF


def run(case_text: str, out, earlier: dict | None) -> dict:
    """Notebook 06 on a case, beside what notebook 05 left."""
    case = out / "case.toml"
    head = f'name = "cost"\n[draft]\npath = "{CASE.parent / "draft"}"\n[served]\nengine = "sglang"\nsteps = 3\n'
    case.write_text(head + case_text)
    if earlier is not None:
        (out / "results").mkdir()
        numbers = {"numbers": earlier, "case": {"name": "cost"}}
        (out / "results" / "05_acceptance_length.json").write_text(json.dumps(numbers))
    run_cells("06_serving_cost", case, out, interactive=True)
    plt.close("all")
    return json.loads((out / "results" / "06_serving_cost.json").read_text())


def test_the_notebook_without_a_section_says_what_it_needs(tmp_path):
    found = run("", tmp_path, None)
    assert any("[cost]" in one["needs"] for one in found["unanswered"])
    assert found["findings"] == []
    assert found["numbers"]["example"]["round of 2 draft tokens"] == pytest.approx(28.169, abs=1e-3)
    assert "see what is missing" in found["answer"]


def test_the_notebook_on_the_published_speeds(tmp_path, earlier):
    """The fixed cost is the fault, and the parts of a round are asked for."""
    found = run(COST_SECTION, tmp_path, earlier)
    codes = {f["code"]: f for f in found["findings"]}
    assert codes["cost.fixed_cost"]["severity"] == "fault"
    assert "27.3 of its 30.0 ms" in codes["cost.fixed_cost"]["title"]
    assert "cost.not_separated" in codes
    assert any("profiled" in one["needs"] for one in found["unanswered"])
    assert re.match(r"At K = 3 a round costs 2\.70 tokens' time and yields 2\.18 \(trained\)", found["answer"])
    (tmp_path / "alone").mkdir()
    alone = run(COST_SECTION, tmp_path / "alone", None)
    assert {f["code"] for f in alone["findings"]} == {"cost.no_round"}
    assert "Run notebook 05" in alone["findings"][0]["remedy"]
    assert re.match(r"As measured, against the speed without a draft: .* 0\.\d\d times", alone["answer"])


def test_the_notebook_asks_for_the_shape_of_a_point_that_does_not_tell_it(tmp_path):
    """Steps without topk may be a chain or a tree: the point is shown, and times no round."""
    found = run(COST_SECTION.replace("steps = 1\ntopk = 1", "steps = 3"), tmp_path, None)
    assert any("topk" in one["needs"] and "56.8" in one["question"] for one in found["unanswered"])


def test_the_notebook_by_a_roofline(tmp_path, earlier):
    """Nothing measured: every number says that it is assumed."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    found = run('[cost]\nmodel = "config.json"\ndevice = "H100"\n', tmp_path, earlier)
    assert {row["source"] for row in found["numbers"]["plans"]["trained"]} == {"assumed"}
    assert len(found["numbers"]["batches"]) == 8
    (only,) = found["findings"]
    assert (only["code"], only["severity"]) == ("cost.only_assumed", "note")


def test_the_explorer_of_a_single_round_moves_its_rates_alone():
    """What its nodes cost is not known, so their price changes nothing."""
    model = of_points((3, 30))
    cost = ServingCost(None, (), model, None, {"trained": LENGTHS}, {"trained": [RATE] * 8}, None)
    cheap, dear = (plan_at(cost.explored(0.0, price), Shape.chain(3)).speed.value for price in (0.25, 2.0))
    assert cheap == dear
    assert plan_at(cost.explored(0.1, 1.0), Shape.chain(3)).speed.value > dear
