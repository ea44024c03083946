"""Odd lines never break a log: they are counted and said, and the sound ones still count."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import served_lines as lines
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from eagle3lib import log_lines, tally
from eagle3lib.checks.logs import check_log
from eagle3lib.ecosystems import LOGS
from eagle3lib.ecosystems._logs import Window
from eagle3lib.errors import InputError
from eagle3lib.serving import ServedLog, read_served, served_rows

WINDOWS = lines.windows(20, 64)
ALL = np.concatenate(WINDOWS)
Read = Callable[[bytes], ServedLog]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The reading of a file of those bytes."""

    def read(content: bytes) -> ServedLog:
        (tmp_path / "server.log").write_bytes(content)
        return read_served(tmp_path / "server.log")

    return read


def every_shape() -> list[str]:
    """A line or more of everything that is read."""
    one = WINDOWS[0]
    return [
        *(lines.sglang(one, v) for v in ("2025", "October 2025", "2026", "hybrid", "PD 2026")),
        "[2026-03-04 10:11:12] server_args=ServerArgs(model_path='m', speculative_num_steps=3)",
        'sglang:spec_accept_length{model_name="m"} 2.5', lines.vllm_engine(), lines.vllm(one), lines.vllm_v0(one),
        lines.vllm(one, "spring 2025"), "INFO non-default args: {'model': 'm'}",
        *lines.counters(one).splitlines(), *lines.counters(one, "llamacpp", labels="").splitlines(),
        *lines.llama_rounds(one[:4]), *lines.llama_timing(one), *lines.llama_request(one, "old"),
        *lines.llama_request(one, "June 2026"), *lines.llama_request(one), lines.llama_statistics(one),
        json.dumps(lines.meta_info(one)),
        "[atom 10:11:12] [MTP Stats Interval] Average toks/fwd: 1.73, Accepted/Total Draft tokens: 727/1000, Acceptance"
        " rate: 72.70%, Accepted tokens distribution: {0: '27.30%', 1: '72.70%'}",
    ]  # fmt: skip


def test_odd_lines_among_sound_ones(read: Read) -> None:
    sound = [lines.vllm(w) for w in WINDOWS]
    odd = [
        sound[0][: sound[0].index("Accepted: ")],  # cut
        sound[1] + sound[2],  # two writers
        sound[0].replace("Mean acceptance length: 2", "Mean acceptance length: nan, was 2"),
        sound[0].replace("Drafted: 192", "Drafted: 0"),
        sound[0].replace("Mean acceptance length: 2", "Mean acceptance length: 7"),
    ]
    coloured = f"\x1b[32m{sound[0].replace('SpecDecoding', chr(27) + '[1mSpecDecoding')}\x1b[0m"
    bar = "Capturing:  50%|█████     | 4/8 [00:01<00:01]\rCapturing: 100%|██████████| 8/8\r"
    text = (
        "\r\n".join([coloured, bar + sound[1], *sound[2:], *odd]).encode()
        + b"\r\n\xff\xfe\x00 SpecDecoding metrics: \x80\n"
    )
    log = read(text)
    assert log.best.windows == 20 and log.best.rounds == len(ALL)
    said = " ".join(log.notes)
    assert "cut or changed: 2" in said and "two lines in one: 1" in said and "without a number: 1" in said
    assert "a window without a draft: 1" in said and "numbers that do not agree: 1" in said


def test_sglang_without_numbers(read: Read) -> None:
    good = lines.sglang(ALL)
    bad = [good.replace("accept len: 2", f"accept len: {x}, was 2") for x in ("nan", "N/A", "0.00")]
    log = read("\n".join([good, *bad, good[:90]]).encode())
    assert log.best.windows == 1 and sum("left out" in note for note in log.notes) >= 2


def test_a_line_without_end_is_not_held(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "PIECE", 1000)
    monkeypatch.setattr(log_lines, "LONGEST", 5000)
    sound = "\n".join(map(lines.vllm, WINDOWS)).encode()
    log = read(sound + b"\n" + b"x" * 40_000 + lines.vllm(ALL).encode() + b"\n" + lines.vllm(ALL).encode())
    assert log.best.rounds == 2 * len(ALL) and "longer than 5,000 bytes: 1 left out" in log.notes


