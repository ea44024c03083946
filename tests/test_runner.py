"""The runner on tiny notebooks: exit codes, what it prints, and the report it leaves."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_notebooks import START, Page, notebook
from typer.testing import CliRunner

from eagle3lib.__main__ import app
from eagle3lib.findings import Severity
from eagle3lib.run import run_notebooks

NARRATE = """\
import matplotlib.pyplot as plt
import pandas as pd
import torch
from eagle3lib.findings import Finding, Severity
fig, ax = plt.subplots()
ax.plot([1, 2])
book.figure(fig, 'a line that "rises" <up>')
book.table(pd.DataFrame({"slot": ["<script>alert(1)</script>", "=1+1"], "norm": [345.678, -2.0]}), "Norms & slots")
book.finding(Finding("cost.risk", Severity.RISK, "A <risk>", "It may cost.", "Wait.", {"AL": [1.5, 1.7]}))
book.number("lengths", {"al": torch.tensor(1.5), "none": float("nan"), "steps": steps})
book.unanswered("Who <knows>?", "a log")
book.answer(f"It takes {steps} steps & <more>.")
book.save()"""
MISTAKE = "from eagle3lib.errors import InputError\nraise InputError('Expected fc.weight, found <nothing>.')"
VERDICT = """\
book.answer("The wiring is wrong.")
book.save()
from eagle3lib.results import write_json
finding = dict(code="wiring.x", severity="fault", title="<b>Wrong</b>", meaning="m", remedy="r", evidence={"n": 3})
patch = dict(engine="SGLang", version="0.5", text="ids: [-1]", note="n")
numbers = dict(headline=[dict(label="trained", value=1.66, low=1.6, high=1.7, unit="tokens")], patches=[patch])
write_json(book.out / "results" / "verdict.json",
           dict(code="wiring.x", sentence="fc is fed <wrong> states.", findings=[finding], numbers=numbers))"""


@dataclass
class Ran:
    """One run of the runner."""

    code: int
    printed: str
    out: Path

    def page(self, name: str) -> str:
        return (self.out / f"{name}.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A case, and notebooks that end in every way a notebook can."""
    folder = tmp_path_factory.mktemp("runner")
    (folder / "draft").mkdir()
    (folder / "case.toml").write_text('name = "tiny"\n[draft]\npath = "draft"\n', encoding="utf-8")
    (folder / "other.toml").write_text('name = "other"\n[draft]\npath = "draft"\n', encoding="utf-8")
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    notebook(notebooks / "00_appendix.ipynb", "1")
    notebook(notebooks / "01_good.ipynb", START.format(name="01_good"), NARRATE)
    notebook(notebooks / "02_mistake.ipynb", START.format(name="02_mistake"), MISTAKE, "1")
    notebook(notebooks / "03_fails.ipynb", "1 / 0", "1")
    notebook(notebooks / "04_exits.ipynb", "import sys\nsys.exit(0)", "1")
    notebook(notebooks / "05_dies.ipynb", "import os\nos.kill(os.getpid(), 9)")
    notebook(notebooks / "06_saves_nothing.ipynb", "1")
    notebook(notebooks / "07_verdict.ipynb", START.format(name="07_verdict"), VERDICT)
    return folder


def run(workplace: Path, out: str, **options) -> Ran:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run_notebooks(
            workplace / options.pop("case", "case.toml"),
            workplace / out,
            folder=workplace / "notebooks",
            **options,
        )
    return Ran(code, printed.getvalue(), workplace / out)


@pytest.fixture(scope="module")
def everything(workplace) -> Ran:
    return run(workplace, "everything", keep_going=True)


@pytest.fixture(scope="module")
def first(workplace) -> Ran:
    return run(workplace, "first", only="1", settings=["steps=6"], fail_on=Severity.RISK)


@pytest.fixture(scope="module")
def stopped(workplace) -> Ran:
    return run(workplace, "stopped", only="02,03")


def test_a_failed_notebook_gives_1_and_names_notebook_cell_and_error(everything):
    assert everything.code == 1
    assert "03_fails failed: cell cell-0 (In [3]): ZeroDivisionError: division by zero" in everything.printed
    assert f"Partial report: {everything.out}/03_fails.html" in everything.printed


def test_keep_going_runs_the_rest_but_not_the_appendix(everything):
    assert re.search(r"^07_verdict +ok +\d+\.\d s +The wiring is wrong\.$", everything.printed, re.M)
    assert "00_appendix" not in everything.printed


