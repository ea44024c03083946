"""The bundled case through the command line: from case.toml to a verdict and an offline report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bundled import CASE, ROOT
from pages import generate
from test_bundled_case import SERVED, TRAINED, case_copy, draft_without_ids

NOTEBOOKS = (
    "01_weight_loading",
    "02_layer_norms",
    "03_manual_forward",
    "04_concat_order",
    "05_acceptance_length",
    "06_serving_cost",
    "07_verdict",
)


def run(case: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "eagle3lib", "run", "--case", str(case), "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


def results(out: Path, name: str) -> dict:
    return json.loads((out / "results" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole bundled case, run once."""
    out = tmp_path_factory.mktemp("report")
    finished = run(CASE, out)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return out


def test_verdict_names_the_wiring(report: Path) -> None:
    """The code, the sentence with the three lengths, and lines for each engine."""
    verdict = results(report, "verdict")
    assert verdict["code"] == "wiring.served_differs"
    lengths = {item["label"]: item["value"] for item in verdict["numbers"]["headline"]}
    assert lengths["as served"] < lengths["as trained"] - 0.1
    assert lengths["served, columns moved"] > lengths["as served"] + 0.1
    for value in lengths.values():
        assert f"{value:.2f}" in verdict["sentence"]
    patches = {patch["engine"]: patch for patch in verdict["numbers"]["patches"]}
    assert patches["SGLang"]["ids"] == [-1, 2, 15]
    assert "0.5.22 or later" in patches["SGLang"]["note"]
    assert patches["vLLM (V2 runner)"]["ids"] == patches["llama.cpp"]["ids"] == list(TRAINED)
    faults = [f for f in verdict["findings"] if f["severity"] == "fault"]
    assert [f["code"] for f in faults] == ["wiring.served_differs", "cost.does_not_pay"]
    title = faults[1]["title"]
    assert verdict["sentence"].endswith(f"; besides, {title[0].lower()}{title[1:]}.")


def test_serving_cost_predicts_each_length_and_finds_none_that_pays(report: Path) -> None:
    """The real engine's K = 2, 4 and 8 are each predicted within 10 %; no draft or K = 1 is fastest."""
    record = results(report, "06_serving_cost")
    errors = {row["left out"]: row["error"] for row in record["numbers"]["left_out"]}
    assert all(abs(errors[f"K = {k}"]) < 0.1 for k in (2, 4, 8))
    (fault,) = [f for f in record["findings"] if f["severity"] == "fault"]
    assert fault["evidence"]["acceptance_length"][2] < fault["evidence"]["break_even"][1]
    speeds = {row["shape"]: row["tokens/s"] for row in record["numbers"]["plans"]["trained"]}
    assert sorted(speeds, key=speeds.get)[-2:] == ["K = 1", "speculation off"]
    assert speeds["K = 1"] > 0.9 * speeds["speculation off"]
    assert any("batch" in one["question"] for one in record["unanswered"])


def test_every_notebook_leaves_its_results(report: Path) -> None:
    for name in NOTEBOOKS:
        record = results(report, name)
        assert {"notebook", "case", "parameters", "versions", "findings", "numbers"} <= record.keys()
        assert record["answer"]


def test_pages_are_offline_and_described(report: Path) -> None:
    """No page asks for anything outside it, every figure has a text alternative, none is above 2 MB."""
    for page in (report / "index.html", *(report / f"{name}.html" for name in NOTEBOOKS)):
        text = page.read_text()
        assert not re.search(r"<script[^>]*src=|<link[^>]*href=\"http|@import|url\(http", text)
        assert all(re.search(r'alt="[^"]{20,}"', tag) for tag in re.findall(r"<img[^>]*>", text))
        assert len(text) < 2e6
    assert results(report, "verdict")["sentence"].split(":")[0] in (report / "index.html").read_text()


