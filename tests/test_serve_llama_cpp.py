"""The benchmark against llama.cpp without llama.cpp: a recorded exchange, a stand-in server, and the comparison."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys

from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.recorded_serving import Counters, differing_rounds
from eagle3lib.results import PROJECT_ROOT
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample

sys.path.insert(0, str(PROJECT_ROOT / "benchmarks" / "serve_llama_cpp"))  # scripts that import each other

import compare
import serve
import server
from server import Answer, Verification

EXCHANGE = json.loads((Path(__file__).parent / "llama_cpp_exchange.json").read_text(encoding="utf-8"))
STEPS, REPLIES, METRICS = EXCHANGE["steps"], EXCHANGE["replies"], "\n".join(EXCHANGE["metrics"])


def answers() -> list[Answer]:
    return [server.read_answer(reply, "\n".join(reply["log"])) for reply in REPLIES]


# The recorded exchange.


def test_rounds_of_the_log_are_those_of_the_counters():
    counters = server.read_counters(METRICS)
    flat = [r for answer in answers() for r in answer.rounds]
    assert len(flat) == counters.rounds > 10
    assert sum(r.drafted for r in flat) == counters.drafted
    assert sum(r.accepted for r in flat) == counters.accepted > 5
    assert tuple(sum(r.accepted > k for r in flat) for k in range(STEPS)) == counters.accepted_by_position


def test_rounds_add_up_to_the_tokens():
    """One answer ends at the limit and two at the end token."""
    ends = set()
    for answer in answers():
        inner, last = compare.split_last(answer.rounds, len(answer.tokens))
        left = len(answer.tokens) - 1 - sum(a + 1 for a in inner)
        assert 1 <= left <= STEPS + 1
        assert (left == 1) if last is None else left <= last + 1
        ends.add(answer.tokens[-1] == 2)
    assert ends == {True, False}


def test_a_log_that_does_not_add_up_is_refused():
    log = REPLIES[0]["log"]
    with pytest.raises(RuntimeError, match="the log has"):
        server.read_answer(REPLIES[0], "\n".join(log[1:]))
    with pytest.raises(RuntimeError, match="the log has"):
        server.read_answer(REPLIES[0], "\n".join(log + REPLIES[1]["log"]))


def test_a_reply_without_all_tokens_is_refused():
    with pytest.raises(RuntimeError, match="returned"):
        server.read_answer({**REPLIES[0], "tokens": REPLIES[0]["tokens"][1:]}, "\n".join(REPLIES[0]["log"]))


def test_counters_before_the_first_round_are_zero():
    page = "\n".join(f"llamacpp:spec_decode_num_{n}_total 0" for n in ("draft_tokens", "accepted_tokens", "drafts"))
    assert server.read_counters(page) == Counters(rounds=0, drafted=0, accepted=0, accepted_by_position=())


# A stand-in for the binary: it answers over HTTP what was recorded, and logs what was logged.

STAND_IN = """#!{python}
import json, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
exchange = json.loads(open({file!r}).read())
replies = iter(exchange["replies"])
print(" ".join(sys.argv[1:]), flush=True)
class Handler(BaseHTTPRequestHandler):
    def send(self, text):
        self.send_response(200); self.end_headers(); self.wfile.write(text.encode())
    def do_GET(self):
        self.send("\\n".join(exchange["metrics"]) if self.path == "/metrics" else "ok")
    def do_POST(self):
        print("asked", self.rfile.read(int(self.headers["Content-Length"])).decode(), flush=True)
        reply = next(replies)
        half = len(reply["log"]) // 2
        print("\\n".join(reply["log"][:half]), flush=True)
        rest = "\\n".join(reply["log"][half:])
        threading.Timer(0.2, lambda: print(rest, flush=True)).start()  # the log is late, as the engine's
        self.send(json.dumps(reply))
    def log_message(self, *_):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def stand_in(folder: Path, text: str = STAND_IN) -> Path:
    (folder / "exchange.json").write_text(json.dumps(EXCHANGE))
    binary = folder / "llama-server"
    binary.write_text(text.format(python=sys.executable, file=str(folder / "exchange.json")))
    binary.chmod(0o755)
    return binary


