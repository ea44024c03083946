"""What a notebook needs to narrate: set-up, figures, tables, findings, and its results file.

A notebook calls `start(...)` once, shows and records through the `Workbook` it gets, and ends with
`book.save()`. The results files are the only thing that passes from one notebook to the next.
"""

from __future__ import annotations

import io
import platform
from collections.abc import Iterable
from html import escape
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from IPython import get_ipython
from IPython.display import HTML, Image, Markdown, display

from eagle3lib.device import resolve_device
from eagle3lib.errors import InputError
from eagle3lib.findings import Finding
from eagle3lib.markup import finding_html, table_html
from eagle3lib.results import load_results, plain, relative_to_root, resolve, results_path, write_json
from eagle3lib.tables import table_path, write_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from eagle3lib.case import Case

#: Figures are drawn finer than they are shown, for a good screen and for print.
FIGURE_DPI, SHOWN_DPI = 165, 110


class Workbook:
    """One notebook's narration: everything shown through it is recorded, and `save` writes the record."""

    def __init__(self, name: str, case: Case, out: Path, parameters: dict[str, Any], device: str) -> None:
        self.name = name
        self.case = case
        self.out = out
        self.parameters = parameters
        self.device = device
        self.versions = {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "eagle3lib": _own_version(),
            "device": device,
        }
        self._findings: list[Finding] = []
        self._numbers: dict[str, Any] = {}
        self._answer: str | None = None
        self._unanswered: list[dict[str, str]] = []
        self._tables: dict[Path, str] = {}

    def figure(self, fig: Figure, alt: str) -> None:
        """Show a matplotlib figure as a PNG whose text alternative is `alt`, and close it.

        A figure's label, as `plots` gives one, says what to look at; it stands below.
        """
        import matplotlib.pyplot as plt

        png = io.BytesIO()
        # Without the software stamp the same figure gives the same bytes under any matplotlib build.
        fig.savefig(png, format="png", dpi=FIGURE_DPI, bbox_inches="tight", metadata={"Software": None})
        look, pixels = fig.get_label(), png.getbuffer()[16:20]  # the width, in the first bytes of every PNG
        plt.close(fig)
        width = round(int.from_bytes(pixels, "big") * SHOWN_DPI / FIGURE_DPI)
        display(Image(png.getvalue(), format="png"), metadata={"image/png": {"alt": alt, "width": width}})
        if look:
            display(HTML(f'<p class="look">{escape(look)}</p>'))

    def table(self, df: pd.DataFrame, caption: str) -> None:
        """Show a frame as an HTML table with a caption and header cells, all of its text escaped, and leave it as CSV.

        A caption is a table's name: two of one notebook need captions that differ.
        """
        path = table_path(self.out, self.name, caption)
        while self._tables.setdefault(path, caption) != caption:  # long captions may differ at their ends alone
            path = path.with_stem(f"{path.stem}_more")
        write_table(path, df)
        display(HTML(table_html(df, caption)))

    def say(self, markdown_text: str) -> None:
        """Show a computed sentence. Text from files goes through `eagle3lib.markup.escape_markdown` first."""
        display(Markdown(markdown_text))

    def finding(self, finding: Finding | Iterable[Finding]) -> None:
        """Record one finding or several, and show them."""
        for one in [finding] if isinstance(finding, Finding) else finding:
            self._findings.append(one)
            display(HTML(finding_html(one)))

    def number(self, name: str, value: Any) -> None:
        """Record a number, or lists and dictionaries of numbers, under `name`.

        Raises:
            TypeError: if the value holds something that JSON cannot.
        """
        self._numbers[name] = plain(value)

    def answer(self, sentence: str) -> None:
        """Record and show the one sentence that answers the notebook's question."""
        self._answer = sentence
        display(HTML(f'<p class="answer"><strong>Answer.</strong> {escape(sentence)}</p>'))

    def unanswered(self, question: str, needs: str) -> None:
        """Record and show a question that the given files leave open, and which file would answer it."""
        self._unanswered.append({"question": question, "needs": needs})
        text = f"<strong>Not answered.</strong> {escape(question)} It needs: {escape(needs)}"
        display(HTML(f'<p class="unanswered">{text}</p>'))

    def earlier(self, name: str) -> dict[str, Any]:
        """The numbers that notebook `name` recorded; {} where it has not run, or ran on another case.

        Raises:
            InputError: as `load_results`.
        """
        found = load_results(self.out, name)
        return found["numbers"] if found and found["case"]["name"] == self.case.name else {}

    def save(self) -> None:
        """Write OUT/results/NAME.json. The same inputs give the same bytes."""
        record = {
            "notebook": self.name,
            "case": {"name": self.case.name, "path": relative_to_root(self.case.path)},
            "parameters": plain(self.parameters),
            "versions": self.versions,
            "findings": [plain(f.to_json()) for f in self._findings],
            "numbers": self._numbers,
            "answer": self._answer,
            "unanswered": self._unanswered,
        }
        write_json(results_path(self.out, self.name), record)


def start(name: str, case_path: str | Path, out: str | Path, parameters: dict[str, Any]) -> Workbook:
    """Begin a notebook: read the case, choose the device, print the versions in one line.

    From here on an InputError ends the notebook with its one sentence instead of a traceback.

    Raises:
        InputError: if the case cannot be read, or the device asked for is not there.
    """
    _show_input_errors_plainly()
    from eagle3lib.case import load_case

    case = load_case(resolve(case_path))
    book = Workbook(name, case, resolve(out), parameters, str(resolve_device(parameters.get("device", "auto"))))
    versions = " · ".join(f"{key} {value}" for key, value in book.versions.items())
    display(HTML(f'<p class="versions"><small>{escape(versions)}</small></p>'))
    return book


def _own_version() -> str:
    try:
        return metadata.version("eagle3lib")
    except metadata.PackageNotFoundError:  # run from a checkout without installing it
        return "not installed"


def _show_input_errors_plainly() -> None:
    shell = get_ipython()
    if shell is None:
        return

    def show(shell, kind, error, traceback, tb_offset=None):  # noqa: ANN001, ANN202 IPython's signature
        # The handler alone would print; it is this message that marks the cell as failed for papermill.
        sentence = [str(error)]
        shell._showtraceback(kind, error, sentence)
        return sentence

    shell.set_custom_exc((InputError,), show)
