"""Runs one notebook in a kernel of its own and says how it ended."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from eagle3lib.errors import InputError
from eagle3lib.notebooks import Notebook
from eagle3lib.results import PROJECT_ROOT, results_path

KERNEL_START_S = 120
CELL_TIMEOUT_S = 3600

#: Recent kernels warn, at each start, that their local TCP is not encrypted; this encrypts it.
KERNEL_CONFIG = Config({"KernelManager": {"transport_encryption": "auto"}})


class _QuietKernelManager(AsyncKernelManager):
    """A kernel whose own log goes nowhere: stopped in the middle, it would print a traceback over the console.

    What a notebook's code writes to stderr, Python or not, is in its outputs all the same.
    """

    async def start_kernel(self, **kwargs: Any) -> None:
        await super().start_kernel(stderr=subprocess.DEVNULL, **kwargs)


class Status(StrEnum):
    """How a notebook ended."""

    OK = "ok"
    INPUT = "input error"  # it found a user's mistake
    FAILED = "failed"
    NOT_RUN = "not run"  # an earlier one failed, or the run was stopped
    KEPT = "kept"  # finished in the run that this one continues
    EARLIER = "earlier"  # not selected now; its page is from an earlier run


@dataclass(frozen=True)
class Outcome:
    """How one notebook ended; `message` is the sentence to print where it did not end well."""

    notebook: Notebook
    status: Status
    seconds: float | None = None
    message: str = ""


def execute(
    notebook: Notebook, parameters: dict[str, Any], out: Path, on_cell: Callable[[], None] | None = None
) -> Outcome:
    """Run a notebook with `parameters`, leaving OUT/notebooks/NAME.ipynb however it ends.

    Args:
        on_cell: called after every code cell.

    Raises:
        KeyboardInterrupt: if it was stopped; then it leaves nothing.
    """
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # a kernel registered in the home folder must not win
    executed = executed_path(notebook, out)
    executed.parent.mkdir(parents=True, exist_ok=True)
    partial = executed.with_name(f".{notebook.name}.part.ipynb")
    began = time.perf_counter()
    try:
        status, message = _run(notebook, parameters, partial, on_cell)
    except KeyboardInterrupt:
        for path in (partial, results_path(out, notebook.name)):
            path.unlink(missing_ok=True)
        raise
    seconds = time.perf_counter() - began
    if partial.exists():
        cells = _settle(partial, executed)
        if status is Status.OK and (stopped := _unfinished(cells)):
            status, message = Status.FAILED, f"it ended early in {stopped}: a notebook may not call exit."
        elif status is Status.FAILED and (stopped := _unfinished(cells)):
            message = f"{stopped}: {message}"
    if status is Status.OK and not results_path(out, notebook.name).exists():
        status, message = Status.FAILED, "it wrote no results file: its last cell must be book.save()."
    return Outcome(notebook, status, seconds, message)


def executed_path(notebook: Notebook, out: Path) -> Path:
    """Where the executed notebook goes."""
    return out / "notebooks" / f"{notebook.name}.ipynb"


def _run(
    notebook: Notebook, parameters: dict[str, Any], partial: Path, on_cell: Callable[[], None] | None
) -> tuple[Status, str]:
    def cell_done(**_: Any) -> None:
        if on_cell is not None:
            on_cell()

    try:
        papermill.execute_notebook(
            nbformat.read(notebook.path, as_version=4),
            str(partial).replace("{", "{{").replace("}", "}}"),  # papermill formats its paths
            parameters,
            kernel_name="python3",
            progress_bar=False,
            cwd=PROJECT_ROOT,
            start_timeout=KERNEL_START_S,
            execution_timeout=CELL_TIMEOUT_S,
            config=KERNEL_CONFIG,
            on_cell_executed=cell_done,
            kernel_manager_class=_QuietKernelManager,
        )
    except PapermillExecutionError as error:
        if error.ename == InputError.__name__:
            return Status.INPUT, str(error.evalue)
        line = (str(error.evalue).splitlines() or [""])[0]
        return Status.FAILED, f"{error.ename}: {line}"
    except DeadKernelError:
        return Status.FAILED, "the kernel was killed, likely for want of memory; give it fewer samples."
    except CellTimeoutError:
        return Status.FAILED, f"the cell took longer than {CELL_TIMEOUT_S} s."
    except RuntimeError as error:  # jupyter_client's word for a kernel that did not start
        return Status.FAILED, f"no kernel: {error}"
    return Status.OK, ""


def _settle(partial: Path, executed: Path) -> list[nbformat.NotebookNode]:
    """Give papermill's injected cell a fixed id, so that equal runs give equal pages; then rename."""
    node = nbformat.read(partial, as_version=4)
    for cell in node.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.id = "injected-parameters"
    nbformat.write(node, partial)
    os.replace(partial, executed)
    return node.cells


def _unfinished(cells: list[nbformat.NotebookNode]) -> str | None:
    """The first code cell that did not complete, in words; papermill itself lets `sys.exit()` pass."""
    for cell in cells:
        if cell.cell_type != "code":
            continue
        state, asked = cell.metadata.get("papermill", {}), cell.metadata.get("execution")
        finished = state.get("status") == "completed" and not state.get("exception")
        # Papermill takes a cell whose kernel died for completed; it was asked for and never answered.
        died = asked is not None and "shell.execute_reply" not in asked
        if died or not finished:
            return f"cell {cell.id} (In [{cell.execution_count or ' '}])"
    return None
