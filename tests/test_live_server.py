"""A running server, asked: recorded exchanges answered by a small server on this machine."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import served_lines as lines
import toys
from answering import send, serving
from complaints import complaint

from eagle3lib import live_server
from eagle3lib.checks.logs import check_log
from eagle3lib.ecosystems import ENGINES
from eagle3lib.live_server import Prompt, ask, prompts

EXCHANGE = json.loads((Path(__file__).parent / "llama_cpp_exchange.json").read_text())
ASKED = [Prompt(f"d/{i}", [1, 2, 3 + i], reply["tokens"]) for i, reply in enumerate(EXCHANGE["replies"])]
MASTER = lines.rounds(90)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(live_server, "SETTLE_SECONDS", 0.0)


class Counting:
    """A server of 30 rounds a request after rounds of others; each engine's replies and metrics."""

    def __init__(self, engine: str, before: int = 0, others: int = 0, metrics: bool = True) -> None:
        self.engine, self.n, self.before, self.others, self.metrics = engine, 0, before, others, metrics
        self.bodies: list[dict] = []

    def __call__(self, handler: BaseHTTPRequestHandler, body: dict | None) -> None:
        if handler.path == "/v1/models":
            return send(handler, {"data": [{"id": "served-model"}]})
        if handler.path == "/metrics":
            if not self.metrics:
                return send(handler, {"error": "no metrics"}, 501)
            extra = lines.rounds(self.before + self.others * self.n, (0.1, 0.0, 0.0), seed=1)
            return send(handler, lines.counters(self._all(extra), *self._prefix()))
        self.bodies.append(body)
        accepted = MASTER[30 * self.n : 30 * self.n + 30]
        self.n += 1
        tokens = 1 + len(accepted) + int(accepted.sum())
        return send(handler, self._reply(accepted, tokens))

    def _all(self, extra):
        import numpy as np

        return np.concatenate([extra, MASTER[: 30 * self.n]]).astype(int)

    def _prefix(self) -> tuple:
        return ("llamacpp", 3, "") if self.engine == "llama_cpp" else ("vllm", 3)

    def _reply(self, accepted, tokens: int) -> dict:
        if self.engine == "sglang":
            return {**lines.meta_info(accepted), "output_ids": [7] * tokens}
        if self.engine == "vllm":
            return {"choices": [{"token_ids": [7] * tokens}], "usage": {"completion_tokens": tokens}}
        timings = {"predicted_n": tokens, "draft_n": 90, "draft_n_accepted": int(accepted.sum())}
        return {"tokens": [7] * tokens, "timings": timings | {"predicted_per_second": 40.0}}


THREE = [Prompt(f"d/{i}", [1, 2, 3], [7] * 50) for i in range(3)]


@pytest.mark.parametrize("engine", ["llama_cpp", "vllm", "sglang"])
def test_what_a_server_counted_for_these_prompts_is_read(engine):
    """Whatever it counted before them is left out; the record is that of a log."""
    server = Counting(engine, before=500)
    with serving(server) as (url, _):
        log = ask(url, ENGINES[engine], THREE)
    assert log.best.rounds == len(MASTER)
    assert log.best.length.value == pytest.approx(1 + MASTER.mean())
    counted = [count / len(MASTER) for count in lines.survived(MASTER, 3)]
    assert [e.value for e in log.best.survival] == pytest.approx(counted)
    assert log.best.windows == 3
    assert check_log(log)[-1].code == "served.log_read"
    body = server.bodies[0]
    assert [1, 2, 3] in body.values()
    assert 50 in {**body, **body.get("sampling_params", {})}.values()
    assert {**body, **body.get("sampling_params", {})}["temperature"] == 0


def test_a_recorded_exchange_of_llama_cpp_gives_its_own_counts():
    """Replies and /metrics of a real server: 37 rounds, 21 accepted, and every response the recorded one."""
    replies = iter(EXCHANGE["replies"])
    done = []

    def answer(handler, body):
        if handler.path == "/metrics":
            zero = [line.rsplit(" ", 1)[0] + " 0" for line in EXCHANGE["metrics"]]
            return send(handler, "\n".join(EXCHANGE["metrics"] if len(done) == len(ASKED) else zero))
        done.append(body)
        return send(handler, next(replies))

    with serving(answer) as (url, asked):
        log = ask(url, ENGINES["llama_cpp"], ASKED)
    assert (log.best.rounds, log.best.tally.accepted) == (37, 21)
    assert log.best.rates.survival == pytest.approx((17 / 37, 4 / 37, 0, 0))
    assert log.notes[0] == "3 of 3 responses are the recorded ones, token for token"
    assert set(asked) == {"/metrics", "/completion"}


