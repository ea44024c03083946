"""What a server said against the replay: each shape of difference is planted and named, agreement is silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import served_lines as lines
from replayed import OWN, STEPS, chains, conditionals, log_of, replayed_case

from eagle3lib.acceptance import acceptance
from eagle3lib.boundaries import Wiring
from eagle3lib.checks.compared import check_compared
from eagle3lib.checks.hypotheses import check_served_numbers
from eagle3lib.ecosystems import ENGINES
from eagle3lib.findings import Finding, Severity
from eagle3lib.printed import printed
from eagle3lib.served_answer import Held, held, what_the_engine_does
from eagle3lib.served_comparison import server_rates
from eagle3lib.served_numbers import of_length, of_log
from eagle3lib.served_settings import Replays, round_of
from eagle3lib.serving import read_served


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Replays:
    return replayed_case(tmp_path_factory.mktemp("draft"))


def said(folder: Path, replays: Replays, rates: Sequence[float], **drawn: int) -> tuple[Finding, Held]:
    answer = held(of_log(log_of(folder, rates, **drawn)), None, replays, STEPS, STEPS)
    assert answer.found, answer.why
    return check_compared(answer.found), answer


def test_agreement_is_ok_and_nothing_else(tmp_path, case):
    """For most draws of a server that does as the replay does: the distance's level is 95 %."""
    codes = [said(tmp_path, case, conditionals(case), seed=seed)[0].code for seed in range(10)]
    assert codes.count("served.explained") >= 9


def test_the_search_is_not_begun_where_the_numbers_are_explained(tmp_path, case):
    _, answer = said(tmp_path, case, conditionals(case))
    assert answer.found.kind == "agrees"
    assert what_the_engine_does(answer.found, case, None) is None


def test_numbers_of_another_replayed_wiring_name_it(tmp_path, case):
    finding, answer = said(tmp_path, case, conditionals(case, "trained"))
    assert (finding.code, finding.severity) == ("served.other_wiring", Severity.RISK)
    assert finding.evidence["explained_by"] == ["trained"]
    assert what_the_engine_does(answer.found, case, None) is None


def test_a_fault_of_the_loop_is_named_by_its_shape(tmp_path, case):
    """The first position agrees, the others are accepted half as often."""
    rates = conditionals(case) * [1, 0.5, 0.5]
    finding, _ = said(tmp_path, case, rates)
    assert (finding.code, finding.severity) == ("served.loop", Severity.FAULT)
    assert finding.evidence["ratios"][0] == pytest.approx(1, abs=0.1)
    assert finding.evidence["ratios"][1] == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize(("factor", "severity"), [(0.7, Severity.FAULT), (1.3, Severity.RISK)])
def test_one_factor_at_all_positions_is_other_text(factor, severity, tmp_path, case):
    finding, _ = said(tmp_path, case, np.minimum(conditionals(case) * factor, 0.95))
    assert (finding.code, finding.severity) == ("served.other_text", severity)
    assert finding.evidence["factor"][0] == pytest.approx(factor, abs=0.12)


def test_settings_explain_other_text(tmp_path, case):
    """A quantised target and a temperature that requests choose are named where positions differ by one factor."""
    told = ENGINES["vllm"].speculation(
        "vllm serve m --quantization fp8 --speculative-config"
        f' \'{{"method": "eagle3", "model": "d", "num_speculative_tokens": {STEPS}}}\''
    )
    answer = held(of_log(log_of(tmp_path, conditionals(case) * 0.7)), told, case, STEPS, STEPS)
    finding = check_compared(answer.found, answer.told)
    assert finding.code == "served.other_text"
    assert "served quantised" in finding.meaning
    assert "requests choose their temperature" in finding.meaning


def test_neither_shape_is_left_unexplained(tmp_path, case):
    """First position half as often, the last more often than in the replay."""
    rates = conditionals(case) * [0.4, 1, 1.4]
    finding, _ = said(tmp_path, case, np.minimum(rates, 0.98), n=8000)
    assert (finding.code, finding.severity) == ("served.unexplained", Severity.FAULT)


