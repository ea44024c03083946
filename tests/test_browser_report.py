"""The report as readers meet it: on a phone and a desk, by day and by night, by keyboard and by screen reader."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import toys
from browsing import TIMEOUT_MS, Watched, need_browser, open_browser
from bundled import ROOT
from matplotlib.image import imread

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
PAGES = ("index", "02_layer_norms", "05_acceptance_length", "07_verdict")
PHONE, DESK = 360, 1280
#: A line of every notebook's set-up, by which its code is known.
CODE = "from eagle3lib.workbook import start"
#: Everything that can be reached by keyboard must be one of these.
REACHABLE = "a[href], summary, button, input, select, [tabindex='0']"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """Pages of each kind: maps, tables, figures, texts, a verdict and the first page, of a tiny case."""
    need_browser()
    folder = tmp_path_factory.mktemp("tiny")
    case, out = toys.write_case(folder), folder / "out"
    command = [sys.executable, "-m", "eagle3lib", "run", "--case", str(case), "--out", str(out), "--only", "2,5,7"]
    command += ["--set", "max_steps=3", "--set", "tree_samples=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def browser(report) -> Iterator[Browser]:
    """After the report has been written: Playwright keeps this thread's event loop for itself."""
    with open_browser() as found:
        yield found


class Opened:
    """A page of the report at one width."""

    def __init__(self, browser: Browser, file: Path, width: int) -> None:
        self.url = file.as_uri()
        self.page: Page = browser.new_page(viewport={"width": width, "height": 800})
        self.page.set_default_timeout(TIMEOUT_MS)
        self.watched = Watched(self.page)
        self.page.route("**/*", self._answer)
        self.page.goto(self.url)

    def _answer(self, route) -> None:  # noqa: ANN001 Playwright's, which need not be there
        route.continue_() if route.request.url == self.url else route.abort()

    def unfold(self) -> None:
        """Open whatever is folded."""
        self.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


@pytest.fixture
def opened(request, browser, report) -> Iterator[Opened]:
    """The page that the test's parameters name."""
    of = request.node.callspec.params
    found = Opened(browser, report / f"{of['name']}.html", of.get("width", DESK))
    yield found
    found.page.close()


every_page = pytest.mark.parametrize("name", PAGES)


CONTRAST = ["color-contrast"]  # most of axe-core's time; colours follow the scheme, not the width


def shut_out(opened: Opened, scheme: str, **options: object) -> list[str]:
    """What axe-core finds serious or critical, unfolded."""
    from axe_playwright_python.sync_playwright import Axe

    opened.unfold()
    opened.page.emulate_media(color_scheme=scheme)
    found = Axe().run(opened.page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [
        f"{v['id']}: {v['help']}: {[n['target'] for n in v['nodes'][:3]]} of {len(v['nodes'])}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]


@every_page
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_page_is_whole_without_the_network_and_shuts_nobody_out(name, width, opened):
    """No request but for the page, no complaint in the console, nothing serious found by axe-core."""
    assert shut_out(opened, "light", rules={rule: {"enabled": False} for rule in CONTRAST}) == []
    assert [url for url in opened.watched.requests if not url.startswith("data:")] == [opened.url]
    assert opened.watched.complaints == []


@every_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(name, scheme, opened):
    assert shut_out(opened, scheme, runOnly=CONTRAST) == []


def too_wide(opened: Opened) -> int:
    """By how many pixels the page, unfolded, is wider than its window."""
    opened.unfold()
    return opened.page.evaluate("document.scrollingElement.scrollWidth - document.documentElement.clientWidth")


@every_page
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_page_does_not_scroll_sideways(name, width, opened):
    assert too_wide(opened) <= 0


BAD_PAGE = """<!DOCTYPE html><html><title>bad</title><body style="background:#fff">
<details><summary>more</summary><p style="color:#ddd">pale</p><img src="http://127.0.0.1:9/x.png">
<div style="width:900px">wide</div></details><script>console.error("broken")</script></body></html>"""


def test_the_checks_see_what_they_are_for(browser, tmp_path):
    """A page with one of each fault, all of them folded away."""
    (tmp_path / "bad.html").write_text(BAD_PAGE)
    opened = Opened(browser, tmp_path / "bad.html", PHONE)
    found = shut_out(opened, "light")
    for rule in ("color-contrast", "html-has-lang", "image-alt"):
        assert any(line.startswith(rule) for line in found)
    assert too_wide(opened) > 0
    assert "http://127.0.0.1:9/x.png" in opened.watched.requests
    assert "broken" in opened.watched.complaints
    opened.page.close()


@every_page
def test_a_page_follows_the_reader_s_choice_of_light_or_dark(name, opened):
    """By the luminance of what its background turns out to be."""
    for scheme, bright in (("light", True), ("dark", False)):
        opened.page.emulate_media(color_scheme=scheme)
        corner = opened.page.screenshot(clip={"x": 1, "y": 1, "width": 1, "height": 1})
        assert (imread(io.BytesIO(corner))[0, 0, :3].mean() > 0.5) == bright


@every_page
def test_everything_is_reached_by_tab_and_seen_to_be(name, opened):
    """Each link and control in the page's order, and each shows that it has the focus."""
    page = opened.page
    wanted = page.evaluate(
        "selector => [...document.querySelectorAll(selector)].filter(e => e.checkVisibility({visibilityProperty: true})"
        " && e.tabIndex >= 0).map((e, i) => (e.dataset.place = i))",
        REACHABLE,
    )
    reached, unseen = [], []
    for _ in range(len(wanted) + 5):
        page.keyboard.press("Tab")
        place, *marks = page.evaluate(
            "(() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [e.dataset.place, s.outlineStyle, s.boxShadow] })()"
        )
        if place is not None and int(place) not in reached:
            reached.append(int(place))
            if marks == ["none", "none"]:
                unseen.append(place)
    assert wanted, "a page has links at least"
    assert reached == wanted
    assert not unseen


@pytest.mark.parametrize("name", PAGES[1:])
def test_code_is_folded_until_it_is_asked_for(name, opened):
    """By keyboard: some control that Tab reaches brings the code."""
    page = opened.page
    code = page.get_by_text(CODE).first
    assert not code.is_visible()
    for control in page.locator("summary, button, input").all():
        if control.is_visible():
            control.focus()
            page.keyboard.press("Space")
            if code.is_visible():
                return
    pytest.fail("no control shows the code")
