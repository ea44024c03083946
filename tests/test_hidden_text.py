"""A report for sharing outside holds no text of a prompt or response, wherever a notebook could show one."""

from __future__ import annotations

import json
from pathlib import Path

import IPython.display
import pytest
import test_small_cases
import toys
from test_resume import NAMES, Runs, workplace
from tiny_notebooks import PARAMETERS, notebook

from eagle3lib import workbook
from eagle3lib.hidden_text import hide_labels
from eagle3lib.results import results_path

#: In every token's text, and so in every prompt and response.
SECRET = "zqx"


def everything_written(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, **parameters: object) -> str:
    """All that notebook `name` shows and leaves, on samples whose texts and side table are secret."""
    shown: list[str] = []

    def display(*objects: object, **_: object) -> None:
        shown.extend(str(item.data) for item in objects)

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(workbook, "display", display)
    samples = [toys.make_sample(i, length=76, turns=((6, 74),), name=f"s{i}") for i in range(4)]
    toys.write_current_dump(folder / "dump", samples, test_small_cases.STORED)
    (folder / "side.csv").write_text("prompt,category\n" + "".join(f"{SECRET} {i % 2},coding\n" for i in range(4)))
    toys.write_target(folder / "target")
    vocabulary = {f"{SECRET}{i}": i for i in range(toys.VOCABULARY)}
    (folder / "target" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    ids = samples[0].token_ids.tolist()
    (folder / "request.json").write_text(json.dumps([*ids[:5], (ids[5] + 1) % toys.VOCABULARY, *ids[6:]]))
    if name == "02_layer_norms":
        parameters["server_tokens"] = str(folder / "request.json")
    lines = [f"boundaries = {list(test_small_cases.STORED)}", 'side_table = "side.csv"']
    test_small_cases.page(name, folder, lines, **parameters)
    left = [path for path in (folder / "out").rglob("*") if path.is_file()]
    assert any(path.suffix == ".csv" for path in left)
    return "\n".join([*shown, *(path.read_text(encoding="utf-8") for path in left if path.suffix != ".png")])


@pytest.mark.parametrize("name", ["02_layer_norms", "05_acceptance_length"])
def test_text_is_shown_unless_it_is_hidden(name, tmp_path, monkeypatch):
    (tmp_path / "shown").mkdir()
    assert SECRET in everything_written(tmp_path / "shown", name, monkeypatch)
    (tmp_path / "hidden").mkdir()
    assert SECRET not in everything_written(tmp_path / "hidden", name, monkeypatch, hide_text=True)


@pytest.mark.parametrize("name", ["03_manual_forward", "04_concat_order", "07_verdict"])
def test_other_notebooks_show_none(name, tmp_path, monkeypatch):
    assert SECRET not in everything_written(tmp_path, name, monkeypatch)


def test_labels_are_numbered_and_published_categories_stay():
    labels = {("a", 0): "write to me", ("b", 0): "coding", ("b", 1): "coding", ("c", 0): "another"}
    assert list(hide_labels(labels).values()) == ["value 2", "coding", "coding", "value 1"]


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Runs:
    """The first notebook takes `hide_text`; 00 is the appendix."""
    folder = workplace(tmp_path)
    parameters = f"{PARAMETERS}\nhide_text: bool = False  # hides"
    notebook(folder / "notebooks" / "01_one.ipynb", "1", parameters=parameters)
    notebook(folder / "notebooks" / "00_appendix.ipynb", "1")
    return Runs(folder, monkeypatch)


def test_the_option_is_given_to_every_notebook_that_takes_it(runs):
    assert runs(hidden=True) == list(NAMES)
    assert [parameters.get("hide_text") for parameters in runs.parameters] == [True, None, None]
    assert "prompts and responses are hidden" in (runs.folder / "out" / "index.html").read_text()


def test_the_appendix_cannot_hide_its_prompts(runs, capsys):
    assert runs(hidden=True, only="00") == []
    assert runs.code == 2
    assert "--hide-text: 00_appendix records prompts and responses" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "refused"), [("01", True), ("00", True), ("02", False)])
def test_pages_of_earlier_runs_that_show_text_are_not_shared(runs, before, refused, capsys):
    runs(only=before)
    assert (runs(hidden=True, only="03") == []) == refused
    assert ("that shows text" in capsys.readouterr().err) == refused


def test_an_earlier_page_that_hides_text_stays(runs):
    runs(only="01", hidden=True)
    path = results_path(runs.folder / "out", "01_one")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"parameters": {"hide_text": True}}))
    assert runs(hidden=True, only="03") == ["03_three"]
