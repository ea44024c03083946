"""The report's first page: the verdict in one sentence, what supports it, and where to read on."""

from __future__ import annotations

import base64
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from eagle3lib.execution import Outcome, Status, executed_path
from eagle3lib.findings import Severity
from eagle3lib.markup import format_value
from eagle3lib.report import TEMPLATES, Report, assets, facts, page_path
from eagle3lib.results import load_results, results_path, write_text
from eagle3lib.tables import table_paths

VERDICT_NUMBER = "07"  # the notebook that writes verdict.json
BROKEN = (Status.FAILED, Status.INPUT)


def write_index(report: Report) -> Path:
    """Write OUT/index.html from the results files and the run's outcomes; return its path.

    Raises:
        InputError: if a results file is not JSON.
    """
    index = report.out / "index.html"
    write_text(index, index_html(report, archive="report.zip"))
    return index


def index_html(report: Report, archive: str | None = None) -> str:
    """The first page; `archive` is the file beside it that holds the whole report.

    Raises:
        InputError: if a results file is not JSON.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES / "report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["value"] = format_value
    template = environment.get_template("first_page.html.j2")
    return template.render(**_content(report), assets=assets(), archive=archive)


def download_paths(report: Report, outcome: Outcome) -> list[Path]:
    """A notebook's tables, results and executed notebook, as far as they are there."""
    notebook, out = outcome.notebook, report.out
    files = [*table_paths(out, notebook.name), results_path(out, notebook.name), executed_path(notebook, out)]
    return [path for path in files if path.exists()]


def whole_paths(report: Report) -> list[Path]:
    """What belongs to the report as a whole: the verdict, its figure and the patched configs."""
    if not any(outcome.notebook.number == VERDICT_NUMBER for outcome in report.outcomes):
        return []
    files = [report.out / "results" / name for name in ("verdict.json", "verdict.png")]
    files += sorted((report.out / "patched").glob("*"))
    return [path for path in files if path.is_file()]


def findings_of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The findings of several results files, the most severe first, each once."""
    order = [severity.value for severity in Severity]
    unique = {(f["code"], f["title"]): f for record in records for f in record.get("findings", [])}
    return sorted(unique.values(), key=lambda f: order.index(f["severity"]))


def _content(report: Report) -> dict[str, Any]:
    records = {o.notebook.name: load_results(report.out, o.notebook.name) for o in report.outcomes}
    present = {name: record for name, record in records.items() if record}
    verdict = load_results(report.out, "verdict")
    ran = [o for o in report.outcomes if o.status is not Status.EARLIER]
    findings = findings_of([verdict] if verdict else list(present.values()))
    numbers = (verdict or {}).get("numbers", {})
    finished = [o.seconds for o in ran if o.seconds is not None]
    return {
        "case": report.case,
        "device": report.device,
        "verdict": verdict,
        "no_verdict": _no_verdict(report, failed=any(o.status in BROKEN for o in ran)),
        "stale": verdict is not None and all(o.notebook.number != VERDICT_NUMBER for o in ran),
        "failed": [o for o in ran if o.status in BROKEN],
        "severity": findings[0]["severity"] if verdict and findings else Severity.OK.value,
        "findings": findings,
        "headline": numbers.get("headline", []),
        "patches": numbers.get("patches", []),
        "figure": _data_uri(report.out / "results" / "verdict.png") if verdict else None,
        "figure_alt": numbers.get("figure_alt", "Figure of the verdict"),
        "figure_look": numbers.get("figure_look"),
        "rows": [_row(report, outcome, records[outcome.notebook.name]) for outcome in report.outcomes],
        "whole": [path.relative_to(report.out).as_posix() for path in whole_paths(report)],
        "unanswered": [(name, one) for name, record in present.items() for one in record["unanswered"]],
        "versions": next(iter(present.values()))["versions"] if present else {},
        "parameters": {o.notebook.name: facts(report, o.notebook) for o in ran},
        "seconds": sum(finished),
        "finished": len(finished),
        "written": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "text_hidden": report.text_hidden,
    }


def _no_verdict(report: Report, failed: bool) -> str:
    """Why there is none."""
    if failed:
        return "A notebook did not finish, so there is no verdict."
    if report.stopped:
        return "The run was stopped before its verdict; the same command goes on from there."
    return f"Notebook {VERDICT_NUMBER} was not selected, so there is no verdict."


def _row(report: Report, outcome: Outcome, record: dict[str, Any] | None) -> dict[str, Any]:
    page = page_path(outcome.notebook, report.out)
    return {
        "name": outcome.notebook.name,
        "title": outcome.notebook.title,
        "status": outcome.status.value,
        "seconds": outcome.seconds,
        "answer": outcome.message or (record or {}).get("answer") or "",
        "page": page.name if page.exists() else None,
        "files": [path.relative_to(report.out).as_posix() for path in download_paths(report, outcome)],
    }


def _data_uri(png: Path) -> str | None:
    if not png.exists():
        return None
    return f"data:image/png;base64,{base64.b64encode(png.read_bytes()).decode('ascii')}"