def start(folder: Path, text: str = STAND_IN) -> server.Server:
    binary = stand_in(folder, text)
    return server.Server(binary, folder / "target.gguf", folder / "draft.gguf", STEPS, folder / "log", threads=1)


def test_a_server_is_started_asked_and_stopped(tmp_path: Path):
    with start(tmp_path) as running:
        found = [running.complete([1, 2, 3], 24, 0.8, seed) for seed in range(len(REPLIES))]
        counters = running.counters()
        process = running._process
    assert process.poll() is not None, "it still runs"
    assert found == answers()
    assert counters == server.read_counters(METRICS)
    text = (tmp_path / "log").read_text()
    assert f"--spec-draft-n-max {STEPS} " in text and "-ctk f32" in text
    asked = [json.loads(line.removeprefix("asked ")) for line in text.splitlines() if line.startswith("asked ")]
    assert asked[1]["prompt"] == [1, 2, 3] and asked[1]["seed"] == 1 and asked[1]["temperature"] == 0.8
    assert asked[0]["cache_prompt"] is False, "a cached prefix can keep a stale draft entry"


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path):
    plan, file = serve.Plan("K4", "right", STEPS), tmp_path / "K4.json"
    prompts = [serve.Prompt(f"five/hs_{i}", [1, 2, 3 + i], [], 0.0) for i in range(len(REPLIES))]
    serve.serve(plan, prompts[:1], start(tmp_path), file)
    first = json.loads(file.read_text())
    assert [a["tokens"] for a in first["answers"]] == [REPLIES[0]["tokens"]]
    serve.serve(plan, prompts[:1], start(tmp_path), file)
    assert json.loads(file.read_text()) == first, "it was asked again"
    serve.serve(plan, prompts, start(tmp_path), file)  # the stand-in begins with its first reply again
    found = json.loads(file.read_text())["answers"]
    assert [a["tokens"] for a in found] == [REPLIES[i]["tokens"] for i in (0, 0, 1)]
    asked = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("asked ")]
    assert [json.loads(line.removeprefix("asked "))["prompt"][2] for line in asked] == [3, 4, 5]


def test_counters_are_summed_over_sessions():
    def counted(*numbers: int, by_position: tuple[int, ...] = ()) -> Counters:
        return Counters(
            **dict(zip(("rounds", "drafted", "accepted"), numbers, strict=True)), accepted_by_position=by_position
        )

    total = serve.added(serve.NOTHING, counted(0, 0, 0), counted(5, 20, 3, by_position=(2, 1)))
    total = serve.added(total, counted(7, 28, 4, by_position=(3, 1)), counted(9, 36, 8, by_position=(5, 3)))
    assert Counters(**total) == counted(7, 28, 7, by_position=(4, 3))


def test_a_server_that_stops_at_once_is_told(tmp_path: Path):
    with pytest.raises(RuntimeError, match="code 3"), start(tmp_path, "#!/bin/sh\nexit 3\n"):
        pass


# The comparison.


@pytest.mark.parametrize(
    ("accepted", "tokens", "expected"),
    [
        ([0, 2, 1], 7, ([0, 2], 1)),  # 1 from the prefill, then 1 + 3 + 2
        ([0, 2, 1], 8, ([0, 2, 1], None)),  # one more token by a pass without a draft
        ([0, 2, 4], 6, ([0, 2], 4)),  # the end token was drafted first: the round committed 1 of 5
        ([0, 2, 4], 9, ([0, 2], 4)),
        ([], 1, ([], None)),  # the prefill's token ended the answer
        ([], 2, ([], None)),
    ],
)
def test_the_last_round_is_told_apart(accepted, tokens, expected):
    assert compare.split_last([Verification(a, 4) for a in accepted], tokens) == expected


@pytest.mark.parametrize(("accepted", "tokens"), [([0, 2, 1], 9), ([0, 2, 1], 4), ([], 3)])
def test_rounds_that_do_not_add_up_are_refused(accepted, tokens):
    with pytest.raises(RuntimeError, match="do not add up"):
        compare.split_last([Verification(a, 4) for a in accepted], tokens)


