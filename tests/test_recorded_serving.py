"""The recording of a real engine: what is refused, what its numbers are, and whether it agrees with itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bundled import CASE

from eagle3lib import InputError, load_case
from eagle3lib.acceptance import walk
from eagle3lib.investigation import Investigation
from eagle3lib.recorded_serving import (
    RecordedServing,
    Request,
    ServedRun,
    differing_rounds,
    measured,
    read_recorded_serving,
    recovered_rows,
    repeat_difference,
)
from eagle3lib.rollout import rollout

RECORDED = CASE.parent / "served.json"


def request(engine: list[int], replay: list[int], **fields: object) -> Request:
    plain = {"sample": "five/hs_0", "seed": 0, "as_recorded": 0, "beyond": (1,), "engine_last": 0, "replay_last": 0}
    return Request(engine=tuple(engine), replay=tuple(replay), **(plain | fields))


# The numbers, by hand.


def test_rates_by_hand():
    found = measured([request([0, 2, 1, 0], []), request([2], [])], 2, "engine")
    assert found.histogram == (2, 1, 2)
    assert [s.value for s in found.survival] == [3 / 5, 2 / 5]
    assert found.length.value == 2.0 and found.length.count == 5
    assert found.length.low <= 1.75 and found.length.high >= 3.0  # each request alone


def test_the_two_sides_are_read_apart():
    requests = [request([0, 0], [1, 1, 1])]
    assert measured(requests, 1, "engine").length.value == 1.0
    assert measured(requests, 1, "replay").length.value == 2.0


def test_differing_rounds_are_counted_one_by_one():
    assert differing_rounds([request([0, 2, 1], [0, 2, 1])]) == 0
    assert differing_rounds([request([0, 2, 1], [0, 1, 0, 1])]) == 3
    assert differing_rounds([request([0], [0]), request([1], [])]) == 1


def test_a_last_round_counts_nowhere():
    requests = [request([0], [0], engine_last=2, replay_last=None)]
    assert differing_rounds(requests) == 0
    assert measured(requests, 2, "engine").length.value == 1.0


def run_of(*requests: Request) -> ServedRun:
    counters = {"rounds": 0, "drafted": 0, "accepted": 0, "accepted_by_position": ()}
    return ServedRun(
        name="K4", draft="trained", captured=(0, 3, 16), steps=4, temperature=0, counters=counters, requests=requests
    )


def test_a_repeat_is_compared_where_both_answered():
    first = run_of(request([0, 1], []), request([2], [], sample="five/hs_1"), request([3], [], sample="five/hs_2"))
    assert repeat_difference(first, run_of(*first.requests[:2])) == (0, 0, 2)
    other = run_of(request([0, 1], [], beyond=(2,)), request([2], [], sample="five/hs_1", engine_last=None))
    assert repeat_difference(first, other) == (1, 1, 2)


def test_what_came_back_by_hand():
    """Rounds of 1 and 3 tokens are right, of 1 broken, of 1 and 2 mended: on the prompts that all three answered."""
    runs = {
        "true": run_of(request([0, 2], [1]), request([4], [0], sample="five/hs_1")),
        "broken": run_of(request([0, 0], [4])).model_copy(update={"captured": (2, 15, 27)}),
        "mended": run_of(request([0, 1], [0])).model_copy(update={"captured": (2, 15, 27), "draft": "refitted"}),
    }
    other_steps = runs["broken"].model_copy(update={"steps": 2})
    record = read_recorded_serving(RECORDED).model_copy(update={"runs": (other_steps, *runs.values())})
    (row,) = recovered_rows(record, (0, 3, 16))
    assert (row["true AL"], row["broken AL"], row["mended AL"]) == (2.0, 1.0, 1.5)
    assert (row["came back"], row["prompts"]) == (0.5, 1)
    assert recovered_rows(record, (3, 16, 28)) == []
    alone = record.model_copy(update={"runs": (runs["true"], runs["mended"])})
    assert recovered_rows(alone, (0, 3, 16)) == []


# What is refused.


def test_a_missing_recording_is_told(tmp_path: Path):
    with pytest.raises(InputError, match="nowhere.json, found no such file"):
        read_recorded_serving(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "Expected a JSON object"),
        ('{"engine": "llama.cpp"}', "version: Field required"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, said: str):
    (tmp_path / "served.json").write_text(text)
    with pytest.raises(InputError, match=said):
        read_recorded_serving(tmp_path / "served.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda run: run["requests"][0]["engine"].append(run["steps"] + 1), "rounds? of"),
        (lambda run: run["requests"][0]["replay"].append(-1), "replay"),
        (lambda run: run.update(requests=[]), "requests"),
        (lambda run: run.update(draft="another"), "draft"),
        (lambda run: run.update(steps=10**9), "steps"),
        (lambda run: run.update(extra=1), "extra"),
    ],
)
def test_a_recording_that_is_changed_is_refused(tmp_path: Path, change, said: str):
    data = json.loads(RECORDED.read_text())
    change(data["runs"][0])
    (tmp_path / "served.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=said):
        read_recorded_serving(tmp_path / "served.json")


def test_an_unknown_run_is_told_with_the_known_ones():
    with pytest.raises(InputError, match="no run 'K3'; it has K4"):
        read_recorded_serving(RECORDED).run("K3")


# The bundled recording.


@pytest.fixture(scope="module")
def recording() -> RecordedServing:
    return read_recorded_serving(RECORDED)


def test_rounds_add_up_to_the_engine_s_own_counters(recording: RecordedServing):
    for run in recording.runs:
        made = [list(r.engine) + ([] if r.engine_last is None else [r.engine_last]) for r in run.requests]
        flat = [accepted for of_one in made for accepted in of_one]
        assert len(flat) == run.counters.rounds
        assert sum(flat) == run.counters.accepted
        assert tuple(sum(a > k for a in flat) for k in range(run.steps)) == run.counters.accepted_by_position


def test_rounds_add_up_to_the_tokens(recording: RecordedServing):
    for run in recording.runs:
        for r in run.requests:
            left = r.as_recorded + len(r.beyond) - 1 - sum(a + 1 for a in r.engine)
            assert 1 <= left <= run.steps + 1, (run.name, r.sample)
            assert r.as_recorded + len(r.beyond) <= recording.new_tokens


def run_rates(run: ServedRun) -> tuple[float, float, float]:
    """AL of the engine and of the replay, and the largest difference of a survival."""
    engine, replay = (measured(run.requests, run.steps, side) for side in ("engine", "replay"))
    apart = max(abs(a.value - b.value) for a, b in zip(engine.survival, replay.survival, strict=True))
    return engine.length.value, replay.length.value, apart


def test_the_engine_repeats_itself(recording: RecordedServing):
    assert repeat_difference(recording.run("K4"), recording.run("K4_again"))[:2] == (0, 0)


def test_engine_and_replay_agree(recording: RecordedServing):
    """The aims of the benchmark: AL within 0.5 %, survival within 0.005, and every round but last ones equal."""
    for run in recording.runs:
        assert differing_rounds(run.requests) == 0, run.name
        engine, replay, apart = run_rates(run)
        assert abs(engine / replay - 1) <= 0.005, run.name
        assert apart <= 0.005, run.name


@pytest.mark.parametrize(
    ("name", "low", "high"), [("wrong_K4", 0.0, 0.2), ("astray_K4", 0.0, 0.2), ("rewired_K4", 0.9, 1.1)]
)
def test_the_wrong_wiring_costs_what_the_rewired_draft_recovers(recording: RecordedServing, name, low, high):
    """Accepted drafts a round, as a share of the right wiring's on the same prompts."""
    run, right = recording.run(name), recording.run("K4")
    asked = {r.sample for r in run.requests}
    same = [r for r in right.requests if r.sample in asked]
    assert len(same) == len(run.requests)
    accepted = [measured(requests, 4, "engine").length.value - 1 for requests in (run.requests, same)]
    assert low <= accepted[0] / accepted[1] <= high


