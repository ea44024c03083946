"""The command line: runs the notebooks in order and writes the report.

Exit codes: 0 ran, whatever the verdict; 1 a notebook failed; 2 a user's mistake; 3 `--fail-on` met; 130 stopped by
Ctrl-C, after which the same command goes on with what is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from eagle3lib.case import load_case
from eagle3lib.console import RunProgress, ended_line, plain_console, summary
from eagle3lib.device import resolve_device
from eagle3lib.errors import InputError
from eagle3lib.execution import Outcome, Status, execute
from eagle3lib.findings import Severity
from eagle3lib.fingerprint import fingerprint, inputs_digest
from eagle3lib.first_page import findings_of, write_index
from eagle3lib.notebooks import Notebook, find_notebooks, parse_settings, select
from eagle3lib.out_folder import earlier, hide_text, make_room
from eagle3lib.report import Report, write_pages
from eagle3lib.report_zip import write_zip
from eagle3lib.results import PROJECT_ROOT, file_name, load_results, relative_to_root
from eagle3lib.run_record import RunRecord, load_record, to_keep

NOTEBOOKS = PROJECT_ROOT / "notebooks"
BUNDLED_CASE = PROJECT_ROOT / "data" / "smollm2" / "case.toml"
STOPPED = 130  # as shells say of a program that Ctrl-C ended


OnlyOption = Annotated[str | None, typer.Option(help="Numbers of the notebooks to run, such as 03,04.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="A parameter as name=value; repeatable.")]
FailOnOption = Annotated[Literal["fault", "risk"] | None, typer.Option(help="Exit 3 on such a finding.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Start over, though a stopped run could go on.")]
HideOption = Annotated[bool, typer.Option("--hide-text", help="Show no prompt or response text, for sharing outside.")]


def run(
    case: Annotated[Path, typer.Option(help="The case to investigate.")] = BUNDLED_CASE,
    out: Annotated[Path | None, typer.Option(help="The report's folder; else reports/NAME.")] = None,
    only: OnlyOption = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    settings: SetOption = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Run the rest after a failure.")] = False,
    fail_on: FailOnOption = None,
    fresh: FreshOption = False,
    hide_text: HideOption = False,
) -> None:
    """Run the notebooks on a case and write an HTML report.

    A run that was stopped or that failed goes on when the same command is
    given again: notebooks that it finished are kept as long as the case, the
    files it names (by size and time), the parameters, the notebooks and this
    package are unchanged. A run that came to its end is made anew.
    """
    limit = Severity(fail_on) if fail_on else None
    raise typer.Exit(
        run_notebooks(case, out, only, device, settings or [], keep_going, limit, fresh=fresh, hidden=hide_text)
    )


def run_notebooks(
    case: Path = BUNDLED_CASE,
    out: Path | None = None,
    only: str | None = None,
    device: str = "auto",
    settings: list[str] | None = None,
    keep_going: bool = False,
    fail_on: Severity | None = None,
    folder: Path = NOTEBOOKS,
    fresh: bool = False,
    hidden: bool = False,
) -> int:
    """Run the selected notebooks of `folder` and write the report; returns the exit code."""
    try:
        loaded = load_case(case.expanduser())
        notebooks = find_notebooks(folder)
        selected = select(notebooks, only)
        values = parse_settings(settings or [], selected, notebooks)
        resolve_device(device)  # refused before the folder is cleared
        out = (out or PROJECT_ROOT / "reports" / file_name(loaded.name)).expanduser().absolute()
        if hidden:
            hide_text(values, selected, notebooks, out)
        common = {"case": str(loaded.path), "out": str(out), "device": device, "interactive": False}
        taken = {
            notebook.name: {key: value for key, value in common.items() if key in notebook.parameters}
            | values[notebook.name]
            for notebook in selected
        }
        inputs = inputs_digest(loaded)
        prints = {n.name: fingerprint(n, taken[n.name], inputs) for n in selected}
        last = RunRecord(seconds=load_record(out).seconds) if fresh else load_record(out)
        kept = to_keep(last, selected, prints, out)
        make_room(out, relative_to_root(loaded.path), selected, kept)
    except InputError as error:
        plain_console(stderr=True).print(escape(str(error)), style="red")
        return 2
    report = Report(out, {"name": loaded.name, "path": relative_to_root(loaded.path)}, device, values, hidden)
    record = RunRecord([n.name for n in selected], False, {n.name: prints[n.name] for n in kept}, last.seconds)
    _run_all(report, record, selected, taken, prints, keep_going)
    report.outcomes.extend(earlier(notebooks, selected, out))
    report.outcomes.sort(key=lambda outcome: outcome.notebook.name)
    write_pages(report)
    index = write_index(report)
    write_zip(report)
    record.complete = all(o.status in (Status.OK, Status.KEPT, Status.EARLIER) for o in report.outcomes)
    record.save(out)
    console = plain_console()
    console.print(summary(report))
    console.print(f"Report: {escape(str(index))}")
    return _exit_code(report, fail_on)


def _run_all(
    report: Report,
    record: RunRecord,
    selected: list[Notebook],
    taken: dict[str, dict[str, Any]],
    prints: dict[str, str],
    keep_going: bool,
) -> None:
    """Run what is not kept, print how each ended, and record it at once, for a run that goes on from here."""
    console = plain_console()
    kept = [notebook for notebook in selected if notebook.name in record.fingerprints]
    for notebook in kept:
        outcome = Outcome(notebook, Status.KEPT, record.seconds.get(notebook.name))
        report.outcomes.append(outcome)
        console.print(ended_line(outcome, report.out))
    record.save(report.out)
    rest = [notebook for notebook in selected if notebook not in kept]
    try:
        with RunProgress(console, rest, record.seconds) as progress:
            for notebook in rest:
                if not keep_going and any(o.status in (Status.FAILED, Status.INPUT) for o in report.outcomes):
                    report.outcomes.append(Outcome(notebook, Status.NOT_RUN, message="an earlier notebook failed"))
                    continue
                progress.begin(notebook)
                outcome = execute(notebook, taken[notebook.name], report.out, progress.cell_done)
                progress.end()
                report.outcomes.append(outcome)
                if outcome.status is Status.OK:
                    record.fingerprints[notebook.name] = prints[notebook.name]
                    record.seconds[notebook.name] = outcome.seconds
                    record.save(report.out)
                console.print(ended_line(outcome, report.out))
    except KeyboardInterrupt:
        report.stopped = True
        there = [outcome.notebook for outcome in report.outcomes]
        missing = [notebook for notebook in selected if notebook not in there]
        report.outcomes.extend(Outcome(n, Status.NOT_RUN, message="the run was stopped") for n in missing)
        console.print(f"Stopped in {missing[0].name}; the same command goes on from there.")


def _exit_code(report: Report, fail_on: Severity | None) -> int:
    if report.stopped:
        return STOPPED
    statuses = {outcome.status for outcome in report.outcomes}
    if Status.FAILED in statuses:
        return 1
    if Status.INPUT in statuses:
        return 2
    ran = [o.notebook.name for o in report.outcomes if o.status in (Status.OK, Status.KEPT)]
    findings = findings_of([load_results(report.out, name) or {} for name in ran])
    severities = list(Severity)
    if fail_on and any(severities.index(f["severity"]) <= severities.index(fail_on) for f in findings):
        return 3
    return 0
