"""A report's folder before a run: what it clears, what it keeps of earlier ones, and what must not be shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.execution import Outcome, Status, executed_path
from eagle3lib.first_page import VERDICT_NUMBER
from eagle3lib.notebooks import APPENDIX, Notebook
from eagle3lib.report import page_path
from eagle3lib.results import load_results, results_path
from eagle3lib.tables import table_paths


def make_room(out: Path, case: str, selected: list[Notebook], kept: list[Notebook]) -> None:
    """Remove what this run will write again, so that nothing of an earlier run passes for its result.

    Raises:
        InputError: if the folder holds results of another case.
    """
    for path in sorted((out / "results").glob("[0-9][0-9]_*.json")):
        found = (load_results(out, path.stem) or {})["case"]["path"]
        if found != case:
            raise InputError(f"{out} holds results of {found}, not of {case}; give another --out.")
    (out / "report.zip").unlink(missing_ok=True)
    again = [notebook for notebook in selected if notebook not in kept]
    for notebook in again:
        for path in (
            results_path(out, notebook.name),
            page_path(notebook, out),
            executed_path(notebook, out),
            *table_paths(out, notebook.name),
        ):
            path.unlink(missing_ok=True)
    if any(notebook.number == VERDICT_NUMBER for notebook in again):
        for path in [*(out / "results").glob("verdict.*"), *(out / "patched").glob("*")]:
            path.unlink(missing_ok=True)


def earlier(notebooks: list[Notebook], selected: list[Notebook], out: Path) -> list[Outcome]:
    """Notebooks that were left out this time, but whose page and results are there from an earlier run."""
    rest = [notebook for notebook in notebooks if notebook not in selected]
    return [
        Outcome(notebook, Status.EARLIER)
        for notebook in rest
        if page_path(notebook, out).exists() and results_path(out, notebook.name).exists()
    ]


def hide_text(
    values: dict[str, dict[str, Any]], selected: list[Notebook], notebooks: list[Notebook], out: Path
) -> None:
    """Set `hide_text` in every selected notebook that takes it.

    Raises:
        InputError: if a notebook is selected, or one of an earlier run stands in `out`, that shows text.
    """
    for notebook in selected:
        if notebook.number == APPENDIX:
            raise InputError(f"--hide-text: {notebook.name} records prompts and responses; run it without.")
        if "hide_text" in notebook.parameters:
            values[notebook.name]["hide_text"] = True
    for outcome in earlier(notebooks, selected, out):
        notebook = outcome.notebook
        parameters = (load_results(out, notebook.name) or {}).get("parameters", {})
        if notebook.number == APPENDIX or ("hide_text" in notebook.parameters and not parameters.get("hide_text")):
            raise InputError(
                f"--hide-text: {out} holds the page of {notebook.name} from an earlier run that shows text; give"
                " another --out."
            )
