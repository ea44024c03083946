"""Explorers without a browser: their answers, what they say meanwhile, foreign text, and viewers without widgets."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import nbformat
import pytest
import torch
import toys
from cells import run_cells
from IPython.core.formatters import DisplayFormatter
from IPython.display import HTML
from ipywidgets import Play
from matplotlib.figure import Figure

from eagle3lib import widgets
from eagle3lib.boundaries import FINAL_NORMED, Wiring
from eagle3lib.errors import InputError
from eagle3lib.norm_map import SHADES, SHOWN, norm_map_html, token_norms
from eagle3lib.replay_view import round_html
from eagle3lib.rollout import rollout
from eagle3lib.rounds import walk
from eagle3lib.run import NOTEBOOKS
from eagle3lib.widgets import explore, replay_explorer

K = 4
HOSTILE = "</span></td><script>alert('&')</script>"


class Page(HTMLParser):
    """Tags and text of a page; `cells` are those of its table's body, row by row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text, self.rows = "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        self.text += data
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def shown(monkeypatch) -> list:
    """What explorers display."""
    found = []
    monkeypatch.setattr(widgets, "display", found.append)
    return found


def figure_of(**chosen) -> Figure:
    figure = Figure()
    figure.subplots().set_title(f"the answer for {chosen}")
    return figure


# Any explorer


def test_a_choice_among_numbers_is_a_slider_and_any_other_a_dropdown(shown):
    explore(figure_of, {"draft_length": range(1, 9), "device": ["H100", "L4"]}, {"draft_length": 4, "device": "L4"})
    controls, surface = shown[0].children
    assert [(type(c).__name__, c.description, c.value) for c in controls.children] == [
        ("SelectionSlider", "draft length", 4), ("Dropdown", "device", "L4"),
    ]  # fmt: skip
    answer = surface.children[1]
    assert "the answer for" in Page(answer.value).all("img")[0]["alt"]
    before = answer.value
    controls.children[0].value = 5
    assert answer.value != before
    assert "'draft_length': 5" in Page(answer.value).all("img")[0]["alt"]


def test_it_says_that_it_computes_until_the_answer_stands(shown):
    said = []

    def draw(value):
        said.append(shown[0].children[1].children[0].value if shown else "")
        return HTML(f"<p>{value}</p>")

    explore(draw, {"value": [1, 2]}, {"value": 1})
    controls, surface = shown[0].children
    controls.children[0].value = 2
    assert "computing" in said[-1]
    assert [Page(widget.value).text for widget in surface.children] == ["", "2"]


def test_a_mistake_is_its_sentence_and_a_failure_is_not_silent(shown):
    def draw(value):
        if value == "mistake":
            raise InputError("Expected <this>, found that.")
        if value == "failure":
            raise ZeroDivisionError("<b>")
        return HTML("fine")

    explore(draw, {"value": ["fine", "mistake", "failure"]}, {"value": "fine"})
    controls, surface = shown[0].children
    status, answer = surface.children
    controls.children[0].value = "mistake"
    assert answer.value == "<p>Expected &lt;this&gt;, found that.</p>"
    with pytest.raises(ZeroDivisionError):
        controls.children[0].value = "failure"
    assert "could not be computed" in answer.value
    assert "<b>" not in answer.value
    assert Page(status.value).text == ""
    controls.children[0].value = "fine"
    assert answer.value == "fine"


def test_a_viewer_without_widgets_is_given_the_first_answer(shown):
    explore(figure_of, {"value": [1, 2]}, {"value": 2})
    bundle, _ = DisplayFormatter().format(shown[0])
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "the answer for {'value': 2}" in Page(bundle["text/html"]).all("img")[0]["alt"]


# Norms


def medians_of(sample) -> dict:
    return {b: float(state.norm(dim=-1).nanmedian()) for b, state in sample.states.items()}