def test_without_metrics_llama_cpp_s_replies_are_read():
    with serving(Counting("llama_cpp", metrics=False)) as (url, _):
        log = ask(url, ENGINES["llama_cpp"], THREE)
    assert log.best.shape.name == "timings"
    assert log.best.length.value == pytest.approx(1 + MASTER.mean())
    assert any("no counters by position" in note and "501" in note for note in log.notes)


def test_counters_that_others_moved_are_not_believed():
    """llama.cpp's replies count their own rounds; vLLM's do not, and nothing is left."""
    with serving(Counting("llama_cpp", others=200)) as (url, _):
        log = ask(url, ENGINES["llama_cpp"], THREE)
    assert log.best.shape.name == "timings"
    assert any("others were answered" in note for note in log.notes)
    with serving(Counting("vllm", others=200)) as (url, _):
        assert "others were answered" in complaint(lambda: ask(url, ENGINES["vllm"], THREE))


def test_what_was_counted_before_a_server_stopped_answering_stands():
    server = Counting("llama_cpp", before=500)

    def answer(handler, body):
        return send(handler, "busy", 503) if body and server.n == 2 else server(handler, body)

    with serving(answer) as (url, _):
        log = ask(url, ENGINES["llama_cpp"], THREE)
    assert log.best.rounds == 60
    assert any(note.startswith("2 of 3 prompts were answered") and "503" in note for note in log.notes)


def test_counters_that_fall_are_said_to():
    def answer(handler, body):
        if handler.path == "/metrics":
            return send(handler, lines.counters(MASTER if not answer.asked else MASTER[:10], "llamacpp", 3, ""))
        answer.asked = True
        return send(handler, Counting("llama_cpp")._reply(MASTER[:30], 60))

    answer.asked = False
    with serving(answer) as (url, _):
        assert "restart" in complaint(lambda: ask(url, ENGINES["llama_cpp"], THREE[:1]))


def test_prompts_are_the_tokens_before_recorded_responses():
    samples = [toys.make_sample(i, name=f"s{i}") for i in range(5)]
    (first, second) = prompts(samples, 2)
    begin, end = toys.TURNS[0]
    assert (first.name, second.name) == ("s0", "s2")
    assert first.token_ids == samples[0].token_ids[:begin].tolist()
    assert first.recorded == samples[0].token_ids[begin:end].tolist()
    assert len(prompts(samples, 50)) == 5
    assert "no dump" in complaint(lambda: ask("http://127.0.0.1:9", ENGINES["vllm"], []))


def test_an_engine_that_cannot_be_asked_says_so():
    said = complaint(lambda: ask("http://127.0.0.1:9", ENGINES["tensorrt_llm"], THREE))
    assert "TensorRT-LLM" in said and "served.logs" in said


@pytest.mark.slow
def test_a_real_llama_server_is_asked(tmp_path, monkeypatch):
    """Its counters for the bundled prompts are the sums of its own log's rounds, and what the replay gives.

    EAGLE3LIB_LLAMA_CPP names a folder with llama-server, target.gguf and draft_right.gguf, the bundled draft as
    trained; benchmarks/serve_llama_cpp/README.md makes them.
    """
    folder = os.environ.get("EAGLE3LIB_LLAMA_CPP")
    if not folder:
        pytest.skip("EAGLE3LIB_LLAMA_CPP names no folder")
    from eagle3lib.case import load_case
    from eagle3lib.investigation import Investigation
    from eagle3lib.replay import replay, replayable
    from eagle3lib.served_answer import held
    from eagle3lib.served_numbers import of_log
    from eagle3lib.served_settings import Replays
    from eagle3lib.serving import read_served

    monkeypatch.undo()
    root = Path(__file__).parent.parent
    sys.path.insert(0, str(root / "benchmarks" / "serve_llama_cpp"))
    import server as llama

    inv = Investigation(load_case(root / "data" / "smollm2" / "case.toml"), "cpu")
    chosen = replayable(inv, None)
    replays = Replays(inv.draft, chosen.wirings, chosen.samples, replay(inv, chosen, 4), 0)
    files = [Path(folder) / name for name in ("llama-server", "target.gguf", "draft_right.gguf")]
    asked = [replace(prompt, recorded=prompt.recorded[:40]) for prompt in prompts(chosen.samples, 4)]
    running = llama.Server(*files, 4, tmp_path / "server.log", 2)
    with running:
        url = f"http://127.0.0.1:{running._port}"
        log = ask(url, ENGINES["llama_cpp"], asked)
        again = ask(url, ENGINES["llama_cpp"], asked[:1])
    own = read_served(tmp_path / "server.log").best
    assert log.best.rounds + again.best.rounds == own.rounds
    assert log.best.tally.accepted + again.best.tally.accepted == own.tally.accepted
    assert log.best.windows == len(asked)
    assert log.notes[0].startswith(("3 of 4", "4 of 4"))
    found = held(of_log(log), None, replays, 4, 4).found
    assert "trained" in found.explained_by and "served" not in found.explained_by
