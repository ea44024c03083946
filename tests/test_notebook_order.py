"""Notebooks top to bottom from a fresh start, and section by section in any order after their set-up cells.

Set-up is the code above the first section heading. A section may build on it and on its own earlier cells, never on
another section, so that a reader of JupyterLab can run the one that answers their question, and run it again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat
import pytest
import toys

from eagle3lib.notebooks import APPENDIX
from eagle3lib.run import NOTEBOOKS

#: The appendix alone, which captures, is one procedure.
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb") if not path.stem.startswith(APPENDIX))
#: Notebooks whose sections still build on each other.
CHAINED = ("03_manual_forward", "04_concat_order", "06_serving_cost", "07_verdict")


def parts(name: str) -> tuple[list[str], list[list[str]]]:
    """The code of the set-up cells, and of each section's cells."""
    setup, sections = [], []
    for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type == "markdown" and re.search(r"^## ", cell.source, re.M):
            sections.append([])
        elif cell.cell_type == "code":
            (sections[-1] if sections else setup).append(cell.source)
    return setup, [section for section in sections if section]


def chained(names: Iterable[str]) -> list:
    why = "its sections build on each other"
    return [pytest.param(n, marks=pytest.mark.xfail(n in CHAINED, reason=why, strict=True)) for n in names]


@pytest.mark.parametrize("name", chained(NAMES))
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
    return toys.write_case(tmp_path_factory.mktemp("toy")).parent


@pytest.mark.parametrize("name", chained(NAMES))
def test_sections_run_in_any_order_and_record_the_same(name, toy, tmp_path):
    """Forwards, and backwards from a fresh start; the last section, run first, ends without the others."""
    forwards, backwards = (Run(name, toy, tmp_path / order) for order in ("forwards", "backwards"))
    for section in forwards.sections:
        forwards.run(section)
    for section in reversed(backwards.sections):
        backwards.run(section)
    assert forwards.record() == backwards.record()