def test_the_map_shows_each_norm_in_its_row_and_column():
    """Shades are told from norms by their definition: equal ratios, from a third to three times the median."""
    sample = toys.make_sample(length=90, boundaries=(0, 3, FINAL_NORMED))
    sample.states[3][::3] *= torch.linspace(0.01, 8, 30)[:, None]
    sample.states[0][30] *= 0.01
    medians = {b: 1.01 * median for b, median in medians_of(sample).items()}  # so that none lies between two shades
    page = Page(norm_map_html(sample, 20, medians, lambda token: f"word{token}"))
    norms = torch.stack([sample.states[b][20 : 20 + SHOWN].norm(dim=-1) for b in medians])
    torch.testing.assert_close(token_norms(sample, 20), norms)
    cells = [attributes for attributes in page.all("td") if "title" in attributes]
    ratios = norms / torch.tensor(list(medians.values()))[:, None]
    bounds = 9 ** (torch.arange(1, SHADES) / SHADES) / 3
    assert [cell["class"] for cell in cells] == [f"n{int((r >= bounds).sum())}" for r in ratios.flatten()]
    assert {cell["class"] for cell in cells} >= {"n0", f"n{SHADES - 1}"}
    assert [row[0].split(":")[0] for row in page.rows[1:]] == ["B(0)", "B(3)", FINAL_NORMED]
    assert page.rows[0][1:] == [f"word{token}" for token in sample.token_ids[20 : 20 + SHOWN]]


def test_the_map_names_the_state_that_stands_out_and_ends_with_the_sample():
    sample = toys.make_sample(length=30)
    sample.states[2][7] *= 50
    page = Page(norm_map_html(sample, 1000, medians_of(sample), "<{}>".format))
    assert f"above its boundary's median: token 7 “<{sample.token_ids[7]}>” at B(2)" in page.text
    assert len(page.rows[0]) == 31
    own = [i for i, attributes in enumerate(page.all("span")) if attributes.get("class") == "own"]
    assert own == sample.loss_mask.nonzero().flatten().tolist()


@pytest.mark.parametrize("spoil", ["nan", "zeros", "one row", "no row"])
def test_the_map_of_odd_states_is_a_map(spoil):
    sample = toys.make_sample(length=12)
    if spoil == "nan":
        sample.states[1][3] = torch.nan
    elif spoil == "zeros":
        sample.states[1].zero_()
    else:
        rows = int(spoil == "one row")
        sample = replace(sample, states={b: state[:rows] for b, state in sample.states.items()})
    page = norm_map_html(sample, 0, medians_of(sample), "<{}>".format)
    assert len(Page(page).rows) == 7
    assert page.count('class="nx" title') == {"nan": 1, "zeros": 12}.get(spoil, 0)
    if spoil == "one row":
        assert Page(page).rows[0][1:] == ["0"], "where rows are missing nobody knows which token each is of"


# Rounds


@pytest.fixture
def replayed(draft, sample):
    """A replay of the toy sample, half of whose tokens are the ones that the draft says."""
    first = rollout(draft, sample, Wiring(toys.SLOTS), 1)
    ids = sample.token_ids.clone()
    for start, token in list(zip(first.starts.tolist(), first.predicted[:, 0].tolist(), strict=True))[::2]:
        ids[start + 2] = token
    told = replace(sample, token_ids=ids)
    return rollout(draft, told, Wiring(toys.SLOTS), K)


def test_a_round_shows_what_was_drafted_up_to_the_first_miss(replayed):
    """Every round of the walk: as many accepted rows, at most one rejected, and the texts of the right tokens."""
    rounds = walk(replayed, K)
    assert {item.accepted for item in rounds} > {0}
    for number, item in enumerate(rounds):
        page = Page(round_html(replayed, K, number, "<{}>".format))
        rows = page.rows[1:]
        assert [row[3] for row in rows].count("✓ accepted") == item.accepted
        at = int(((replayed.starts == item.start) & (replayed.turns == item.turn)).nonzero()[0])
        for k, row in enumerate(r for r in rows if r[3] in ("✓ accepted", "✗ rejected")):
            assert row[1] == f"<{replayed.predicted[at, k]}>"
            assert row[2] == f"<{replayed.recorded[at, k]}>"
            assert (row[3] == "✓ accepted") == (row[1] == row[2])
        assert f"round {number + 1} of {len(rounds)}: {item.accepted} of {K} drafts accepted" in page.text


