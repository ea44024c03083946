"""A page of HTML for each executed notebook.

Pages need nothing from elsewhere: no script, no font, formulas as MathML, figures embedded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert as mathml
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter

from eagle3lib.execution import Outcome, Status, executed_path
from eagle3lib.markup import format_value
from eagle3lib.notebooks import COMMON, Notebook
from eagle3lib.results import write_text

TEMPLATES = Path(__file__).parent / "templates"
STRIPPED_TAGS = {"injected-parameters", "papermill-error-cell-tag"}  # papermill's; the page says both itself


@dataclass(frozen=True)
class Report:
    """What the pages say about a run beside the results files: how it was started and how it went."""

    out: Path
    case: dict[str, str]
    device: str
    settings: dict[str, dict[str, Any]]
    outcomes: list[Outcome] = field(default_factory=list)


def write_pages(report: Report) -> None:
    """Write a page for every notebook that started in this run, however it ended."""
    pages = [o.notebook for o in report.outcomes if executed_path(o.notebook, report.out).exists()]
    for position, outcome in enumerate(report.outcomes):
        if outcome.notebook not in pages or outcome.status is Status.EARLIER:
            continue
        before = [o.notebook for o in report.outcomes[:position] if o.notebook in pages]
        after = [o.notebook for o in report.outcomes[position + 1 :] if o.notebook in pages]
        neighbours = {"previous": before[-1] if before else None, "next": after[0] if after else None}
        write_text(page_path(outcome.notebook, report.out), _page(report, outcome, neighbours))


def page_path(notebook: Notebook, out: Path) -> Path:
    """Where a notebook's page goes."""
    return out / f"{notebook.name}.html"


class _Renderer(IPythonRenderer):
    """Markdown whose formulas become MathML, which browsers show without a script."""

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display="block")

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(rf"\begin{{{name}}}{body}\end{{{name}}}", display="block")


class _Exporter(HTMLExporter):
    """nbconvert with our template and our Markdown."""

    def default_filters(self) -> Iterator[tuple[str, Any]]:
        yield from super().default_filters()
        yield ("markdown2html", lambda text: MarkdownWithMath(renderer=_Renderer(escape=False)).render(text))


def _page(report: Report, outcome: Outcome, neighbours: dict[str, Notebook | None]) -> str:
    node = nbformat.read(executed_path(outcome.notebook, report.out), as_version=4)
    node.metadata.pop("widgets", None)  # their state needs scripts from elsewhere
    node.cells = [cell for cell in node.cells if not STRIPPED_TAGS & set(cell.metadata.get("tags", []))]
    exporter = _Exporter(
        template_name="report",
        extra_template_basedirs=[str(TEMPLATES)],
        anchor_link_text="#",
        log=logging.getLogger("nbconvert"),
    )
    page = {
        "title": outcome.notebook.title,
        "css": css(),
        "case": report.case,
        "facts": facts(report, outcome.notebook),
        "failure": None if outcome.status is Status.OK else outcome.message,
        **neighbours,
    }
    return exporter.from_notebook_node(node, resources={"page": page})[0]


def facts(report: Report, notebook: Notebook) -> dict[str, str]:
    """The parameters that a notebook ran with, set ones over its defaults."""
    values = {name: default for name, (_, default) in notebook.parameters.items() if name not in COMMON}
    values |= report.settings.get(notebook.name, {})
    return {"device": report.device} | {name: format_value(value) for name, value in values.items()}


@cache
def css() -> str:
    """The style sheet of every page: ours, and Pygments' for code, light and dark."""
    style = (TEMPLATES / "report" / "style.css").read_text(encoding="utf-8")
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n{style}"
