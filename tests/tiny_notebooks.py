"""Notebooks of a few lines for the runner, and what a test reads of the pages that it makes of them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import nbformat

LINKS = "See the [next](02_mistake.ipynb), [another](09_none.ipynb) and [the docs](../docs/docs.md)."
PARAMETERS = """\
case: str = "case.toml"  # the case
out: str = "reports/tiny"  # the report's folder
device: str = "auto"  # auto, cpu or cuda
interactive: bool = False  # sliders
steps: int = 4  # draft length
names: list = ["a"]  # a list"""
START = """\
from eagle3lib.workbook import start
book = start("{name}", case, out, dict(device=device, steps=steps, interactive=interactive))"""


def notebook(path: Path, *code: str, parameters: str = PARAMETERS) -> None:
    text = f"# What does {path.stem} ask?\n\nWith $g = W h$ and\n\n$$y = \\frac{{a}}{{b}}$$\n\n{LINKS}"
    node = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        cells=[
            nbformat.v4.new_markdown_cell(text, id="title"),
            nbformat.v4.new_code_cell(parameters, id="parameters", metadata={"tags": ["parameters"]}),
            *(nbformat.v4.new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(code)),
        ],
    )
    nbformat.write(node, path)


class Page(HTMLParser):
    """The parts of a page that could reach outside, or shut somebody out."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