def test_moving_through_rounds_and_responses(replayed, shown):
    other = replace(replayed, sample="other", hit=torch.zeros_like(replayed.hit), predicted=replayed.recorded + 1)
    found, asked = {"trained": [replayed, other], "served": [other, other]}, []

    def replay(name, i):
        asked.append((name, i))
        return found[name][i]

    replay_explorer(replay, list(found), ["toy", "other"], K, "<{}>".format)
    controls, surface = shown[0].children
    wiring, response, play, number = controls.children
    answer = surface.children[1]
    number.value = number.max
    assert f"round {len(walk(replayed, K))} of" in answer.value
    wiring.value = "served"
    assert number.value == play.value == 1
    assert number.max == play.max == len(walk(other, K))
    assert "0 of 4 drafts accepted" in answer.value
    wiring.value, response.value = "trained", 1
    assert "other, turn 1" in answer.value
    assert len(set(asked)) == len(asked) == 3, "each is replayed once, when it is first looked at"


# Foreign text


def test_foreign_text_is_escaped_and_can_be_hidden(replayed, shown):
    sample = replace(toys.make_sample(), name=HOSTILE)
    rollouts = [replace(replayed, sample=HOSTILE)]
    for hide in (False, True):
        replay_explorer(lambda name, i: rollouts[i], ["trained"], [HOSTILE], K, lambda token: HOSTILE, hide)
        names = [name for name, _ in shown[-1].children[0].children[1].options]
        pages = [norm_map_html(sample, 0, medians_of(sample), lambda token: HOSTILE, hide)]
        pages += [round_html(rollouts[0], K, i, lambda token: HOSTILE, hide) for i in (0, 1)]
        for page in [*pages, shown[-1].children[1].children[1].value]:
            assert not Page(page).all("script")
            assert ("alert" in page) == (not hide)
        assert (HOSTILE in names) == (not hide)


# In the notebooks


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_shows_explorers_only_where_interactive_is_true(path):
    for cell in nbformat.read(path, as_version=4).cells:
        for call in re.finditer(r"^( *)(explore|replay_explorer|wiring_bench)\(", cell.source, re.M):
            assert call[1], f"cell {cell.id} shows an explorer whatever `interactive` is"
            assert re.search(r"^ *if interactive\b", cell.source[: call.start()], re.M), cell.id


@pytest.mark.parametrize(
    ("name", "explorers", "given"),
    [
        ("02_layer_norms", 1, {"hide_text": True}),
        ("04_concat_order", 1, {}),
        ("05_acceptance_length", 2, {"hide_text": True, "max_steps": 3}),
    ],
)
def test_explorers_of_a_notebook_answer_whatever_is_chosen(name, explorers, given, tmp_path, shown):
    """Every option of every choice once; no name of a file where text is hidden."""
    run_cells(name, toys.write_case(tmp_path / "case"), tmp_path / "out", interactive=True, **given)
    assert len(shown) == explorers
    for explorer in shown:
        controls, surface, *_ = explorer.children
        answer = surface.children[1]
        seen = {answer.value}
        for control in controls.children:
            if isinstance(control, Play):
                continue
            options = [value for _, value in control._options_full] if hasattr(control, "options") else [control.max]
            for option in options:
                control.value = option  # a failure is raised
                seen.add(answer.value)
                assert "hide_text" not in given or "hs_" not in answer.value
        assert len(seen) > 1