def agreeing_sample(draft: Draft, rate: float) -> Sample:
    """One turn whose tokens are the draft's own first choices at about that rate."""
    sample = toys.make_sample(turns=((6, toys.LENGTH),))
    agree = torch.rand(toys.LENGTH, generator=toys.generator(8)) < rate
    for row in range(toys.LENGTH - 7):  # x[t + 2] depends on the tokens before it alone
        rolled = rollout(draft, sample, Wiring(toys.SLOTS), 1)
        at = int(rolled.starts[row]) + 2
        if agree[at]:
            sample.token_ids[at] = rolled.predicted[row, 0]
    return sample


def server_loop(draft: Draft, sample: Sample, steps: int) -> list[Verification]:
    """Rounds as this server makes them: it drafts at most what is left but one, and not for the last token."""
    predicted = rollout(draft, sample, Wiring(toys.SLOTS), steps).predicted.tolist()
    answer = sample.token_ids[sample.turns[0].begin :].tolist()
    made, n = [], 1
    while len(answer) - n > 1:
        drafted = predicted[n - 1][: min(steps, len(answer) - n - 1)]
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == answer[n + accepted]:
            accepted += 1
        made.append(Verification(accepted, len(drafted)))
        n += accepted + 1
    return made


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("rate", [0.0, 0.6, 1.0])
def test_the_replay_is_the_server_s_rounds(draft: Draft, steps: int, rate: float):
    sample = agreeing_sample(draft, rate)
    served = server_loop(draft, sample, steps)
    recorded = sample.token_ids[6:20].tolist()
    found = compare.request(sample, recorded, 0, served, compare.replay(draft, sample, toys.SLOTS, steps))
    assert differing_rounds([found]) == 0
    assert len(found.engine) >= len(sample.token_ids[6:]) // (steps + 1) - 1
    assert rate == 0 or max(found.engine) > 0
    assert (found.as_recorded, len(found.beyond)) == (14, toys.LENGTH - 20)


def test_a_round_that_differs_is_counted(draft: Draft):
    sample = agreeing_sample(draft, 0.6)
    served = server_loop(draft, sample, 4)
    replayed = compare.replay(draft, sample, toys.SLOTS, 4)
    at = next(i for i, r in enumerate(served) if r.accepted == 1)
    other = [*served[:at], Verification(0, 4), Verification(0, 4), *served[at + 1 :]]
    found = compare.request(sample, [], 0, other, replayed)
    assert differing_rounds([found]) > 0
    wrong_slots = compare.replay(draft, sample, toys.SLOTS[::-1], 4)
    assert differing_rounds([compare.request(sample, [], 0, served, wrong_slots)]) > 0


class FixedTarget:
    """States from a table instead of a model."""

    def __init__(self, states: dict[int, torch.Tensor]) -> None:
        self.states, self.calls = states, 0

    def prefill(self, token_ids: torch.Tensor, boundaries) -> tuple[dict[int, torch.Tensor], None]:
        self.calls += 1
        return {b: self.states[b][: len(token_ids)] for b in boundaries}, None


def test_sequences_are_prefilled_once_without_their_last_token():
    whole = toys.make_sample(turns=((6, toys.LENGTH),))
    target = FixedTarget(whole.states)
    prefills = compare.Prefills(lambda: target, toys.SLOTS)
    ids = whole.token_ids.tolist()
    first, again = (prefills.sample("toy", ids[:6], ids[6:], 0.0) for _ in range(2))
    assert target.calls == 1 and set(first.states) == set(toys.SLOTS)
    assert first.n_pairs == toys.LENGTH - 1 and first.turns == whole.turns
    assert torch.equal(first.token_ids, again.token_ids)
    prefills.sample("toy", ids[:6], ids[6:-1], 0.0)
    assert target.calls == 2


def test_a_first_difference_ends_what_is_common():
    assert compare.common([1, 2, 3], [1, 2, 4]) == 2
    assert compare.common([1, 2], [1, 2, 4]) == 2
    assert compare.common([], [1]) == 0


def test_the_whole_answer_may_be_new(draft: Draft):
    sample = replace(agreeing_sample(draft, 0.0), name="five/hs_0")
    replayed = compare.replay(draft, sample, toys.SLOTS, 2)
    found = compare.request(sample, [-1], 3, server_loop(draft, sample, 2), replayed)
    assert (found.sample, found.seed, found.as_recorded) == ("five/hs_0", 3, 0)
    assert list(found.beyond) == sample.token_ids[6:].tolist()
