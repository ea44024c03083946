"""What a server said against the replay: each shape of difference is planted and named, agreement is silent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import served_lines as lines
import toys
from cells import run_cells
from told import TRUE, confident_draft, random_samples, told_by

from eagle3lib.acceptance import acceptance
from eagle3lib.boundaries import Wiring
from eagle3lib.case import Case, load_case
from eagle3lib.checks.compared import check_compared, check_recording
from eagle3lib.checks.hypotheses import check_served_numbers
from eagle3lib.checks.served import check_not_compared, check_settings
from eagle3lib.ecosystems import ENGINES
from eagle3lib.findings import Finding, Severity
from eagle3lib.printed import printed
from eagle3lib.recorded_serving import read_recorded_serving
from eagle3lib.replay import Rollouts
from eagle3lib.rollout import rollout
from eagle3lib.served_answer import Held, held, held_all, recorded, what_the_engine_does
from eagle3lib.served_comparison import server_rates
from eagle3lib.served_numbers import of_length, of_log
from eagle3lib.served_settings import Replays, round_of
from eagle3lib.serving import read_served

OWN, OTHER, STEPS = Wiring(TRUE), Wiring((2, 3, 5)), 3
LLAMA = "-m t -md d --spec-type draft-eagle3 --spec-draft-n-max 3"
DATA = Path(__file__).parent.parent / "data" / "smollm2"


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Replays:
    """A draft, samples that it told but for a tenth of their tokens, and their replays under two wirings."""
    draft = confident_draft(tmp_path_factory.mktemp("draft"))
    samples = []
    for i, sample in enumerate(random_samples(draft, 16)):
        told = told_by(draft, sample, OWN, STEPS)
        noise = np.random.default_rng(i).random(len(told.token_ids)) < 0.1
        tokens = told.token_ids.clone()
        tokens[noise] = sample.token_ids[noise]
        samples.append(replace(told, token_ids=tokens))
    wirings = {"trained": OWN, "served": OWN}
    own, other = (chains(draft, samples, wiring) for wiring in (OWN, OTHER))
    return Replays(draft, wirings, samples, {"trained": other, "served": own}, 2)


def chains(draft, samples, wiring: Wiring) -> Rollouts:
    return [rollout(draft, sample, wiring, STEPS) for sample in samples]


def conditionals(replays: Replays, name: str = "served") -> np.ndarray:
    """c_1 .. c_K, last rounds counted."""
    return np.array([e.value for e in server_rates(replays.rollouts[name], STEPS, True).conditional])


def log_of(folder: Path, rates: Sequence[float], n: int = 4000, requests: int = 40, seed: int = 0):
    """llama.cpp's lines of so many rounds whose drafts are accepted by these conditional rates."""
    drawn = np.random.default_rng(seed).random((n, len(rates))) < np.array(rates)
    accepted = drawn.cumprod(1).sum(1)
    text = [
        line for task, part in enumerate(np.array_split(accepted, requests)) for line in lines.llama_rounds(part, task)
    ]
    (folder / "server.log").write_text("\n".join(text) + "\n")
    return read_served(folder / "server.log")


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


@pytest.mark.parametrize(
    ("engine", "text", "why"),
    [
        ("vllm", '{"method": "eagle3", "model": "d", "num_speculative_tokens": 5}', "3 drafts by the numbers and 5"),
        (
            "llama_cpp",
            "llama-server -m t -md d --spec-type draft-eagle3 --spec-draft-n-max 3 --temp 0.8",
            "temperature",
        ),
        ("sglang", "python -m sglang.launch_server --model m", "not told to speculate"),
    ],
)
def test_other_rounds_are_not_compared(engine, text, why, tmp_path, case):
    """Another K, another rule, no speculation: said in a sentence, not compared."""
    told = ENGINES[engine].speculation(text)
    answer = held(of_log(log_of(tmp_path, conditionals(case))), told, case, None, STEPS)
    assert answer.found is None
    finding = check_not_compared(answer.numbers, answer.why)
    assert (finding.code, finding.severity) == ("served.not_compared", Severity.NOTE)
    assert why in finding.title