@pytest.mark.parametrize("piece", [37, 256, 1000])
def test_pieces_cut_lines_anywhere(read: Read, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(log_lines, "PIECE", piece)
    assert read("\n".join(map(lines.vllm, WINDOWS)).encode()).best.rounds == len(ALL)


def test_a_long_log_takes_no_more_memory_than_a_shorter_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every window counts, and no more than a bounded number is kept."""
    monkeypatch.setattr(tally, "KEPT", 256)
    peaks, some = [], [lines.sglang(w) for w in lines.windows(64, 40)]
    for times in (8, 80):
        path = tmp_path / f"{times}.log"
        path.write_text("\n".join(some * times))
        tracemalloc.start()
        served = read_served(path).best
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert served.windows == 64 * times and 128 <= len(served.tally.kept) <= 256
        assert served.length.value == pytest.approx(1 + np.concatenate(lines.windows(64, 40)).mean(), abs=0.005)
    assert peaks[1] < 1.3 * peaks[0], peaks


def test_json_that_is_cut_or_wrapped(read: Read) -> None:
    replies = [json.dumps(lines.meta_info(w)) for w in WINDOWS]
    log = read("\n".join([*replies, replies[0][:80], "[1, 2]", "null", '{"meta_info": 7}', "NaN"]).encode())
    assert log.best.rounds == len(ALL) and "no whole JSON: 1 left out" in log.notes
    wrapped = "\n".join(json.dumps({"log": lines.vllm(w), "stream": "stderr"}) for w in WINDOWS)
    assert read(wrapped.encode()).best.rounds == len(ALL)


def test_documents_that_are_cut_anywhere_or_nested(read: Read) -> None:
    metrics = {"latency": 2.0, "output_throughput": 90.0, "accept_length": 2.0, "num_questions": 4}
    stats = {"numDraftTokens": 12, "numAcceptedTokens": 5, "numRequestsWithDraftTokens": 4, "acceptanceLength": 2.25}
    documents = [
        json.dumps({"gsm8k": [{"num_draft_tokens": 4, "metrics": [metrics]}]}, indent=1),
        json.dumps([{"iterLatencyMS": 9.0, "specDecodingStats": stats}], indent=1),
        json.dumps([lines.meta_info(w) for w in WINDOWS[:2]]),
    ]
    for document in documents:
        assert read(document.encode()).best.windows >= 1
        for end in range(0, len(document), 7):
            readable(read, document[:end].encode())
    for deep in ('{"a":' * 50_000, '[{"a":' * 50_000):
        readable(read, deep.encode())


def test_wrong_types_in_records_are_no_requests(read: Read) -> None:
    wrong = [
        {"meta_info": {"spec_verify_ct": value, "completion_tokens": 9, "spec_accept_histogram": [1, "x"]}}
        for value in (None, "7", -3, 1e400, True, [], 10**400)
    ]
    with pytest.raises(InputError, match="a request without a round: 7"):
        read("\n".join(map(json.dumps, wrong)).encode())


def test_a_stray_line_of_another_system_does_not_win(read: Read) -> None:
    log = read("\n".join([*map(lines.sglang, WINDOWS), *lines.llama_rounds(ALL[:3])]).encode())
    assert log.best.shape.system == "SGLang" and {r.shape.system for r in log.readings} == {"SGLang", "llama.cpp"}


def test_rows_for_a_page(read: Read) -> None:
    row = served_rows([read("\n".join(map(lines.vllm, WINDOWS)).encode())])[0]
    assert row["accepted a round"] == pytest.approx(ALL.mean()) and row["K"] == 3 and row["rounds"] == len(ALL)


@pytest.mark.parametrize(
    "window",
    [
        Window(5, 3, survived=(2, 3)),
        Window(5, 99, nodes=3),
        Window(float("nan"), 1),
        Window(5, -1),
        Window(5, 6, survived=(6,)),
        Window(5, 1, drafted=-1),
    ],
)
def test_windows_that_cannot_be(window: Window) -> None:
    assert not window.sound


SHAPES = every_shape()
MARKS = [mark.decode() for reader in LOGS for mark in reader.marks]


def garbled(seed: int) -> bytes:
    """Real lines, cut, joined, doubled, with bytes and numbers changed."""
    chance = random.Random(seed)
    text = bytearray()
    for _ in range(chance.randrange(1, 40)):
        line = bytearray(chance.choice(SHAPES).encode())
        for _ in range(chance.choice((0, 0, 1, 3))):
            at = chance.randrange(len(line))
            match chance.randrange(5):
                case 0:
                    del line[at:]
                case 1:
                    line[at : at + 1] = bytes([chance.randrange(256)])
                case 2:
                    line[at:at] = chance.choice((b"nan", b"9" * 400, b"-", b"\x1b[0m", b"\r", b"\n", b"1e999", b"N/A"))
                case 3:
                    line += chance.choice(SHAPES).encode()
                case _:
                    del line[at : at + chance.randrange(1, 30)]
            line = line or bytearray(b"x")
        text += line + chance.choice((b"\n", b"\r\n", b"", b"\r"))
    return bytes(text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_garbled_logs_give_numbers_that_can_be_or_one_sentence(read: Read, seed: int) -> None:
    readable(read, garbled(seed))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([m.encode() for m in MARKS]))))
@example([b"{", b'"meta_info": {"spec_verify_ct": 1}', b"}"])
@example([b"[" * 100_000])
@example([SHAPES[-1].replace("27.30", "9" * 400).encode()])
def test_any_bytes_around_marks(read: Read, parts: list[bytes]) -> None:
    readable(read, b"".join(parts))


def readable(read: Read, content: bytes) -> None:
    """Either a sentence, or lengths of at least one and findings that can be made."""
    try:
        log = read(content)
    except InputError as error:
        assert "tells nothing of speculation" in str(error)
        return
    for served in log.readings:
        assert served.length.value >= 1 and np.isfinite(served.length.value) and served.windows >= 1
        assert all(0 <= e.value <= 1 for e in served.survival)
    assert check_log(log) and served_rows([log])
