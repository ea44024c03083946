"""A real browser for tests: Debian's Chromium without a window, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: What keeps it from asking anybody anything; there is no GPU, and no user of its own in a container.
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
TIMEOUT_MS = 60_000


def need_browser() -> str:
    """Where the browser is; the test is skipped where there is none, or nothing that drives one."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium here; on Debian: apt-get install chromium")
    pytest.importorskip("playwright.sync_api", reason="no playwright here: see tests/oracles.txt")
    return chromium


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser, closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=need_browser(), args=list(ARGUMENTS), timeout=TIMEOUT_MS)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """What a page did besides showing itself: requests, messages of the console, errors of scripts."""

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _hear(self, message) -> None:  # noqa: ANN001 Playwright's, which need not be there
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)
