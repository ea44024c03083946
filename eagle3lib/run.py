"""The command line: runs the notebooks in order and writes the report.

Exit codes: 0 ran, whatever the verdict; 1 a notebook failed; 2 a user's mistake; 3 `--fail-on` met.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eagle3lib.case import load_case
from eagle3lib.errors import InputError
from eagle3lib.execution import Outcome, Status, execute, executed_path
from eagle3lib.findings import Severity
from eagle3lib.first_page import VERDICT_NUMBER, findings_of, write_index
from eagle3lib.notebooks import Notebook, find_notebooks, parse_settings, select
from eagle3lib.report import Report, page_path, write_pages
from eagle3lib.results import PROJECT_ROOT, load_results, relative_to_root, results_path

NOTEBOOKS = PROJECT_ROOT / "notebooks"
BUNDLED_CASE = PROJECT_ROOT / "data" / "smollm2" / "case.toml"

COLOURS = {Status.OK: "green", Status.FAILED: "red", Status.INPUT: "red"}


OnlyOption = Annotated[str | None, typer.Option(help="Numbers of the notebooks to run, such as 03,04.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="A parameter as name=value; repeatable.")]
FailOnOption = Annotated[Literal["fault", "risk"] | None, typer.Option(help="Exit 3 on such a finding.")]


def run(
    case: Annotated[Path, typer.Option(help="The case to investigate.")] = BUNDLED_CASE,
    out: Annotated[Path | None, typer.Option(help="The report's folder [reports/CASE].")] = None,
    only: OnlyOption = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    settings: SetOption = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Run the rest after a failure.")] = False,
    fail_on: FailOnOption = None,
) -> None:
    """Run the notebooks on a case and write an HTML report."""
    limit = Severity(fail_on) if fail_on else None
    raise typer.Exit(run_notebooks(case, out, only, device, settings or [], keep_going, limit))


def run_notebooks(
    case: Path = BUNDLED_CASE,
    out: Path | None = None,
    only: str | None = None,
    device: str = "auto",
    settings: list[str] | None = None,
    keep_going: bool = False,
    fail_on: Severity | None = None,
    folder: Path = NOTEBOOKS,
) -> int:
    """Run the selected notebooks of `folder` and write the report; returns the exit code."""
    try:
        loaded = load_case(case.expanduser())
        notebooks = find_notebooks(folder)
        selected = select(notebooks, only)
        values = parse_settings(settings or [], selected, notebooks)
        out = (out or PROJECT_ROOT / "reports" / re.sub(r"[^\w.-]+", "-", loaded.name)).expanduser().absolute()
        _make_room(out, relative_to_root(loaded.path), selected)
    except InputError as error:
        _console(stderr=True).print(escape(str(error)), style="red")
        return 2
    report = Report(out, {"name": loaded.name, "path": relative_to_root(loaded.path)}, device, values)
    common = {"case": str(loaded.path), "out": str(out), "device": device, "interactive": False}
    console = _console()
    for notebook in selected:
        stopped = not keep_going and any(o.status is not Status.OK for o in report.outcomes)
        if stopped:
            report.outcomes.append(Outcome(notebook, Status.NOT_RUN, message="an earlier notebook failed"))
            continue
        taken = {key: value for key, value in common.items() if key in notebook.parameters}
        with console.status(f"{notebook.name} ..."):
            outcome = execute(notebook, taken | values[notebook.name], out)
        report.outcomes.append(outcome)
        console.print(_progress_line(outcome, out))
    report.outcomes.extend(_earlier(notebooks, selected, out))
    report.outcomes.sort(key=lambda outcome: outcome.notebook.name)
    write_pages(report)
    index = write_index(report)
    console.print(_summary(report))
    console.print(f"Report: {escape(str(index))}")
    return _exit_code(report, fail_on)


def _make_room(out: Path, case: str, selected: list[Notebook]) -> None:
    """Remove what this run will write again, so that nothing of an earlier run passes for its result."""
    for path in sorted((out / "results").glob("[0-9][0-9]_*.json")):
        found = (load_results(out, path.stem) or {})["case"]["path"]
        if found != case:
            raise InputError(f"{out} holds results of {found}, not of {case}; give another --out.")
    for notebook in selected:
        for path in (
            results_path(out, notebook.name),
            page_path(notebook, out),
            executed_path(notebook, out),
        ):
            path.unlink(missing_ok=True)
    if any(notebook.number == VERDICT_NUMBER for notebook in selected):
        for name in ("verdict.json", "verdict.png"):
            (out / "results" / name).unlink(missing_ok=True)


def _earlier(notebooks: list[Notebook], selected: list[Notebook], out: Path) -> list[Outcome]:
    """Notebooks that were left out this time, but whose page and results are there from an earlier run."""
    rest = [notebook for notebook in notebooks if notebook not in selected]
    return [
        Outcome(notebook, Status.EARLIER)
        for notebook in rest
        if page_path(notebook, out).exists() and results_path(out, notebook.name).exists()
    ]


def _console(stderr: bool = False) -> Console:
    """A console that folds no line, and that paints nothing when its output is piped."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def _progress_line(outcome: Outcome, out: Path) -> str:
    """What became of a notebook: its answer, or the sentence that says why there is none."""
    name = outcome.notebook.name
    colour = COLOURS[outcome.status]
    line = f"{name:<24} [{colour}]{outcome.status.value:<11}[/] {outcome.seconds:6.1f} s"
    if outcome.status is Status.OK:
        return f"{line}  {escape((load_results(out, name) or {}).get('answer') or '')}"
    if outcome.status is Status.INPUT:
        return f"{line}\n{escape(outcome.message)}"
    page = page_path(outcome.notebook, out)
    return f"{line}\n{name} failed: {escape(outcome.message)}\nPartial report: {escape(str(page))}"


def _summary(report: Report) -> Table:
    table = Table("notebook", "status", "seconds", "page", box=None, pad_edge=False, header_style="bold")
    for outcome in report.outcomes:
        page = page_path(outcome.notebook, report.out)
        seconds = "" if outcome.seconds is None else f"{outcome.seconds:.1f}"
        colour = COLOURS.get(outcome.status, "dim")
        name = page.name if page.exists() else ""
        table.add_row(outcome.notebook.name, f"[{colour}]{outcome.status.value}[/]", seconds, name)
    return table


def _exit_code(report: Report, fail_on: Severity | None) -> int:
    statuses = {outcome.status for outcome in report.outcomes}
    if Status.FAILED in statuses:
        return 1
    if Status.INPUT in statuses:
        return 2
    ran = [o.notebook.name for o in report.outcomes if o.status is Status.OK]
    findings = findings_of([load_results(report.out, name) or {} for name in ran])
    severities = list(Severity)
    if fail_on and any(severities.index(f["severity"]) <= severities.index(fail_on) for f in findings):
        return 3
    return 0
