"""A real JupyterLab for tests: a server of its own in a temporary folder, and copies of notebooks to open in it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from browsing import Watched

from eagle3lib.results import PROJECT_ROOT
from eagle3lib.run import NOTEBOOKS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

START_S, STOP_S = 120, 20


@dataclass(frozen=True)
class Lab:
    """A running server and the folder that it shows."""

    folder: Path
    origin: str
    token: str

    def open(self, browser: Browser, name: str) -> Page:
        """A notebook of the folder, opened in a window of its own, nothing asked of any other machine."""
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(1000 * START_S)
        page.watched = Watched(page)
        page.route(lambda url: not url.startswith((self.origin, "data:", "blob:")), lambda route: route.abort())
        page.goto(f"{self.origin}/lab/tree/{name}.ipynb?token={self.token}&reset")
        return page


@contextmanager
def serve_lab(folder: Path) -> Iterator[Lab]:
    """JupyterLab on `folder`, with no settings of the user's, ended with all of its kernels."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lab = Lab(folder, f"http://127.0.0.1:{port}", secrets.token_hex(16))
    own = folder / ".jupyter"
    places = {f"JUPYTER_{name}_DIR": str(own / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    places |= {f"JUPYTERLAB_{name}_DIR": str(own / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    asked = own / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    asked.parent.mkdir(parents=True)
    asked.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    path = os.pathsep.join(filter(None, [str(PROJECT_ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={lab.token}"]
    with (folder / "lab.log").open("w") as log:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **places, "JUPYTER_PREFER_ENV_PATH": "1", "PYTHONPATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_for(lab, server)
            yield lab
        finally:
            _end(server)


def _wait_for(lab: Lab, server: subprocess.Popen) -> None:
    limit = time.monotonic() + START_S
    while time.monotonic() < limit and server.poll() is None:
        try:
            urllib.request.urlopen(f"{lab.origin}/api/status?token={lab.token}", timeout=5).close()  # noqa: S310
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError("JupyterLab did not start: " + (lab.folder / "lab.log").read_text()[-2000:])


def _end(server: subprocess.Popen) -> None:
    """Asked first, so that it ends its kernels; then without asking."""
    server.terminate()
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(STOP_S)


def interactive_copy(name: str, folder: Path, **parameters: object) -> Path:
    """A copy of a notebook in `folder` with these parameters, explorers switched on."""
    node = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    place = next(i for i, cell in enumerate(node.cells) if "parameters" in cell.metadata.get("tags", []))
    given = {"interactive": True, **{key: str(v) if isinstance(v, Path) else v for key, v in parameters.items()}}
    text = "\n".join(f"{key} = {value!r}" for key, value in given.items())
    node.cells.insert(place + 1, nbformat.v4.new_code_cell(text, id="given"))
    nbformat.write(node, folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


def run_all(page: Page) -> None:
    """As a reader does, by the menu, once a kernel is there; returns when every cell has been asked for."""
    page.get_by_text("Python 3 (ipykernel) | Idle").or_(page.get_by_text("Python 3 | Idle")).first.wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
