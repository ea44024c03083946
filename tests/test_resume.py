"""A run that was stopped or failed, and the run after it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from tiny_notebooks import START, notebook

from eagle3lib import fingerprint, run
from eagle3lib.console import seconds_left
from eagle3lib.execution import Outcome, Status, executed_path
from eagle3lib.results import results_path, write_json
from eagle3lib.run import run_notebooks

ROOT = Path(run.__file__).resolve().parent.parent
NAMES = ("01_one", "02_two", "03_three")


def workplace(folder: Path) -> Path:
    (folder / "draft").mkdir()
    (folder / "draft" / "model.safetensors").write_bytes(b"weights")
    (folder / "case.toml").write_text('name = "tiny"\n[draft]\npath = "draft"\n', encoding="utf-8")
    (folder / "notebooks").mkdir()
    for name in NAMES:
        notebook(folder / "notebooks" / f"{name}.ipynb", "1")
    return folder


class Runs:
    """Runs in this process without kernels: `ran` names what the last one started, `parameters` with what."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.ran: list[str] = []
        self.parameters: list[dict] = []
        self.end_at: tuple[str, Status | None] | None = None  # None: Ctrl-C
        monkeypatch.setattr(run, "execute", self._execute)

    def _execute(self, notebook, parameters, out, on_cell):
        self.ran.append(notebook.name)
        self.parameters.append(parameters)
        if self.end_at and self.end_at[0] == notebook.name:
            if self.end_at[1] is None:
                raise KeyboardInterrupt
            return Outcome(notebook, self.end_at[1], 1.0, "it ended")
        for path in (executed_path(notebook, out), results_path(out, notebook.name)):
            path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebook.path, executed_path(notebook, out))
        record = {"case": {"name": "tiny", "path": str(self.folder / "case.toml")}, "answer": "Yes.", "findings": [],
                  "unanswered": [], "versions": {}}  # fmt: skip
        write_json(results_path(out, notebook.name), record)
        return Outcome(notebook, Status.OK, 1.0)

    def __call__(self, **options) -> list[str]:
        self.ran, self.parameters = [], []
        self.code = run_notebooks(
            self.folder / "case.toml", self.folder / "out", folder=self.folder / "notebooks", **options
        )
        return self.ran


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Runs:
    return Runs(workplace(tmp_path), monkeypatch)


@pytest.mark.parametrize("end", [None, Status.FAILED, Status.INPUT])
def test_a_run_that_did_not_come_to_its_end_goes_on_there(runs, end, capsys):
    runs.end_at = ("02_two", end)
    assert runs() == ["01_one", "02_two"]
    assert runs.code == {None: 130, Status.FAILED: 1, Status.INPUT: 2}[end]
    runs.end_at = None
    capsys.readouterr()
    assert runs() == ["02_two", "03_three"]
    assert runs.code == 0
    assert "01_one                   kept" in capsys.readouterr().out
    assert all((runs.folder / "out" / f"{name}.html").exists() for name in NAMES)


def test_a_run_that_came_to_its_end_is_made_anew(runs):
    assert runs() == list(NAMES)
    assert runs() == list(NAMES)


def test_what_comes_after_a_notebook_that_runs_again_runs_too(runs):
    """With --keep-going the third was finished without the second, whose results it may read."""
    runs.end_at = ("02_two", Status.FAILED)
    assert runs(keep_going=True) == list(NAMES)
    runs.end_at = None
    assert runs() == ["02_two", "03_three"]


def test_fresh_starts_over(runs):
    runs.end_at = ("03_three", None)
    runs()
    runs.end_at = None
    assert runs(fresh=True) == list(NAMES)


@pytest.mark.parametrize(
    "options", [{"only": "01,02"}, {"settings": ["steps=6"]}, {"device": "cpu"}], ids=["selection", "setting", "device"]
)
def test_another_command_does_not_go_on(runs, options):
    runs.end_at = ("03_three", None)
    runs()
    runs.end_at = None
    assert runs(**options)[0] == "01_one"


