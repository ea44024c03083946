"""JupyterLab as its user meets it: a notebook opened and run, a choice moved, another answer seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import lab
import pytest
import toys
from browsing import need_browser, open_browser

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser
NAME = "05_acceptance_length"
RUN_MS, ANSWER_MS = 120_000, 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the server shows; screenshots are left here."""
    need_browser()
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def page(folder) -> Iterator[Page]:
    """The notebook on the toy case, explorers switched on, run from a fresh kernel to its answer."""
    with open_browser() as browser, lab.serve_lab(folder) as server:
        case, out = toys.write_case(folder / "case"), folder / "out"
        lab.interactive_copy(NAME, folder, case=case, out=out, device="cpu", max_steps=3, tree_samples=1)
        opened = server.open(browser, NAME)
        lab.run_all(opened)
        opened.get_by_text("At K = 3, chain, greedy, bonus included").last.wait_for(timeout=RUN_MS)
        opened.get_by_text("| Idle").first.wait_for(timeout=RUN_MS)
        yield opened


def explorer_with(page: Page, label: str) -> Locator:
    """The explorer that has a choice of this name."""
    return page.locator(".widget-vbox").filter(has=page.get_by_text(label, exact=True)).first


def answer_after(page: Page, explorer: Locator, choose: Callable[[], object]) -> str:
    """The text of the answer that follows a choice: another one, and nothing more being computed."""
    shown = explorer.locator("section").evaluate("e => e.outerHTML")
    choose()
    page.wait_for_function(
        "([e, shown]) => e.querySelector('section').outerHTML !== shown && !e.textContent.includes('computing')",
        arg=[explorer.element_handle(), shown],
        timeout=ANSWER_MS,
    )
    return explorer.locator("section").inner_text()


def picture(page: Page, explorer: Locator, file: Path) -> None:
    """What a reader sees of the explorer; cells above are laid out late and push it away, so it is sought again."""
    for _ in range(4):
        explorer.scroll_into_view_if_needed()
        page.wait_for_timeout(400)
    page.screenshot(path=file)


def test_a_moved_slider_is_answered_by_another_figure(page, folder):
    explorer = explorer_with(page, "draft length")
    image = explorer.locator("img")
    image.scroll_into_view_if_needed()
    before, alt = image.get_attribute("src"), image.get_attribute("alt")
    assert "K = 3" in alt
    explorer.get_by_role("slider").press("ArrowLeft")
    page.wait_for_function("([e, src]) => e.querySelector('img').src !== src", arg=[explorer.element_handle(), before])
    assert "K = 2" in image.get_attribute("alt")
    picture(page, explorer, folder / "slider.png")


def test_a_replay_is_gone_through_round_by_round(page, folder):
    """Another wiring, another response and the next round each show another answer."""
    explorer = explorer_with(page, "wiring")
    explorer.scroll_into_view_if_needed()
    choices = (
        lambda: explorer.get_by_label("wiring").select_option("served"),
        lambda: explorer.get_by_label("response").select_option(index=1),
        lambda: explorer.get_by_role("slider").press("ArrowRight"),
    )
    seen = [explorer.locator("section").inner_text(), *(answer_after(page, explorer, choose) for choose in choices)]
    assert len(set(seen)) == 4
    assert "round 2 of" in seen[-1]
    picture(page, explorer, folder / "replay.png")


def test_lab_asks_nothing_of_other_machines_and_no_cell_failed(page):
    own = page.url.split("/lab/")[0]
    asked = [
        url for url in page.watched.requests if not url.startswith((own, own.replace("http", "ws"), "data:", "blob:"))
    ]
    assert asked == []
    assert page.get_by_text("Traceback (most recent call last)").count() == 0