def test_walk_of_every_draft_length_is_reported(report: Path) -> None:
    rows = results(report, "05_acceptance_length")["numbers"]["acceptance_length"]
    assert {(row["wiring"], row["K"]) for row in rows} == {
        (wiring, k) for wiring in ("trained", "served", "rewired") for k in range(1, 9)
    }


@pytest.mark.slow
def test_two_runs_give_the_same_numbers_tables_and_pages(report: Path, tmp_path: Path) -> None:
    """Figures stand in the pages; only the first page says how long it took and when."""
    out = tmp_path / "out"
    assert run(CASE, out).returncode == 0
    kinds = ("results/*", "tables/*", "patched/*", "[0-9]*.html")
    names = [sorted(p.relative_to(folder) for kind in kinds for p in folder.glob(kind)) for folder in (report, out)]
    assert names[0] == names[1]
    assert len(names[0]) > 4 * len(NOTEBOOKS)
    assert not [name for name in names[0] if (report / name).read_bytes() != (out / name).read_bytes()]


@pytest.mark.slow
def test_without_ids_the_search_finds_the_wiring_and_the_fault(tmp_path: Path) -> None:
    """With what fed fc removed from the case, notebook 04 ranks [0, 3, 16] first and the verdict still stands."""
    out = tmp_path / "out"
    finished = run(draft_without_ids(tmp_path), out, "--only", "04,07")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    numbers = results(out, "04_concat_order")["numbers"]
    assert numbers["exhaustive"]["best"] == list(TRAINED)
    assert numbers["exhaustive"]["candidates"] == 125
    assert numbers["search"]["best"] == list(TRAINED)
    assert numbers["training_wiring"] == list(TRAINED)
    verdict = results(out, "verdict")
    assert verdict["code"] == "wiring.served_differs"


def test_right_wiring_served_is_no_fault(tmp_path: Path) -> None:
    """The same draft, served as trained: notebook 04 finds nothing to complain of."""
    case = case_copy(tmp_path, 'config = "served/config.json"', "boundaries = [0, 3, 16]")
    out = tmp_path / "out"
    finished = run(case, out, "--only", "04", "--fail-on", "fault")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    codes = {finding["code"] for finding in results(out, "04_concat_order")["findings"]}
    assert "wiring.equal" in codes
    assert "wiring.served_differs" not in codes


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('path = "dumps/five"', 'path = "dumps/fvie"', "dumps[0].path = 'dumps/fvie'"),
        ("[0, 3, 16, 28, 30]", "[0, 3, 16, 20, 28, 30]", "Expected 6 states a token in"),
    ],
)
def test_a_mistake_in_the_case_is_one_sentence_and_exit_2(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    finished = run(case_copy(tmp_path, old, new), tmp_path / "out", "--only", "02")
    assert finished.returncode == 2
    printed = finished.stdout + finished.stderr
    assert sentence in printed
    assert "Traceback" not in printed


def test_a_truncated_draft_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    case = draft_without_ids(tmp_path)
    weights = tmp_path / "draft" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    finished = run(case, tmp_path / "out", "--only", "01")
    assert finished.returncode == 2
    assert str(weights) in finished.stdout + finished.stderr
    assert "Traceback" not in finished.stdout + finished.stderr


def test_served_wiring_is_what_the_engine_captures() -> None:
    """The planted fault itself: the shipped config's ids, read by SGLang's rule."""
    from eagle3lib.ecosystems import TargetShape, engine

    sglang = engine("sglang")
    config = json.loads((CASE.parent / "served" / "config.json").read_text())
    assert sglang.boundaries(sglang.read_ids(config), TargetShape(30, "LlamaForCausalLM"), "0.5.23") == SERVED


def test_the_tutorial_s_numbers_are_this_run_s(report: Path) -> None:
    """Every number of docs/tutorial.md is looked up in the results of a run; here in those of a new one."""
    committed = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert generate.tutorial_page(report / "results") == committed, (
        "run: python docs/generate.py --results reports/smollm2/results"
    )