def change(folder: Path, what: str) -> None:
    file = {
        "case": folder / "case.toml",
        "weights": folder / "draft" / "model.safetensors",
        "notebook": folder / "notebooks" / "02_two.ipynb",
    }[what]
    file.write_text(file.read_text(encoding="utf-8") + "\n", encoding="utf-8")


@pytest.mark.parametrize(("what", "again"), [("case", NAMES), ("weights", NAMES), ("notebook", NAMES[1:])])
def test_what_changed_runs_again(runs, what, again):
    runs.end_at = ("03_three", None)
    runs()
    runs.end_at = None
    change(runs.folder, what)
    assert runs() == list(again)


def test_a_file_rewritten_at_the_same_size_is_another(runs):
    runs.end_at = ("03_three", None)
    runs()
    runs.end_at = None
    os.utime(runs.folder / "draft" / "model.safetensors", (1, 1))
    assert runs() == list(NAMES)


def test_another_version_of_the_package_runs_again(runs, monkeypatch, tmp_path_factory):
    runs.end_at = ("03_three", None)
    runs()
    runs.end_at = None
    other = tmp_path_factory.mktemp("package")
    (other / "forward.py").write_text("1")
    monkeypatch.setattr(fingerprint, "PACKAGE", other)
    assert runs() == list(NAMES)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"selected": 3, "more": 1}'])
def test_a_damaged_record_is_no_record(runs, text):
    runs.end_at = ("03_three", None)
    runs()
    runs.end_at = None
    (runs.folder / "out" / "run.json").write_text(text)
    assert runs() == list(NAMES)


def test_the_time_left_turns_from_what_is_usual_to_the_pace():
    assert seconds_left(100, 0, 0) == 100
    assert seconds_left(100, 100, 250) == 0
    assert seconds_left(100, 50, 50) == pytest.approx(50)
    early, late = seconds_left(100, 10, 30), seconds_left(100, 90, 270)  # three times slower than usual
    assert 90 < early < 3 * 90
    assert 10 < late == pytest.approx(10 * 2.8)


DRIVER = """\
import sys
from pathlib import Path
from eagle3lib.run import run_notebooks
folder = Path(sys.argv[1])
sys.exit(run_notebooks(folder / "case.toml", folder / "out", folder=folder / "notebooks"))"""


def start(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", DRIVER, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_ctrl_c_leaves_whole_reports_and_the_next_run_goes_on(tmp_path):
    """With real kernels and a real signal, twice: what is printed has no control characters."""
    folder = workplace(tmp_path)
    count = 'open("{0}/ran_{1}", "a").write("x")'
    waits = 'import time\nfrom pathlib import Path\nwhile not Path("{0}/go").exists(): time.sleep(0.05)'
    begin, save = START.format(name="{1}"), 'book.answer("Done.")\nbook.save()'
    for name, middle in zip(NAMES, ("1", waits, "1"), strict=True):
        cells = [cell.format(tmp_path, name) for cell in (begin, count, middle)]
        notebook(folder / "notebooks" / f"{name}.ipynb", *cells, save)
    first = start(folder)
    deadline = time.monotonic() + 300
    while not (tmp_path / "ran_02_two").exists() and first.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first.send_signal(signal.SIGINT)
    printed, _ = first.communicate(timeout=300)
    out = tmp_path / "out"
    assert first.returncode == 130, printed
    assert "Stopped in 02_two; the same command goes on from there." in printed
    assert "Traceback" not in printed
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "The run was stopped before its verdict" in page
    assert 'href="01_one.html"' in page
    assert zipfile.ZipFile(out / "report.zip").testzip() is None
    assert not (out / "02_two.html").exists()
    assert not (out / "results" / "02_two.json").exists()
    assert not [path for path in out.rglob("*") if "part" in path.name]

    (tmp_path / "go").touch()
    second = start(folder)
    more, _ = second.communicate(timeout=300)
    assert second.returncode == 0, more
    assert [len((tmp_path / f"ran_{name}").read_text()) for name in NAMES] == [1, 2, 1]
    assert not set(printed + more) & ({chr(i) for i in range(32)} - {"\n"})
    assert json.loads((out / "run.json").read_text())["complete"] is True
