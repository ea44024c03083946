"""Findings on a server's log: each fault planted is named, and a healthy log of the same system is only read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import served_lines as lines

from eagle3lib.case import load_case
from eagle3lib.checks.logs import check_log, check_logs
from eagle3lib.errors import InputError
from eagle3lib.findings import Finding, Severity
from eagle3lib.serving import read_served

HEALTHY = lines.windows(80, 160)


def findings(folder: Path, text: list[str], name: str = "server.log") -> list[Finding]:
    """What the checks say of a file of those lines."""
    (folder / name).write_text("\n".join(text), encoding="utf-8")
    return check_log(read_served(folder / name))


def codes(folder: Path, text: list[str]) -> list[str]:
    return [finding.code for finding in findings(folder, text)]


HEALTHY_LOGS = {
    "sglang": [lines.sglang(w, running=4, queued=i % 3) for i, w in enumerate(HEALTHY)],
    "sglang 2025": [lines.sglang(w, "2025") for w in HEALTHY],
    "vllm": [line for w in HEALTHY for line in (lines.vllm_engine(), lines.vllm(w))],
    "vllm counters": [lines.counters(np.concatenate(HEALTHY))],
    "sglang replies": [json.dumps(lines.meta_info(w)) for w in HEALTHY],
    "llama.cpp": [x for i, w in enumerate(HEALTHY) for x in lines.llama_timing(w, i) + lines.llama_request(w, task=i)],
    "llama.cpp rounds": [x for i, w in enumerate(HEALTHY) for x in lines.llama_rounds(w, i)],
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY_LOGS)
def test_a_healthy_log_is_only_read(tmp_path: Path, name: str) -> None:
    found = findings(tmp_path, HEALTHY_LOGS[name])
    assert [f.code for f in found] == ["served.log_read"] and found[0].severity is Severity.OK
    length = 1 + np.concatenate(HEALTHY).mean()
    value, low, high = found[0].evidence["length"]
    assert low < length < high and value == pytest.approx(length, abs=0.006)
    json.dumps([f.to_json() for f in found])


@pytest.mark.parametrize("write", [lines.sglang, lines.vllm])
def test_nothing_accepted_on_any_line(tmp_path: Path, write) -> None:
    none = np.zeros(160, int)
    found = findings(tmp_path, [write(none)] * 12)
    assert found[0].code == "served.accepts_nothing" and found[0].severity is Severity.FAULT
    # A wrongly wired draft still guesses some tokens.
    assert codes(tmp_path, [write(w) for w in lines.windows(12, 160, (0.04, 0.002, 0.0005))]) == ["served.log_read"]


@pytest.mark.parametrize("write", [lines.sglang, lines.vllm])
def test_everything_accepted_on_every_line(tmp_path: Path, write) -> None:
    every = np.full(160, 3)
    assert "served.accepts_everything" in codes(tmp_path, [write(every)] * 12)
    assert "served.accepts_everything" not in codes(tmp_path, [write(w) for w in HEALTHY[:12]])


def test_a_length_that_never_moves_was_imposed(tmp_path: Path) -> None:
    same = np.resize([0, 1, 2, 3, 3], 160)  # AL 2.80 on every line, with no rate to tell K by
    assert codes(tmp_path, [lines.sglang(same, "2025")] * 12) == ["served.accepts_the_same"]


@pytest.mark.parametrize("write", [lines.sglang, lines.vllm])
def test_flat_rates_near_one_are_looping_text(tmp_path: Path, write) -> None:
    looping = lines.windows(20, 160, (0.993, 0.974, 0.944))
    assert codes(tmp_path, [write(w) for w in looping]) == ["served.flat_near_one"]
    for healthy in ((0.723, 0.532, 0.396), (0.912, 0.81, 0.73)):
        assert codes(tmp_path, [write(w) for w in lines.windows(20, 160, healthy)]) == ["served.log_read"]


def test_a_good_draft_of_two_steps_is_no_loop(tmp_path: Path) -> None:
    """Published: DFlash on GSM8K has .912 and .80 (DeepSpec#73); a multi-token head of two, .903 and .871."""
    for survival in ((0.912, 0.81), (0.903, 0.871)):
        text = [lines.vllm(w, steps=2) for w in lines.windows(20, 400, survival)]
        assert codes(tmp_path, text) == ["served.log_read"]


def test_acceptance_lost_under_load(tmp_path: Path) -> None:
    calm = [lines.sglang(w, running=2) for w in lines.windows(10, 80)]
    busy = [lines.sglang(np.zeros(160, int), running=4, queued=60)] * 6
    found = findings(tmp_path, [*calm[:5], *busy, *calm[5:]])
    assert found[0].code == "served.load_loses_acceptance"
    assert found[0].evidence["busy_length"] == 1 and found[0].evidence["calm_length"] > 2
    steady = [lines.sglang(w, running=4, queued=60) for w in lines.windows(6, 160)]
    assert codes(tmp_path, [*calm, *steady]) == ["served.log_read"]


def test_slots_that_were_never_drafted(tmp_path: Path) -> None:
    short = [json.dumps(lines.meta_info(w)) for w in lines.windows(30, 12)]
    assert codes(tmp_path, short) == ["served.slots_counted_as_drafted", "served.log_read"]


def test_drafts_that_stop_when_unsure(tmp_path: Path) -> None:
    """llama.cpp before and after its default p_min became 0: the ratios differ threefold, drafts a round do not."""
    generator = np.random.default_rng(0)
    text: list[str] = []
    for task, w in enumerate(HEALTHY[:20]):
        for line, accepted in zip(lines.llama_rounds(w, task), w, strict=True):
            drafted = max(int(accepted), 1 if generator.random() < 0.9 else 3)
            text.append(line.replace("/ 3 ", f"/{drafted:2d} "))
    found = findings(tmp_path, text)
    assert [f.code for f in found] == ["served.drafts_shortened", "served.log_read"]
    assert found[0].evidence["drafted_a_round"] < 2.4
    full = findings(tmp_path, [x for i, w in enumerate(HEALTHY[:20]) for x in lines.llama_rounds(w, i)])
    assert full[-1].evidence["length"][0] == pytest.approx(found[0].evidence["length"][0])


def test_a_draft_length_that_changed(tmp_path: Path) -> None:
    longer = [lines.vllm(w, steps=5) for w in lines.windows(10, 160, (0.7, 0.5, 0.3, 0.2, 0.1))]
    assert codes(tmp_path, [*map(lines.vllm, HEALTHY[:10]), *longer])[0] == "served.draft_length_changed"


@pytest.mark.parametrize("write", [lines.sglang, lines.vllm])
def test_a_log_that_drifts(tmp_path: Path, write) -> None:
    later = lines.windows(40, 160, (0.55, 0.3, 0.15), seed=1)
    found = findings(tmp_path, [write(w) for w in [*HEALTHY[:40], *later]])
    assert [f.code for f in found] == ["served.drifts", "served.log_read"]
    assert found[0].evidence["parts"][0] > found[0].evidence["parts"][-1] + 0.3


def test_no_drift_is_seen_in_noise(tmp_path: Path) -> None:
    """Forty healthy logs, and none drifts."""
    for seed in range(40):
        text = [lines.vllm(w) for w in lines.windows(64, 100, seed=seed)]
        assert codes(tmp_path, text) == ["served.log_read"], seed


def test_a_case_names_its_logs(tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "server.log").write_text("\n".join(HEALTHY_LOGS["vllm"]))
    case = tmp_path / "case.toml"
    case.write_text('[draft]\npath = "draft"\n[served]\nengine = "vllm"\nlogs = ["server.log", "server.log"]\n')
    logs = load_case(case).served.logs
    assert logs == (tmp_path / "server.log",) * 2
    assert [f.code for f in check_logs([read_served(path) for path in logs])] == ["served.log_read"] * 2
    case.write_text('[draft]\npath = "draft"\n[served]\nengine = "vllm"\nlogs = ["server.log", "gone.log"]\n')
    with pytest.raises(InputError, match=r"served.logs\[1\] = 'gone.log'"):
        load_case(case)
    case.write_text('[draft]\npath = "draft"\n[served]\nengine = "vllm"\nlogs = [7]\n')
    with pytest.raises(InputError, match=r"served.logs.0"):
        load_case(case)
