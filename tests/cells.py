"""The code cells of a notebook, run in this process: what papermill runs, without the start of a kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat

from eagle3lib.run import NOTEBOOKS


def run_cells(name: str, case: Path, out: Path, **parameters: object) -> None:
    """Run the cells of the notebook `name` in order, with parameters laid over those of its `parameters` cell."""
    names: dict[str, object] = {"__name__": name}
    for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type != "code":
            continue
        exec(compile(cell.source, name, "exec"), names)  # noqa: S102 the workbook's own cells
        if "parameters" in cell.metadata.get("tags", []):
            unknown = parameters.keys() - names.keys()
            assert not unknown, f"{name} has no parameters {unknown}"
            names |= {"case": str(case), "out": str(out), "device": "cpu", **parameters}
