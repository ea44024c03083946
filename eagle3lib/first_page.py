"""The report's first page: the verdict in one sentence, what supports it, and where to read on."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import jinja2

from eagle3lib.execution import Outcome, Status, executed_path
from eagle3lib.findings import Severity
from eagle3lib.markup import format_value
from eagle3lib.report import TEMPLATES, Report, css, facts, page_path
from eagle3lib.results import load_results, results_path, write_text

VERDICT_NUMBER = "07"  # the notebook that writes verdict.json


def write_index(report: Report) -> Path:
    """Write OUT/index.html from the results files and the run's outcomes; return its path.

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
    index = report.out / "index.html"
    page = environment.get_template("first_page.html.j2").render(**_content(report), css=css())
    write_text(index, page)
    return index


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
    return {
        "case": report.case,
        "device": report.device,
        "verdict": verdict,
        "stale": verdict is not None and all(o.notebook.number != VERDICT_NUMBER for o in ran),
        "failed": [o for o in ran if o.status in (Status.FAILED, Status.INPUT)],
        "severity": findings[0]["severity"] if verdict and findings else Severity.OK.value,
        "findings": findings,
        "headline": numbers.get("headline", []),
        "patches": numbers.get("patches", []),
        "figure": _data_uri(report.out / "results" / "verdict.png") if verdict else None,
        "figure_alt": numbers.get("figure_alt", "Figure of the verdict"),
        "rows": [_row(report, outcome, records[outcome.notebook.name]) for outcome in report.outcomes],
        "unanswered": [(name, one) for name, record in present.items() for one in record["unanswered"]],
        "versions": next(iter(present.values()))["versions"] if present else {},
        "parameters": {o.notebook.name: facts(report, o.notebook) for o in ran},
    }


def _row(report: Report, outcome: Outcome, record: dict[str, Any] | None) -> dict[str, Any]:
    notebook = outcome.notebook
    files = {
        "page": page_path(notebook, report.out),
        "results": results_path(report.out, notebook.name),
        "notebook": executed_path(notebook, report.out),
    }
    links = {kind: p.relative_to(report.out).as_posix() for kind, p in files.items() if p.exists()}
    return {
        "name": notebook.name,
        "title": notebook.title,
        "status": outcome.status.value,
        "seconds": outcome.seconds,
        "answer": outcome.message or (record or {}).get("answer") or "",
        "links": links,
    }


def _data_uri(png: Path) -> str | None:
    if not png.exists():
        return None
    return f"data:image/png;base64,{base64.b64encode(png.read_bytes()).decode('ascii')}"
