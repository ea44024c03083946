"""The notebooks as files: what headless runs, diffs and readers rely on."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest

from eagle3lib.notebooks import COMMON, Notebook
from eagle3lib.run import NOTEBOOKS

FILES = sorted(NOTEBOOKS.glob("*.ipynb"))
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
LONGEST_CELL = 40

pytestmark = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def parameters_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in cells(path, "code") if "parameters" in cell.metadata.get("tags", [])]


def test_is_named_by_its_place_in_the_order(path):
    assert re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem)


def test_the_kernel_is_whatever_runs_it(path):
    assert nbformat.read(path, as_version=4).metadata["kernelspec"] == KERNEL


def test_every_cell_has_an_id_of_its_own(path):
    node = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    assert (node.nbformat, node.nbformat_minor >= 5) == (4, True)
    ids = [cell.get("id") for cell in node.cells]
    assert None not in ids
    assert len(set(ids)) == len(ids)


def test_is_committed_without_outputs_or_traces_of_a_run(path):
    node = nbformat.read(path, as_version=4)
    assert set(node.metadata) <= {"kernelspec", "language_info"}
    for cell in node.cells:
        assert set(cell.metadata) <= {"tags"}
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


def test_begins_with_its_question_as_the_only_title(path):
    first = nbformat.read(path, as_version=4).cells[0]
    assert first.cell_type == "markdown"
    assert re.match(r"# .+\?", first.source), "the title is a question"
    headings = [line for cell in cells(path, "markdown") for line in re.findall(r"^#+ .+$", cell.source, re.M)]
    assert sum(line.startswith("# ") for line in headings) == 1
    assert len(set(headings)) == len(headings), "equal headings give equal anchors"


def test_one_parameters_cell_holds_typed_and_commented_literals(path):
    (cell,) = parameters_cells(path)
    lines = cell.source.splitlines()
    for statement in ast.parse(cell.source).body:
        assert isinstance(statement, ast.AnnAssign), f"without a type: {lines[statement.lineno - 1]}"
        ast.literal_eval(statement.value)
        assert "  # " in lines[statement.lineno - 1], f"without a comment: {lines[statement.lineno - 1]}"


def test_papermill_finds_every_parameter(path):
    (cell,) = parameters_cells(path)
    declared = [statement.target.id for statement in ast.parse(cell.source).body]
    assert list(Notebook(path).parameters) == declared
    assert set(COMMON) <= set(declared)


def test_ends_by_saving_its_results_under_its_own_name(path):
    code = "\n".join(cell.source for cell in cells(path, "code"))
    assert re.search(rf'\bstart\(\s*"{path.stem}",\s*case,\s*out,', code)
    assert any("book.save()" in cell.source for cell in cells(path, "code"))


def test_holds_no_absolute_path(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not re.search(r"[\"'(\s](/(home|root|Users|tmp|work|mnt|data|opt)/|[A-Z]:\\)", cell.source)


def test_installs_nothing_and_calls_no_shell(path):
    for cell in cells(path, "code"):
        assert not re.search(r"^\s*[!%]|\bpip install\b|\bsys\.exit\b|\bsubprocess\b", cell.source, re.M)


def test_has_short_cells(path):
    for cell in cells(path, "code"):
        assert len(cell.source.splitlines()) <= LONGEST_CELL, f"cell {cell.id}: logic belongs in eagle3lib"
