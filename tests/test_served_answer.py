"""What a case's server said and was told, recorded runs, and the pages that show them: what is compared, what not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toys
from cells import run_cells
from replayed import STEPS, conditionals, log_of, replayed_case

from eagle3lib.case import Case, load_case
from eagle3lib.checks.compared import check_compared, check_recording
from eagle3lib.checks.served import check_not_compared, check_settings
from eagle3lib.ecosystems import ENGINES
from eagle3lib.findings import Severity
from eagle3lib.investigation import Investigation
from eagle3lib.recorded_serving import read_recorded_serving
from eagle3lib.served_answer import held, held_all, recorded
from eagle3lib.served_numbers import of_length, of_log
from eagle3lib.served_settings import Replays, served_round
from eagle3lib.serving import read_served
from eagle3lib.tree_shapes import TreeShape

LLAMA = "-m t -md d --spec-type draft-eagle3 --spec-draft-n-max 3"
DATA = Path(__file__).parent.parent / "data" / "smollm2"


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Replays:
    return replayed_case(tmp_path_factory.mktemp("draft"))


@pytest.mark.parametrize(
    ("engine", "text", "why"),
    [
        ("vllm", '{"method": "eagle3", "model": "d", "num_speculative_tokens": 5}', "3 drafts by the numbers and 5"),
        ("llama_cpp", f"llama-server {LLAMA} --temp 0.8", "at temperature 0.8"),
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


def of_recording(recording, replays):
    return [run.found for run in recorded(recording, replays, 8)]


def test_recorded_runs_are_the_replay_of_their_own_tokens():
    """llama.cpp's recorded rounds agree, and a run whose engine lost its later drafts does not."""
    recording = read_recorded_serving(DATA / "served.json")
    finding = check_recording(of_recording(recording, None))
    assert (finding.code, finding.severity) == ("served.recorded_agrees", Severity.OK)
    greedy = [run for run in recording.runs if run.temperature == 0]
    assert len(finding.evidence) == len(greedy) < len(recording.runs)  # the sampled run is left out
    run = recording.run("K4")
    broken = run.model_copy(
        update={
            "requests": tuple(r.model_copy(update={"engine": tuple(min(a, 1) for a in r.engine)}) for r in run.requests)
        }
    )
    finding = check_recording(of_recording(recording.model_copy(update={"runs": (broken,)}), None))
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


@pytest.mark.parametrize(
    ("served", "shape"),
    [
        ('launch = "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 2'
         ' --speculative-num-draft-tokens 8"', TreeShape.sglang(3, 2, 8)),
        ('launch = "--speculative-algorithm EAGLE3 --speculative-num-steps 1 --speculative-eagle-topk 1'
         ' --speculative-num-draft-tokens 16"\nsteps = 4', TreeShape.chain(1)),
        ("steps = 5", TreeShape.chain(5)),
        ("", None),
    ],
)  # fmt: skip
def test_the_served_round_is_the_launch_s_before_the_case_s(tmp_path, served, shape):
    case = toys.write_case(tmp_path / "case")
    text = case.read_text(encoding="utf-8").partition("[served]")[0]
    case.write_text(f'{text}[served]\nengine = "sglang"\n{served}\n', encoding="utf-8")
    assert served_round(Investigation(load_case(case), "cpu")) == shape
