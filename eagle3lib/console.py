"""What a run prints: a line for every notebook while it runs and when it ended, and a table at the end.

Where output is piped there is no line that moves, no colour and no control character.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from eagle3lib.execution import Outcome, Status
from eagle3lib.notebooks import Notebook
from eagle3lib.report import Report, page_path
from eagle3lib.results import load_results

COLOURS = {Status.OK: "green", Status.FAILED: "red", Status.INPUT: "red"}

#: How long the notebooks of the bundled case take on two cores, in seconds, for a case that never ran before. The
#: pace of this machine and case corrects them as the run goes on, so only their ratios matter.
USUAL_SECONDS = {"01": 8.0, "02": 19.0, "03": 17.0, "04": 59.0, "05": 31.0, "06": 10.0, "07": 6.0}
OTHER_SECONDS = 10.0


def plain_console(stderr: bool = False) -> Console:
    """A console that folds no line, and that paints nothing when its output is piped."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


class RunProgress:
    """The line that moves: the notebook that runs, its cells, and the time that the whole run has left."""

    def __init__(self, console: Console, notebooks: Sequence[Notebook], seconds: Mapping[str, float]) -> None:
        self._weights = {
            notebook.name: seconds.get(notebook.name) or USUAL_SECONDS.get(notebook.number, OTHER_SECONDS)
            for notebook in notebooks
        }
        self._done = 0.0
        self._current = ""
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=20),
            TextColumn("cell {task.completed:.0f}/{task.total:.0f}"),
            _TimeLeft(self),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1, visible=False)

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, notebook: Notebook) -> None:
        """A notebook starts."""
        self._current = notebook.name
        self._bar.reset(self._task, description=notebook.name, total=notebook.code_cells, visible=True)

    def cell_done(self) -> None:
        """One of its code cells ended."""
        self._bar.advance(self._task)

    def end(self) -> None:
        """It ended."""
        self._done += self._weights[self._current]
        self._bar.update(self._task, visible=False)

    def seconds_left(self, share: float) -> float:
        """The estimate, when this share of the current notebook's cells is done."""
        done = self._done + share * self._weights[self._current]
        return seconds_left(sum(self._weights.values()), done, time.monotonic() - self._began)


def seconds_left(total: float, done: float, elapsed: float) -> float:
    """Seconds that the rest takes, from expected seconds in all and done, and the seconds that went by.

    Early on the expectation counts, later the pace: with a share p of the work done the pace of p weighs p.
    """
    share = min(done / total, 1.0) if total else 1.0
    pace = elapsed / done if done else 1.0
    return (total - done) * (share * pace + (1 - share)) if share < 1 else 0.0


class _TimeLeft(ProgressColumn):
    """The run's time left, minutes and seconds."""

    def __init__(self, progress: RunProgress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        left = round(self._progress.seconds_left(min(task.completed / task.total, 1.0) if task.total else 0.0))
        return Text(f"about {left // 60}:{left % 60:02d} left")


def ended_line(outcome: Outcome, out: Path) -> str:
    """What became of a notebook: its answer, or the sentence that says why there is none."""
    name = outcome.notebook.name
    colour = COLOURS.get(outcome.status, "dim")
    seconds = " " * 8 if outcome.seconds is None else f"{outcome.seconds:6.1f} s"
    line = f"{name:<24} [{colour}]{outcome.status.value:<11}[/] {seconds}"
    if outcome.status in (Status.OK, Status.KEPT):
        return f"{line}  {escape((load_results(out, name) or {}).get('answer') or '')}"
    if outcome.status is Status.INPUT:
        return f"{line}\n{escape(outcome.message)}"
    page = page_path(outcome.notebook, out)
    return f"{line}\n{name} failed: {escape(outcome.message)}\nPartial report: {escape(str(page))}"


def summary(report: Report) -> Table:
    """Every notebook, how it ended and where its page is."""
    table = Table("notebook", "status", "seconds", "page", box=None, pad_edge=False, header_style="bold")
    for outcome in report.outcomes:
        page = page_path(outcome.notebook, report.out)
        seconds = "" if outcome.seconds is None else f"{outcome.seconds:.1f}"
        colour = COLOURS.get(outcome.status, "dim")
        name = page.name if page.exists() else ""
        table.add_row(outcome.notebook.name, f"[{colour}]{outcome.status.value}[/]", seconds, name)
    return table