def test_deeper_rounds_than_the_case_says_or_the_replay_has_are_not_compared(tmp_path, case):
    numbers = of_log(log_of(tmp_path, conditionals(case)))
    assert "served.steps = 2" in held(numbers, None, case, 2, STEPS).why
    assert "max_steps = 3" in held(numbers, None, case, None, 2).why
    assert "served.launch" in held(of_length(1.5, ""), None, case, None, STEPS).why


def test_settings_that_tell_of_two_servers_are_named(tmp_path, case):
    """The case's text against a log's own, and a chain's steps against the drafts that its numbers show."""
    three, five = (
        ENGINES["vllm"].speculation(f'{{"method": "eagle3", "model": "d", "num_speculative_tokens": {k}}}')
        for k in (3, 5)
    )
    numbers = of_log(log_of(tmp_path, conditionals(case)))
    (finding,) = check_settings([("served.launch", three), ("server.log", five)], [])
    assert (finding.code, finding.severity) == ("served.settings_disagree", Severity.RISK)
    assert "steps 3 and 5" in finding.title
    (finding,) = check_settings([("served.launch", five)], [numbers])
    assert "rounds of up to 3 drafts" in finding.title
    assert check_settings([("served.launch", three)], [numbers]) == []


def test_positions_that_a_list_leaves_out_or_adds_are_zeros(tmp_path, case):
    """A histogram that ends early, or goes on to the nodes of a tree; drafts beyond the round are another round's."""
    numbers = of_log(log_of(tmp_path, [0.3, 0.5, 0.0]))
    assert numbers.of_depth(5).rates.survival == (*numbers.rates.survival, 0.0, 0.0)
    assert numbers.of_depth(2).rates.survival == numbers.rates.survival[:2]
    assert numbers.of_depth(1) is None
    assert len(numbers.of_depth(5).survival) == 5


def notebook(folder: Path, *text: str, **parameters: object) -> dict:
    """Notebook 05 on a case in this folder."""
    (folder / "case.toml").write_text("\n".join(text))
    run_cells("05_acceptance_length", folder / "case.toml", folder / "out", **parameters)
    return json.loads((folder / "out" / "results" / "05_acceptance_length.json").read_text())


def test_logs_alone_are_read_and_checked(tmp_path):
    """A draft and what a server said: settings and logs are answered, the replay is left open."""
    toys.write_draft(tmp_path / "draft")
    log_of(tmp_path, [0.5, 0.5, 0.5])
    (tmp_path / "other.log").write_text("nothing of this\n")
    launch = f"launch = 'llama-server {LLAMA}'"
    served = ['[served]\nengine = "llama.cpp"', launch, 'logs = ["server.log", "other.log"]']
    record = notebook(tmp_path, '[draft]\npath = "draft"', *served)
    codes = {finding["code"] for finding in record["findings"]}
    assert {"served.log_read", "served.rule"} <= codes
    assert "served.settings_disagree" not in codes
    questions = {item["question"]: item["needs"] for item in record["unanswered"]}
    assert "tells nothing of speculation" in questions["What does other.log say?"]
    assert "greedy dump" in questions["Does the replay explain what the server said?"]


