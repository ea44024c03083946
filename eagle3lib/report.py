"""A page of HTML for each executed notebook.

Pages need nothing from elsewhere: no font, formulas as MathML, figures embedded, and one script of their own
that they also do without.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
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
CONTENTS_MARK = "<!-- contents -->"
SHORT_PAGE = 4  # headings; a page with fewer needs no list of them
STRIPPED_TAGS = {"injected-parameters", "papermill-error-cell-tag"}  # papermill's; the page says both itself


@dataclass
class Report:
    """What the pages say about a run beside the results files: how it was started and how it went."""

    out: Path
    case: dict[str, str]
    device: str
    settings: dict[str, dict[str, Any]]
    text_hidden: bool = False
    stopped: bool = False  # by Ctrl-C
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
        names = frozenset(page.name for page in pages)
        write_text(page_path(outcome.notebook, report.out), _page(report, outcome, names, neighbours))


def page_path(notebook: Notebook, out: Path) -> Path:
    """Where a notebook's page goes."""
    return out / f"{notebook.name}.html"


class _Renderer(IPythonRenderer):
    """Markdown whose formulas become MathML, which browsers show without a script, and whose headings have ids.

    A link to a notebook leads to its page, where the report has one; one to another file of the project, which a
    report does not hold, is left as words.
    """

    def __init__(self, pages: frozenset[str]) -> None:
        super().__init__(escape=False)
        self._pages = pages
        self._ids: set[str] = set()

    def heading(self, text: str, level: int, **_: Any) -> str:
        return f'<h{level} id="{_unused_id(text, self._ids)}">{text}</h{level}>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        # A block that scrolls must be reached by the keyboard.
        return super().block_code(code, info).replace("<pre>", '<pre tabindex="0">', 1)

    def link(self, text: str, url: str, title: str | None = None) -> str:
        name = url.removesuffix(".ipynb")
        if name in self._pages:
            return super().link(text, f"{name}.html", title)
        return super().link(text, url, title) if re.match(r"https?:|#", url) else text

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display="block")

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(rf"\begin{{{name}}}{body}\end{{{name}}}", display="block")


class _Exporter(HTMLExporter):
    """nbconvert with our template and our Markdown, for one page of a report that has `pages`."""

    def __init__(self, pages: frozenset[str], **kwargs: Any) -> None:
        self._pages = pages
        super().__init__(**kwargs)

    def default_filters(self) -> Iterator[tuple[str, Any]]:
        yield from super().default_filters()
        renderer = _Renderer(self._pages)
        yield ("markdown2html", lambda text: MarkdownWithMath(renderer=renderer).render(text))


def _unused_id(heading: str, seen: set[str]) -> str:
    """An id that no heading of the page has: its words, and a number where another has the same words."""
    words = re.sub(r"[^a-z0-9]+", "-", re.sub(r"<[^>]*>", "", heading).casefold()).strip("-") or "part"
    found, n = words, 1
    while found in seen or found == "content" or found.startswith("cell-"):
        n += 1
        found = f"part-{words}-{n}"
    seen.add(found)
    return found


def _page(report: Report, outcome: Outcome, pages: frozenset[str], neighbours: dict[str, Notebook | None]) -> str:
    node = nbformat.read(executed_path(outcome.notebook, report.out), as_version=4)
    node.metadata.pop("widgets", None)  # their state needs scripts from elsewhere
    node.cells = [cell for cell in node.cells if not STRIPPED_TAGS & set(cell.metadata.get("tags", []))]
    exporter = _Exporter(
        pages,
        template_name="report",
        extra_template_basedirs=[str(TEMPLATES)],
        log=logging.getLogger("nbconvert"),
    )
    page = {
        "title": outcome.notebook.title,
        "assets": assets(),
        "case": report.case,
        "facts": facts(report, outcome.notebook),
        "failure": None if outcome.status in (Status.OK, Status.KEPT) else outcome.message,
        "contents_mark": CONTENTS_MARK,
        **neighbours,
    }
    text = exporter.from_notebook_node(node, resources={"page": page})[0]
    return text.replace(CONTENTS_MARK, _contents(text), 1)


def _contents(text: str) -> str:
    """The page's second-level headings as links; "" where there are few."""
    headings = re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', text, flags=re.DOTALL)
    if len(headings) < SHORT_PAGE:
        return ""
    items = "".join(f'<li><a href="#{anchor}">{re.sub("<[^>]*>", "", words)}</a></li>' for anchor, words in headings)
    return (
        '<nav class="contents" aria-label="On this page"><details><summary>On this page</summary>'
        f"<ul>{items}</ul></details></nav>"
    )


def facts(report: Report, notebook: Notebook) -> dict[str, str]:
    """The parameters that a notebook ran with, set ones over its defaults."""
    values = {name: default for name, (_, default) in notebook.parameters.items() if name not in COMMON}
    values |= report.settings.get(notebook.name, {})
    return {"device": report.device} | {name: format_value(value) for name, value in values.items()}


@cache
def assets() -> dict[str, str]:
    """What every page carries in itself: style sheet, script, and the policy that allows no other.

    The style sheet is ours, and Pygments' for code, light and dark.
    """
    folder = TEMPLATES / "report"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    light = HtmlFormatter(style="xcode").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return {
        "css": f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n{style}",
        "script": script,
        "policy": (
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none';"
            f" script-src 'sha256-{digest}'"
        ),
    }