def test_ways_to_end_early_are_failures(everything):
    assert "04_exits failed: it ended early in cell cell-0" in everything.printed
    assert re.search(r"^05_dies failed: cell cell-0 \(In \[.\]\): the kernel was killed", everything.printed, re.M)
    assert "06_saves_nothing failed: it wrote no results file" in everything.printed


def test_failed_notebooks_have_a_page_that_says_so(everything):
    assert "ZeroDivisionError" in everything.page("03_fails")
    for name in ("02_mistake", "03_fails", "04_exits", "05_dies", "06_saves_nothing"):
        assert "did not finish" in everything.page(name)
        assert (everything.out / "notebooks" / f"{name}.ipynb").exists()
    assert "Traceback (most" not in everything.page("02_mistake")


def test_a_user_mistake_gives_2_and_its_sentence_and_stops_the_run(stopped):
    assert stopped.code == 2
    assert "\nExpected fc.weight, found <nothing>.\n" in stopped.printed
    assert "Traceback" not in stopped.printed
    assert re.search(r"^03_fails +not run", stopped.printed, re.M)
    assert not (stopped.out / "03_fails.html").exists()
    assert "there is no verdict" in stopped.page("index")


def test_output_that_is_piped_is_plain(everything):
    assert "\x1b" not in everything.printed
    assert everything.printed.rstrip().endswith(f"Report: {everything.out}/index.html")


def test_fail_on_gives_3_for_a_finding_of_that_severity(first):
    assert first.code == 3


def test_results_hold_what_was_recorded(first):
    results = json.loads((first.out / "results" / "01_good.json").read_text(encoding="utf-8"))
    assert results["parameters"] == {"device": "auto", "steps": 6, "interactive": False}
    assert results["numbers"] == {"lengths": {"al": 1.5, "none": None, "steps": 6}}
    assert results["answer"] == "It takes 6 steps & <more>."
    assert results["unanswered"] == [{"question": "Who <knows>?", "needs": "a log"}]
    assert [finding["code"] for finding in results["findings"]] == ["cost.risk"]
    assert results["case"]["name"] == "tiny"
    assert set(results["versions"]) == {"python", "torch", "eagle3lib", "device"}


def test_the_same_run_gives_the_same_bytes(first, workplace):
    again = run(workplace, "again", only="01", settings=["steps=6"], fail_on=Severity.FAULT)
    assert again.code == 0  # its finding is a risk
    for name in ("01_good.html", "results/01_good.json", "tables/01_norms_slots.csv"):
        assert (again.out / name).read_bytes() == (first.out / name).read_bytes()


def test_a_later_run_keeps_the_pages_of_notebooks_left_out(first, workplace):
    later = run(workplace, "first", only="04")
    assert re.search(r"^01_good +earlier", later.printed, re.M)
    assert 'href="01_good.html"' in later.page("index")


def test_results_of_another_case_are_not_mixed_in(first, workplace):
    ran = run(workplace, "first", only="04", case="other.toml")
    assert ran.code == 2
    assert "give another --out" in ran.printed


@pytest.mark.parametrize("name", ["index", "01_good", "03_fails", "07_verdict"])
def test_pages_need_nothing_from_elsewhere(everything, name):
    text = everything.page(name)
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag in ("iframe", "object", "embed", "base")]
    for _, attributes in page.tags:
        for key in ("src", "href"):
            assert not re.match(r"(?!data:(image/png|,))\w+:|//", attributes.get(key, "")), attributes[key]
    assert not re.search(r"url\(|@import", text)
    assert len(text) < 2_000_000
    assert ("html", {"lang": "en"}) in page.tags


@pytest.mark.parametrize("name", ["index", "01_good", "03_fails"])
def test_a_page_s_policy_allows_its_own_script_and_nothing_else(everything, name):
    text = everything.page(name)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for tag, a in Page(text).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert policy.endswith(f"script-src 'sha256-{digest}'")


@pytest.mark.parametrize("name", ["index", "01_good", "07_verdict"])
def test_ids_and_headings_are_unique_and_headings_do_not_skip_a_level(everything, name):
    page = Page(everything.page(name))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))


@pytest.mark.parametrize("name", ["index", "01_good"])
def test_the_keyboard_reaches_the_content_first_and_whatever_scrolls(everything, name):
    tags = Page(everything.page(name)).tags
    first = next(attributes for tag, attributes in tags if tag == "a")
    assert first["href"] == "#content"
    assert ("main", {"id": "content"}) in tags
    boxes = [attributes for tag, attributes in tags if attributes.get("class") in ("table", "scroll") or tag == "pre"]
    assert boxes
    assert all(box.get("tabindex") == "0" for box in boxes)