def test_the_notebook_holds_logs_and_asks_nobody_unasked(tmp_path):
    """A log of other acceptance is named; a server's address alone is not contacted."""
    toys.write_draft(tmp_path / "draft")
    toys.write_target(tmp_path / "target")
    stored = (0, 2, 3, 5)
    toys.write_current_dump(tmp_path / "dump", [toys.make_sample(i) for i in range(6)], stored)
    log_of(tmp_path, [0.9, 0.9, 0.9])
    text = ['[draft]\npath = "draft"\n[target]\npath = "target"\n[[dumps]]\nname = "d"\npath = "dump"']
    text += [f"boundaries = {list(stored)}\ntemperature = 0.0"]
    text += ['[served]\nengine = "llama.cpp"\nsteps = 3\nboundaries = [0, 2, 3]', 'logs = ["server.log"]']
    text += ['url = "http://127.0.0.1:9"']
    record = notebook(tmp_path, *text, max_steps=3, tree_samples=0)
    held_codes = {f["code"] for f in record["findings"] if f["evidence"].get("numbers")}
    assert held_codes & {"served.unexplained", "served.other_text"}
    assert not any("running server" in item["question"] for item in record["unanswered"])
    record = notebook(tmp_path, *text, max_steps=3, tree_samples=0, live_prompts=1)
    needs = {item["question"]: item["needs"] for item in record["unanswered"]}
    assert "127.0.0.1:9" in needs["What does the running server say?"]


def test_recorded_runs_are_the_replay_of_their_own_tokens():
    """llama.cpp's recorded rounds agree, and a run whose engine lost its later drafts does not."""
    recording = read_recorded_serving(DATA / "served.json")
    finding = check_recording(recorded(recording, None, 8))
    assert (finding.code, finding.severity) == ("served.recorded_agrees", Severity.OK)
    assert len(finding.evidence) == 6  # the sampled run is left out
    run = recording.run("K4")
    broken = run.model_copy(
        update={
            "requests": tuple(r.model_copy(update={"engine": tuple(min(a, 1) for a in r.engine)}) for r in run.requests)
        }
    )
    finding = check_recording(recorded(recording.model_copy(update={"runs": (broken,)}), None, 8))
    assert (finding.code, finding.severity) == ("served.recorded_differs", Severity.FAULT)


def test_llama_cpp_s_own_counts_are_those_of_the_wiring_that_it_served(tmp_path):
    """Counters of real runs on the bundled case: K4 is the trained wiring's replay, wrong_K4 the served one's."""
    from eagle3lib.investigation import Investigation
    from eagle3lib.replay import replay, replayable

    inv = Investigation(load_case(DATA / "case.toml"), "cpu")
    chosen = replayable(inv, None)
    replays = Replays(inv.draft, chosen.wirings, chosen.samples, replay(inv, chosen, 4), 0)
    recording = read_recorded_serving(DATA / "served.json")
    for name, given in (("K4", {"trained", "rewired"}), ("wrong_K4", {"served"})):
        counters = recording.run(name).counters
        path = tmp_path / f"{name}.prom"
        path.write_text(exposition(counters))
        answer = held(of_log(read_served(path)), None, replays, 4, 4)
        assert set(answer.found.explained_by) == given
        code = "served.explained" if name == "wrong_K4" else "served.other_wiring"
        assert check_compared(answer.found).code == code


def exposition(counters) -> str:
    """What llama-server's /metrics prints of these totals."""
    name = "llamacpp:spec_decode_num_"
    rows = [f"{name}drafts_total {counters.rounds}", f"{name}draft_tokens_total {counters.drafted}",
            f"{name}accepted_tokens_total {counters.accepted}"]  # fmt: skip
    rows += [
        f'{name}accepted_tokens_per_pos_total{{position="{k}"}} {n}'
        for k, n in enumerate(counters.accepted_by_position)
    ]
    return "\n".join(rows) + "\n"


def test_a_case_s_logs_and_length_are_all_held(tmp_path, case):
    log = log_of(tmp_path, conditionals(case))
    served = {"engine": "vllm", "steps": STEPS, "acceptance_length": 1.5}
    whole = Case.model_validate({"name": "c", "draft": {"path": tmp_path}, "served": served})
    answers = held_all(whole, [log], [], case, STEPS)
    assert [a.numbers.label for a in answers] == ["server.log, llama.cpp round line", "served.acceptance_length"]
    assert json.dumps([check_compared(a.found).to_json() for a in answers])