def test_at_least_95_percent_of_the_lost_length_comes_back_in_the_engine(recording: RecordedServing):
    """Rewired and refitted for [3, 16, 28], refitted for [2, 15, 27], on held-out prompts: the engine's own rounds."""
    rows = recovered_rows(recording, (0, 3, 16))
    assert {(row["draft"], row["fed"]) for row in rows} == {
        ("rewired", "[3, 16, 28]"),
        ("refitted", "[3, 16, 28]"),
        ("refitted", "[2, 15, 27]"),
    }
    for row in rows:
        assert row["prompts"] >= 12
        assert row["true AL"] - row["broken AL"] > 0.4, row
        assert row["came back"] >= 0.95, row


def test_the_bundled_dumps_forecast_the_engine_s_rounds(recording: RecordedServing):
    """From states in bfloat16, of answers that transformers generated, nearly every round is the engine's."""
    investigation = Investigation(load_case(CASE), "cpu")
    wiring, run = investigation.trained.wiring, recording.run("K4")
    by_name = {r.sample: r for r in run.requests}
    (section,) = [s for s in investigation.sections(wiring.slots) if s.name == "five"]
    forecast = []
    for sample in investigation.open(section, wiring.slots):
        found = by_name[f"five/{Path(sample.name).stem}"]
        assert not found.beyond, "the engine's tokens are not the dump's"
        rounds = walk(rollout(investigation.draft, sample, wiring, run.steps), run.steps)
        forecast.append(found.model_copy(update={"replay": tuple(r.accepted for r in rounds if not r.last)}))
    rounds = sum(len(r.engine) for r in forecast)
    assert rounds > 1000
    assert differing_rounds(forecast) <= 0.01 * rounds
    engine, replay = (measured(forecast, run.steps, side).length.value for side in ("engine", "replay"))
    assert abs(engine / replay - 1) <= 0.005