@pytest.mark.parametrize("name", ["index", "01_good", "07_verdict"])
def test_links_lead_somewhere(everything, name):
    targets = [attributes["href"] for tag, attributes in Page(everything.page(name)).tags if tag == "a"]
    local = [target for target in targets if not target.startswith("#")]
    assert local
    assert all((everything.out / target).exists() for target in local)


def test_pages_are_readable_without_seeing_and_escape_what_is_not_theirs(everything):
    page = everything.page("01_good")
    images = [attributes for tag, attributes in Page(page).tags if tag == "img"]
    assert [image["alt"] for image in images] == ['a line that "rises" <up>']
    assert "<caption><span>Norms &amp; slots</span></caption>" in page
    assert 'scope="col"' in page
    assert "<script>alert" not in page
    assert "A &lt;risk&gt;" in page
    assert page.count("<math") == 2
    assert "$$" not in page


def test_the_first_page_states_the_verdict_and_its_evidence(everything):
    page = everything.page("index")
    assert '<h1 id="verdict" data-text>fc is fed &lt;wrong&gt; states.</h1>' in page
    assert "&lt;b&gt;Wrong&lt;/b&gt;" in page
    for text in ("1.66", "1.60 to 1.70", "SGLang", "ids: [-1]", "Who &lt;knows&gt;?", "It takes 4 steps"):
        assert text in page


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"case": "none.toml"}, "Expected a case file at"),
        ({"only": "09"}, "--only names 09, but the notebooks are 00, 01,"),
        ({"settings": ["stpes=6"]}, "--set stpes: no such parameter; did you mean steps"),
        ({"settings": ["zzz=6"]}, "the selected notebooks take names, steps."),
        ({"settings": ["steps"]}, "has no value"),
        ({"settings": ["steps=six"]}, "01_good takes steps as int, for example steps=4."),
        ({"settings": ["names={"]}, "takes names as list"),
        ({"settings": ["device=cpu"]}, "use --device"),
        ({"settings": ["interactive=true"]}, "sliders need JupyterLab"),
    ],
)
def test_bad_arguments_give_2_and_one_sentence(workplace, options, sentence):
    ran = run(workplace, "bad", **options)
    assert ran.code == 2
    assert sentence in ran.printed
    assert len(ran.printed.strip().splitlines()) == 1
    assert not ran.out.exists()


def test_a_device_that_is_none_leaves_the_report_as_it_was(workplace):
    report = run(workplace, "kept", only="1", settings=["steps=6"])
    before = sorted(path.name for path in report.out.rglob("*"))
    assert before
    ran = run(workplace, "kept", only="1", settings=["steps=6"], device="tpu")
    assert ran.code == 2 and ran.printed.count("\n") == 1 and "found 'tpu'" in ran.printed
    assert sorted(path.name for path in report.out.rglob("*")) == before


def test_the_command_line_passes_codes_on(workplace):
    done = CliRunner().invoke(app, ["run", "--case", str(workplace / "none.toml")])
    assert done.exit_code == 2
    assert "Expected a case file at" in done.stderr
    assert CliRunner().invoke(app, ["run", "--fail-on", "note"]).exit_code == 2


def test_help_names_the_folder_that_a_report_goes_to():
    """Words in square brackets would be taken for markup, and left out."""
    done = CliRunner().invoke(app, ["run", "--help"])
    assert "reports/NAME" in done.stdout


def test_a_table_is_left_as_csv_that_a_spreadsheet_does_not_run(first):
    text = (first.out / "tables" / "01_norms_slots.csv").read_text(encoding="utf-8")
    assert text == "slot,norm\n<script>alert(1)</script>,345.678\n'=1+1,-2.0\n"
    assert 'href="tables/01_norms_slots.csv"' in first.page("index")


def test_the_archive_holds_the_report_and_its_links_work_there(first, everything, tmp_path):
    for ran in (first, everything):
        with zipfile.ZipFile(ran.out / "report.zip") as packed:
            packed.extractall(tmp_path / ran.out.name)
        (folder,) = (tmp_path / ran.out.name).iterdir()
        assert folder.name == "tiny-report"
        for page in folder.glob("*.html"):
            targets = [a["href"] for tag, a in Page(page.read_text(encoding="utf-8")).tags if tag == "a"]
            local = [target for target in targets if not target.startswith("#")]
            assert local
            assert all((folder / target).exists() for target in local)
    assert not list(tmp_path.rglob("run.json"))


def test_links_between_notebooks_lead_to_pages_and_others_are_words(everything):
    page = everything.page("01_good")
    assert '<a href="02_mistake.html">next</a>' in page
    assert "09_none" not in page
    assert "docs.md" not in page
    assert "the docs" in page