def test_long_responses_that_lose_are_the_context(tmp_path, case):
    """Responses of the replay's length accept as it does, longer ones half as much."""
    rates, longest = conditionals(case), case.longest
    rng = np.random.default_rng(0)
    text = []
    for task in range(60):
        long = task % 2
        drawn = rng.random((400 if long else longest // 3, STEPS)) < rates * (0.5 if long else 1)
        text += lines.llama_rounds(drawn.cumprod(1).sum(1), task)
    (tmp_path / "server.log").write_text("\n".join(text) + "\n")
    answer = held(of_log(read_served(tmp_path / "server.log")), None, case, STEPS, STEPS)
    finding = check_compared(answer.found)
    assert (finding.code, finding.severity) == ("served.long_lose", Severity.FAULT)
    assert finding.evidence["long_less_short"][2] < 0


def test_few_rounds_cannot_tell_and_say_how_many_would(tmp_path, case):
    """So many rounds then do tell."""
    finding, answer = said(tmp_path, case, conditionals(case), n=16, requests=2, seed=3)
    assert (finding.code, finding.severity) == ("served.too_few_rounds", Severity.NOTE)
    assert finding.title.startswith("Cannot tell")
    needed = answer.found.rounds_to_tell
    assert 16 < needed < 5000
    assert f"{needed:,.0f} rounds" in finding.remedy
    more = [said(tmp_path, case, conditionals(case), n=round(1.5 * needed), requests=2, seed=s)[1] for s in range(5)]
    assert all(answer.found.kind != "cannot tell" for answer in more)


@pytest.mark.parametrize(
    ("does", "family"),
    [(Wiring((2, 3, 5)), "shifted ids"), (replace(OWN, norm_output=True), "feedback")],
    ids=["shifted", "feedback"],
)
def test_what_the_engine_does_is_searched_where_no_replay_explains_it(does, family, tmp_path, case):
    """The planted pass is named, or said to explain the numbers too."""
    few = Replays(case.draft, {"served": OWN}, case.samples[:8], {"served": case.rollouts["served"][:8]}, 0)
    rates = server_rates(chains(case.draft, few.samples, does), STEPS, True).conditional
    answer = held(of_log(log_of(tmp_path, [e.value for e in rates])), None, few, STEPS, STEPS)
    assert answer.found.kind in ("loop", "one factor", "differs", "context")
    outcome = what_the_engine_does(answer.found, few, None)
    (change,) = outcome.changes
    assert family in {change.hypothesis.family, *(tie.hypothesis.family for tie in change.ties)}
    assert check_served_numbers(outcome, answer.numbers.rates)[0].code == "served.engine_does"


def test_a_printed_length_is_one_more_reading(case):
    """It has no interval of its own: the replay's alone decides."""
    rates = server_rates(case.rollouts["served"], STEPS, True).length
    for length, code in ((rates.value, "served.explained"), (rates.low - 0.3, "served.unexplained")):
        answer = held(of_length(length, "vLLM"), None, case, STEPS, STEPS)
        assert check_compared(answer.found).code == code


def test_counts_are_those_that_systems_print(case):
    """The replay counted as a server counts is what each system's own arithmetic gives of the same rounds."""
    run = case.rollouts["served"]
    theirs = {(p.system, p.name): p.value for p in printed(run, STEPS)}
    rates = server_rates(run, STEPS, True)
    assert rates.length.value == pytest.approx(theirs["vLLM", "Mean acceptance length"])
    assert server_rates(run, STEPS, True, "SGLang").length.value == pytest.approx(theirs["SGLang", "accept len"])
    assert [e.value for e in rates.survival] == pytest.approx(theirs["vLLM", "Per-position acceptance rate"])
    walk = acceptance(run, STEPS).walk
    apart = server_rates(run, STEPS, False)
    assert apart.length.value == pytest.approx(walk.length.value)
    assert (apart.length.low, apart.length.high) == pytest.approx((walk.length.low, walk.length.high))
    assert [e.numbers for e in apart.conditional] == [pytest.approx(e.numbers) for e in walk.conditional]


def test_a_tree_is_held_against_a_tree(tmp_path, case):
    """SGLang's line of a tree that the replay grew itself agrees, and a chain's numbers do not pass for it."""
    text = (
        "python -m sglang.launch_server --model m --speculative-algorithm EAGLE3 --speculative-draft-model-path d"
        f" --speculative-num-steps {STEPS} --speculative-eagle-topk 2 --speculative-num-draft-tokens 5"
    )
    told = ENGINES["sglang"].speculation(text)
    trees = replace(case, tree_samples=8, _rates={})
    numbers = of_length(1.5, "SGLang")
    shape = round_of(numbers, told, STEPS, STEPS)
    assert (shape.topk, shape.levels, shape.verified) == (2, STEPS, 5)
    grown = trees.rates(shape, numbers)["served"].length
    answer = held(of_length(grown.value, "SGLang"), told, trees, STEPS, STEPS)
    assert answer.found.tree
    assert check_compared(answer.found).code == "served.explained"
    assert held(numbers, told, replace(case, tree_samples=0, _rates={}), STEPS, STEPS).why.endswith("set tree_samples")
