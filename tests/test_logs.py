"""Lines of every system and version say what their rounds were: counts come back exactly, lengths within rounding."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import served_lines as lines

from eagle3lib.ecosystems._logs import rounds_that_print
from eagle3lib.errors import InputError
from eagle3lib.serving import ServedLog, read_served

WINDOWS = lines.windows(20, 64)
ALL = np.concatenate(WINDOWS)
LENGTH = 1 + ALL.mean()


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., ServedLog]:
    """The reading of a file of that text."""

    def read(text: str | bytes | list[str], name: str = "server.log") -> ServedLog:
        text = "\n".join(text) if isinstance(text, list) else text
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return read_served(tmp_path / name)

    return read


def counts_all(log: ServedLog, steps: int = 3, accepted: np.ndarray = ALL) -> None:
    """The best reading has every count of the rounds."""
    best = log.best
    assert best.rounds == len(accepted) and best.length.value == pytest.approx(1 + accepted.mean(), abs=1e-9)
    assert best.rates is not None and best.rates.rounds == len(accepted)
    expected = np.array(lines.survived(accepted, steps)) / len(accepted)
    np.testing.assert_allclose(best.rates.survival, expected, atol=1e-9)
    np.testing.assert_allclose([e.value for e in best.survival], expected, atol=1e-9)
    assert all(e.low <= e.value <= e.high for e in (*best.survival, best.length))


# SGLang


@pytest.mark.parametrize("version", ["2025", "May 2025", "October 2025", "2026", "hybrid", "PD 2026"])
def test_sglang_decode_lines(read: Callable[..., ServedLog], version: str) -> None:
    served = read([lines.sglang(w, version, running=8, queued=2) for w in WINDOWS]).best
    assert (served.shape.name, served.windows, served.rounds, served.rates) == ("decode line", 20, None, None)
    assert served.length.value == pytest.approx(LENGTH, abs=0.005)
    assert served.length.low < LENGTH < served.length.high and "rounding" in served.interval
    assert served.speed is not None and served.speed.value == 310.25 and served.shape.speed == "server"
    assert [(load.running, load.queued, load.windows) for load in served.loads] == [(8, True, 20)]
    assert served.steps == (None if version in ("2025", "May 2025") else 3)


def test_sglang_lines_weigh_as_their_requests(read: Callable[..., ServedLog]) -> None:
    few, many = np.array([0, 1]), np.array([2, 2])
    served = read([lines.sglang(few, running=1), lines.sglang(many, running=3)]).best
    assert served.length.value == pytest.approx((1.5 + 3 * 3.0) / 4)


@pytest.mark.parametrize(
    ("version", "meaning"), [("October 2025", "accept len / draft tokens"), ("2026", "(draft tokens - 1)")]
)
def test_sglang_accept_rate_is_read_by_the_definition_that_fits(
    read: Callable[..., ServedLog], version: str, meaning: str
) -> None:
    log = read([lines.sglang(w, version, steps=5) for w in WINDOWS])
    assert log.best.steps == 5 and any(meaning in note and "for 6 draft tokens" in note for note in log.notes)


def test_sglang_ranks_that_repeat_a_batch_count_once(read: Callable[..., ServedLog]) -> None:
    repeated = [lines.sglang(w, rank=f"TP{rank}") for w in WINDOWS for rank in (0, 1)]
    log = read(repeated)
    assert log.best.windows == 20 and "another rank's copy of a batch: 20 left out" in log.notes
    apart = read([lines.sglang(w, rank=f"DP{dp} TP{2 * dp}") for w in WINDOWS for dp in (0, 1)])
    assert apart.best.windows == 40 and not any("copy" in note for note in apart.notes)


def test_sglang_gauges(read: Callable[..., ServedLog]) -> None:
    served = read(
        "# HELP sglang:spec_accept_length The average acceptance length\n# TYPE sglang:spec_accept_length gauge\n"
        'sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.5125\nsglang:gen_throughput{model_name="m"} 812.5\n'
        'sglang:num_running_reqs{model_name="m"} 6.0\nsglang:num_queue_reqs{model_name="m"} 0.0\n'
    ).best
    assert served.length.value == pytest.approx(2.5125) and not served.length.has_interval
    assert (served.running, served.speed and served.speed.value) == (6.0, 812.5)


@pytest.mark.parametrize("form", ["lines", "list", "bare"])
def test_sglang_requests(read: Callable[..., ServedLog], form: str) -> None:
    replies = [lines.meta_info(w) for w in WINDOWS]
    if form == "list":
        text = json.dumps(replies, indent=1)
    else:
        text = "\n".join(json.dumps(r if form == "lines" else r["meta_info"]) for r in replies)
    log = read(text, "replies.json")
    counts_all(log)
    assert log.best.steps == 3 and log.best.shape.over == "requests" and log.notes == ()


def test_sglang_requests_without_a_histogram_leave_the_prefill_token_out(read: Callable[..., ServedLog]) -> None:
    served = read("\n".join(json.dumps(lines.meta_info(w, histogram=False)) for w in WINDOWS)).best
    assert (served.rounds, served.rates) == (len(ALL), None)
    assert served.length.value == pytest.approx(LENGTH)  # not completion_tokens / spec_verify_ct, which is more


def test_bench_serving(read: Callable[..., ServedLog]) -> None:
    run = {"backend": "sglang", "output_throughput": 512.0, "concurrency": 7.9, "accept_length": 2.5, "completed": 80}
    served = read(json.dumps(run) + "\n" + json.dumps(run | {"accept_length": None}) + "\n", "bench.jsonl").best
    assert (served.length.value, served.windows, served.shape.over) == (2.5, 1, "runs")


# vLLM


@pytest.mark.parametrize("version", ["spring 2025", "late 2025"])
def test_vllm_lines(read: Callable[..., ServedLog], version: str) -> None:
    text = [line for w in WINDOWS for line in (lines.vllm_engine(), lines.vllm(w, version))]
    log = read(text)
    counts_all(log)
    assert (log.best.steps, log.best.drafted, log.best.running) == (3, 3.0, 8.0)
    assert log.best.speed is not None and log.best.speed.value == 812.4


def test_vllm_v0_counts_emitted_tokens_and_not_its_accepted_ones(read: Callable[..., ServedLog]) -> None:
    totals = [np.concatenate(WINDOWS[: i + 1]) for i in range(20)]
    served = read([lines.vllm_v0(total) for total in totals]).best
    assert (served.rounds, served.windows, served.steps) == (len(ALL), 20, 3)
    assert served.length.value == pytest.approx(LENGTH) and "bootstrap over 20 windows" in served.interval


@pytest.mark.parametrize(("prefix", "labels"), [("vllm", 'engine="0",model_name="m"'), ("llamacpp", "")])
def test_counters(read: Callable[..., ServedLog], prefix: str, labels: str) -> None:
    log = read(lines.counters(ALL, prefix, labels=labels), "metrics.txt")
    counts_all(log)
    assert log.best.interval.startswith("multinomial")
    exact = ALL.std() / len(ALL) ** 0.5
    assert log.best.length.high - log.best.length.low == pytest.approx(2 * 1.96 * exact, rel=0.1)


def test_counters_of_two_engines_add_and_two_scrapes_do_not(read: Callable[..., ServedLog]) -> None:
    engines = "".join(lines.counters(w, labels=f'engine="{i}"') for i, w in enumerate(WINDOWS))
    assert read(engines).best.rounds == len(ALL)
    scrapes = [lines.counters(np.concatenate(WINDOWS[: i + 1])) for i in range(20)]
    counts_all(read("".join(scrapes)))


def test_counters_that_fall_back_count_on(read: Callable[..., ServedLog]) -> None:
    log = read(lines.counters(WINDOWS[0]) + lines.counters(np.concatenate(WINDOWS[:3])) + lines.counters(WINDOWS[3]))
    assert log.best.rounds == 4 * 64 and any("fell back 1 times" in note for note in log.notes)


def test_vllm_bench(read: Callable[..., ServedLog]) -> None:
    survived = lines.survived(ALL, 3)
    run = {
        "spec_decode_num_drafts": len(ALL), "spec_decode_draft_tokens": 3 * len(ALL), "output_throughput": 99.0,
        "spec_decode_accepted_tokens": sum(survived),
        "spec_decode_per_position_acceptance_rates": [s / len(ALL) for s in survived],
    }  # fmt: skip
    counts_all(read(json.dumps(run), "bench.json"))


# llama.cpp


def test_llama_rounds(read: Callable[..., ServedLog]) -> None:
    text = [x for i, w in enumerate(WINDOWS) for x in lines.llama_rounds(w, i) + lines.llama_timing(w, i)]
    log = read(text)
    counts_all(log)
    assert log.best.steps == 3 and log.best.speed is not None and log.best.speed.value == 41.5
    assert log.best.shape.speed == "request"


def test_llama_rounds_that_are_restored_count_once(read: Callable[..., ServedLog]) -> None:
    text = lines.llama_rounds(np.array([1, 3]))
    again = [text[0] + " (restore checkpoint)", text[0].replace(" 1/ 3", " 2/ 2"), text[1]]
    assert read(again).best.rates.survival == (1.0, 0.5, 0.5)


@pytest.mark.parametrize("version", ["June 2026", "builds"])
def test_llama_requests(read: Callable[..., ServedLog], version: str) -> None:
    text = [x for i, w in enumerate(WINDOWS) for x in lines.llama_timing(w, i) + lines.llama_request(w, version, i)]
    counts_all(read(text))


def test_llama_requests_of_old_builds(read: Callable[..., ServedLog]) -> None:
    text = [x for i, w in enumerate(WINDOWS) for x in lines.llama_timing(w, i) + lines.llama_request(w, "old", i)]
    served = read(text).best
    assert (served.rounds, served.rates, served.drafted) == (len(ALL), None, 3.0)
    assert served.length.value == pytest.approx(LENGTH)


@pytest.mark.parametrize("positions", [True, False])
def test_llama_statistics(read: Callable[..., ServedLog], positions: bool) -> None:
    totals = [np.concatenate(WINDOWS[: i + 1]) for i in range(12)]
    served = read([lines.llama_statistics(total, positions=positions) for total in totals]).best
    assert (served.rounds, served.windows) == (12 * 64, 12)
    assert served.length.value == pytest.approx(1 + totals[-1].mean()) and (served.rates is not None) == positions


def test_llama_statistics_of_two_drafters_are_said(read: Callable[..., ServedLog]) -> None:
    line = lines.llama_statistics(ALL)
    assert not any("added up" in note for note in read([line]).notes)
    both = read([line, line.replace("draft-eagle3", "ngram-mod")])
    assert "rounds of draft-eagle3 and ngram-mod are added up: not the draft's alone" in both.notes


def test_llama_readings_of_one_log_agree(read: Callable[..., ServedLog]) -> None:
    text, so_far = [], np.zeros(0, int)
    for i, w in enumerate(WINDOWS):
        so_far = np.concatenate([so_far, w])
        text += lines.llama_rounds(w, i) + lines.llama_timing(w, i) + lines.llama_request(w, task=i)
        text.append(lines.llama_statistics(so_far))
    log = read(text)
    assert [r.shape.name for r in log.readings] == ["round line", "draft acceptance", "statistics"]
    assert {r.rounds for r in log.readings} == {len(ALL)}
    assert [r.length.value for r in log.readings] == pytest.approx([LENGTH] * 3)


def test_llama_timings(read: Callable[..., ServedLog]) -> None:
    replies = [
        {"content": "…", "timings": {"predicted_n": 1 + int(w.sum()) + len(w), "predicted_per_second": 40.0,
                                     "draft_n": 3 * len(w), "draft_n_accepted": int(w.sum())}}
        for w in WINDOWS
    ]  # fmt: skip
    served = read("\n".join(map(json.dumps, replies)), "replies.jsonl").best
    assert (served.rounds, served.shape.name) == (len(ALL), "timings")
    assert served.length.value == pytest.approx(LENGTH)


def test_the_recorded_exchange_with_llama_cpp(read: Callable[..., ServedLog]) -> None:
    """Lines, timings and counters of one real run say the same."""
    exchange = json.loads((Path(__file__).parent / "llama_cpp_exchange.json").read_text())
    by_lines = read([line for reply in exchange["replies"] for line in reply["log"]]).best
    by_timings = read("\n".join(json.dumps(reply) for reply in exchange["replies"]), "replies.jsonl").best
    drafted = sum(reply["timings"]["draft_n"] for reply in exchange["replies"])
    accepted = sum(reply["timings"]["draft_n_accepted"] for reply in exchange["replies"])
    assert by_lines.tally.drafted == drafted == by_timings.tally.drafted
    assert by_lines.tally.accepted == accepted == by_timings.tally.accepted
    assert by_lines.steps == exchange["steps"]


# others


def test_tensorrt_llm(read: Callable[..., ServedLog]) -> None:
    stats = [
        {"iter": i, "iterLatencyMS": 20.0, "numActiveRequests": 64, "numQueuedRequests": 0,
         "specDecodingStats": {"numDraftTokens": 3 * len(w), "numAcceptedTokens": int(w.sum()),
                               "numRequestsWithDraftTokens": len(w), "acceptanceLength": 1 + float(w.mean())}}
        for i, w in enumerate(WINDOWS)
    ]  # fmt: skip
    served = read(json.dumps(stats), "metrics.json").best
    assert (served.rounds, served.drafted, served.running) == (len(ALL), 3.0, 64.0)
    assert served.length.value == pytest.approx(LENGTH)


def test_specforge_benchmark(read: Callable[..., ServedLog]) -> None:
    run = {
        "backend": "sglang", "dataset": "gsm8k", "samples": 20, "output_tokens": int(ALL.sum()) + len(ALL) + 20,
        "throughput_tokens_per_second": 200.0, "average_acceptance_length": 9.9, "spec_verify_count": len(ALL),
    }  # fmt: skip
    served = read(json.dumps(run, indent=2), "result.json").best
    assert served.rounds == len(ALL) and served.length.value == pytest.approx(LENGTH)


def test_specforge_bench_eagle3(read: Callable[..., ServedLog]) -> None:
    tokens, latency = int(ALL.sum()) + len(ALL) + 20, 4.0
    metrics = {"latency": latency, "output_throughput": tokens / latency, "accept_length": tokens / len(ALL),
               "accuracy": None, "num_questions": 20}  # fmt: skip
    run = {"batch_size": 1, "steps": 3, "topk": 1, "num_draft_tokens": 4, "metrics": [metrics], "num_samples": 20}
    served = read(json.dumps({"model": "d", "gsm8k": [run]}, indent=4), "results.jsonl").best
    assert (served.rounds, served.steps) == (len(ALL), 3) and served.length.value == pytest.approx(LENGTH)


def test_atom_distribution_is_of_exact_counts(read: Callable[..., ServedLog]) -> None:
    served = read(
        "[atom 10:11:12] [MTP Stats Interval] Average toks/fwd: 1.73, Accepted/Total Draft tokens: 727/1000, Acceptance"
        " rate: 72.70%, Accepted tokens distribution: {0: '27.30%', 1: '72.70%'}"
    ).best
    assert (served.rounds, served.rates.survival, served.steps) == (1000, (0.727,), 1)


# the file


def test_rounds_that_never_varied_leave_room_for_what_they_did_not_show(read: Callable[..., ServedLog]) -> None:
    """None of 30: up to a tenth by the rule of three, at every position and in the length."""
    for accepted, length in ((0, 1.0), (3, 4.0)):
        served = read(lines.vllm(np.full(30, accepted))).best
        assert served.length.value == length
        assert served.length.high - served.length.low == pytest.approx(3 * 3 / 30, rel=0.1)
        assert served.length.low >= 1
        assert served.length.high <= 4
        assert all(e.high - e.low == pytest.approx(3 / 30, rel=0.1) for e in served.survival)


def test_counts_are_found_that_print_as_the_line_does() -> None:
    # A real llama.cpp line: 47 accepted / 441 generated of drafts up to four, so 441 is no multiple of the rounds.
    assert rounds_that_print(47, (0.297, 0.090, 0.027, 0.009), 441) == (111, 33, 10, 3, 1)
    assert rounds_that_print(47, (0.297, 0.190), 441) is None


def test_a_packed_log_reads_like_a_plain_one(read: Callable[..., ServedLog]) -> None:
    text = "\n".join(lines.vllm(w) for w in WINDOWS).encode()
    counts_all(read(gzip.compress(text), "server.log.gz"))
    cut = read(gzip.compress(text)[:-200], "cut.log.gz")
    assert cut.best.windows < 20 and any("gzip" in note for note in cut.notes)


def test_arguments_are_given_in_the_servers_words(read: Callable[..., ServedLog]) -> None:
    arguments = "server_args=ServerArgs(model_path='m', speculative_num_steps=3, speculative_eagle_topk=1)"
    assert read([f"[2026-03-04 10:11:12] {arguments}", lines.sglang(ALL)]).launch == (arguments,)
    given = "non-default args: {'model': 'm', 'speculative_config': {'num_speculative_tokens': 3}}"
    config = "speculative_config=SpeculativeConfig(method='eagle3', model='d', num_spec_tokens=3), tokenizer='m'"
    text = [f"INFO 11-02 10:11:12 [utils.py:253] {given}", f"INFO Initializing a V1 LLM engine with {config}"]
    assert read([*text, lines.vllm(ALL)]).launch == (given, config)
    command = "./llama-server -m target.gguf -md draft.gguf --spec-type draft-eagle3 --draft-max 4"
    assert read([f"+ {command}", *lines.llama_rounds(ALL)]).launch == (command[2:],)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "looked for"),
        ("nothing here\n", '"SpecDecoding metrics:"'),
        ("[2026-03-04 10:11:12 TP0] Decode batch, #running-req: 1, gen throughput (token/s): 90.0", "ran without"),
        ("[TRT-LLM] [I] iter = 1, num_scheduled_requests = 1, states = {}", "its /metrics"),
        ("{}", "looked for"),
    ],
)  # fmt: skip
def test_a_file_without_speculation_says_what_was_looked_for(
    read: Callable[..., ServedLog], text: str, said: str
) -> None:
    with pytest.raises(InputError, match="tells nothing of speculation") as error:
        read(text)
    assert said in str(error.value) and str(error.value).count("\n") == 0


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found a folder"):
        read_served(tmp_path)
