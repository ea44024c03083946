"""Notebooks top to bottom from a fresh start, and section by section in any order after their set-up cells.

Set-up is the code above the first section heading. A section may build on it and on its own earlier cells, never on
another section, so that a reader of JupyterLab can run the one that answers their question, and run it again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import toys

from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Wiring
from eagle3lib.checks.wiring import check_wiring
from eagle3lib.notebooks import APPENDIX
from eagle3lib.results import results_path, write_json
from eagle3lib.run import NOTEBOOKS
from eagle3lib.workbook import start

#: The appendix alone, which captures, is one procedure.
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb") if not path.stem.startswith(APPENDIX))
#: The speeds of the toy's server, for notebook 06.
COST = """
[cost]
baseline = 90.0
[[cost.points]]
steps = 1
topk = 1
tokens_per_second = 80.0
acceptance_length = 1.5
[[cost.points]]
steps = 3
topk = 1
tokens_per_second = 70.0
acceptance_length = 1.9
[[cost.points]]
steps = 4
topk = 1
tokens_per_second = 65.0
acceptance_length = 2.0
"""


def parts(name: str) -> tuple[list[str], list[list[str]]]:
    """The code of the set-up cells, and of each section's cells."""
    setup, sections = [], []
    for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type == "markdown" and re.search(r"^## ", cell.source, re.M):
            sections.append([])
        elif cell.cell_type == "code":
            (sections[-1] if sections else setup).append(cell.source)
    return setup, [section for section in sections if section]


@pytest.mark.parametrize("name", NAMES)
def test_a_section_uses_only_names_of_the_setup_and_its_own(name, tmp_path):
    """The linter finds no name undefined in any section that is put right behind the set-up."""
    setup, sections = parts(name)
    for i, section in enumerate(sections):
        (tmp_path / f"section_{i}.py").write_text("\n".join([*setup, *section]), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "concise"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Run:
    """A notebook's set-up, run in this process on a toy case, and what of it is run after that."""

    def __init__(self, name: str, folder: Path, out: Path) -> None:
        self.name, self.results = name, out / "results" / f"{name}.json"
        self.setup, self.sections = parts(name)
        self.names: dict[str, object] = {"__name__": name}
        for source in self.setup:
            self._run(source)
            if "case: str" in source:
                self.names |= {"case": str(folder / "case.toml"), "out": str(out), "device": "cpu"}

    def run(self, section: list[str]) -> None:
        for source in section:
            self._run(source)

    def record(self) -> dict:
        """What has been recorded, whatever the order."""
        self.names["book"].save()
        record = json.loads(self.results.read_text(encoding="utf-8"))
        return record | {
            "findings": sorted(json.dumps(finding) for finding in record["findings"]),
            "unanswered": sorted(json.dumps(question) for question in record["unanswered"]),
        }

    def _run(self, source: str) -> None:
        exec(compile(source, self.name, "exec"), self.names)  # noqa: S102 the workbook's own cells


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    """Where the case is written."""
    path = toys.write_case(tmp_path_factory.mktemp("toy"))
    path.write_text(path.read_text(encoding="utf-8") + COST, encoding="utf-8")
    return path.parent


def leave_earlier(out: Path, name: str) -> None:
    """What notebooks 04 and 05 would leave for `name`: wirings that differ, and what a round yields."""
    rows = [
        {
            "wiring": wiring,
            "K": k,
            "walk": 1 + k * gain,
            "low": 1 + k * gain / 2,
            "high": 1 + 2 * k * gain,
            "rounds": 90,
        }
        for wiring, gain in (("trained", 0.3), ("served", 0.1))
        for k in range(1, 5)
    ]
    lengths = [Estimate(value, value - 0.1, value + 0.1, 90) for value in (1.9, 1.3, 0.6)]
    finding = check_wiring(Wiring(toys.SLOTS), Wiring((0, 1, 4)), *lengths)
    records = {
        "04_concat_order": ({"training_wiring": list(toys.SLOTS)}, [finding.to_json()]),
        "05_acceptance_length": ({"acceptance_length": rows}, []),
    }
    for earlier, (numbers, findings) in records.items():
        if earlier < name:
            record = {"case": {"name": "toy"}, "numbers": numbers, "findings": findings, "unanswered": []}
            write_json(results_path(out, earlier), record)


def test_a_notebook_takes_no_number_of_another_case(toy, tmp_path):
    leave_earlier(tmp_path, "05_acceptance_length")
    book = start("05_acceptance_length", toy / "case.toml", tmp_path, {})
    assert book.earlier("04_concat_order") == {"training_wiring": list(toys.SLOTS)}
    assert book.earlier("03_manual_forward") == {}
    write_json(results_path(tmp_path, "04_concat_order"), {"case": {"name": "other"}, "numbers": {"found": 1}})
    assert book.earlier("04_concat_order") == {}


@pytest.mark.parametrize("name", NAMES)
def test_sections_run_in_any_order_and_record_the_same(name, toy, tmp_path):
    """Forwards, and backwards from a fresh start; the last section, run first, ends without the others."""
    for order in ("forwards", "backwards"):
        leave_earlier(tmp_path / order, name)
    forwards, backwards = (Run(name, toy, tmp_path / order) for order in ("forwards", "backwards"))
    for section in forwards.sections:
        forwards.run(section)
    for section in reversed(backwards.sections):
        backwards.run(section)
    assert forwards.record() == backwards.record()
    assert forwards.record()["answer"]
    assert forwards.record()["numbers"]
