"""The workbook's notebooks: which there are, which were asked for, and the parameters they take."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
import papermill

from eagle3lib.errors import InputError

#: What the runner sets in every notebook; a user sets these by options of their own.
COMMON = ("case", "out", "device", "interactive")

APPENDIX = "00"  # needs more than a case holds, so it runs only when asked for by number


@dataclass(frozen=True)
class Notebook:
    """A notebook file named NN_name.ipynb."""

    path: Path

    @property
    def name(self) -> str:
        """`04_concat_order`, as in its results file and its page."""
        return self.path.stem

    @property
    def number(self) -> str:
        """`04`, as in `--only 04`."""
        return self.name[:2]

    @cached_property
    def _cells(self) -> list[nbformat.NotebookNode]:
        return nbformat.read(self.path, as_version=4).cells

    @property
    def code_cells(self) -> int:
        """How many cells a run executes: those with code, and the one that sets the parameters."""
        return 1 + sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in self._cells)

    @cached_property
    def title(self) -> str:
        """Its first heading: the question it answers."""
        text = next((cell.source for cell in self._cells if cell.cell_type == "markdown"), "")
        heading = re.search(r"^#\s+(.+)$", text, flags=re.MULTILINE)
        return heading.group(1).strip() if heading else self.name

    @cached_property
    def parameters(self) -> dict[str, tuple[str, Any]]:
        """For each parameter its type's name and its default, from the cell tagged `parameters`."""
        found = papermill.inspect_notebook(str(self.path).replace("{", "{{").replace("}", "}}"))
        return {name: _declared(p["inferred_type_name"], p["default"]) for name, p in found.items()}


def _declared(annotation: str, default: str) -> tuple[str, Any]:
    value = ast.literal_eval(default)
    return (type(value).__name__ if annotation in ("None", "") else annotation, value)


def find_notebooks(folder: Path) -> list[Notebook]:
    """All numbered notebooks of a folder, in order.

    Raises:
        InputError: if there is none.
    """
    found = [Notebook(path) for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))]
    if not found:
        raise InputError(f"No notebook named NN_name.ipynb is in {folder}.")
    return found


def select(notebooks: list[Notebook], only: str | None) -> list[Notebook]:
    """The notebooks that `--only 03,04` names, in the workbook's order; without it all but the appendix.

    Raises:
        InputError: for a number that no notebook has.
    """
    if only is None:
        return [notebook for notebook in notebooks if notebook.number != APPENDIX]
    numbers = {word.strip().zfill(2) for word in only.split(",") if word.strip()}
    known = [notebook.number for notebook in notebooks]
    if unknown := sorted(numbers - set(known)):
        raise InputError(f"--only names {', '.join(unknown)}, but the notebooks are {', '.join(known)}.")
    if not numbers:
        raise InputError(f"--only names no notebook; the notebooks are {', '.join(known)}.")
    return [notebook for notebook in notebooks if notebook.number in numbers]


def parse_settings(
    settings: list[str], selected: list[Notebook], notebooks: list[Notebook]
) -> dict[str, dict[str, Any]]:
    """What each selected notebook gets from the `--set name=value` options, by notebook name.

    Raises:
        InputError: for a name that no selected notebook takes, or a value of another type than declared.
    """
    values: dict[str, dict[str, Any]] = {notebook.name: {} for notebook in selected}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip()
        if not equals:
            raise InputError(f"--set {setting} has no value; write --set name=value.")
        takers = [notebook for notebook in selected if name in notebook.parameters]
        if not takers or name in COMMON:
            raise InputError(_refusal(name, selected, notebooks))
        for notebook in takers:
            values[notebook.name][name] = _parse(name, text.strip(), notebook)
    return values


def _refusal(name: str, selected: list[Notebook], notebooks: list[Notebook]) -> str:
    if name == "interactive":
        return "--set interactive is not possible: sliders need JupyterLab, and reports have none."
    if name in COMMON:
        return f"--set {name} is not possible: use --{name}."
    if others := [notebook.name for notebook in notebooks if name in notebook.parameters]:
        return f"--set {name}: only {', '.join(others)} takes it, which --only leaves out."
    takers = {
        parameter: [notebook.name for notebook in selected if parameter in notebook.parameters]
        for notebook in selected
        for parameter in notebook.parameters
        if parameter not in COMMON
    }
    if near := difflib.get_close_matches(name, takers, n=1):
        return f"--set {name}: no such parameter; did you mean {near[0]} (of {', '.join(takers[near[0]])})?"
    known = ", ".join(sorted(takers)) or "none"
    return f"--set {name}: no such parameter; the selected notebooks take {known}."


def _parse(name: str, text: str, notebook: Notebook) -> Any:
    declared, default = notebook.parameters[name]
    try:
        return _convert(text, declared.split("[")[0])
    except (KeyError, ValueError, SyntaxError):
        raise InputError(
            f"--set {name}={text}: {notebook.name} takes {name} as {declared}, for example {name}={default}."
        ) from None


def _convert(text: str, kind: str) -> Any:
    if kind == "str":
        return text
    if kind == "bool":
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
    if kind in ("int", "float"):
        return {"int": int, "float": float}[kind](text)
    value = ast.literal_eval(text)
    if kind in ("list", "tuple"):  # `1,2,3` will do for [1, 2, 3], which a shell would want quoted
        return list(value) if isinstance(value, list | tuple) else [value]
    if type(value).__name__ != kind:
        raise ValueError(text)
    return value
