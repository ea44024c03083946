"""One visual language: every figure says what to look at, and a colour means one thing."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pandas as pd
import pytest

from eagle3lib import plots
from eagle3lib.bootstrap import Estimate
from eagle3lib.plots import _style

ROOMS = sorted(path for path in Path(plots.__file__).parent.glob("*.py") if path.stem not in ("__init__", "_style"))
KIMI, BUNDLED = (2, 3, 30, 31, 58, 59, 61), (0, 3, 16, 28, 30)


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: path.stem)
def test_every_figure_is_made_in_the_shared_style_with_a_title_and_what_to_look_at(room):
    text = room.read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    made = [call for call in calls if getattr(call.func, "id", "") == "figure_of"]
    public = [f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef) and not f.name.startswith("_")]
    assert len(made) == len(public)
    for call in made:
        given = [ast.unparse(argument) for argument in call.args[2:]] + [word.arg for word in call.keywords]
        assert given[:2] == ["title", "look"], ast.unparse(call)
    assert "#" not in "".join(node.value for node in ast.walk(ast.parse(text)) if _is_text(node)), "a colour of its own"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def lengths(title: str = "T"):
    estimates = {k: Estimate(1 + k / 10, 1 + k / 11, 1 + k / 9, 600 + k) for k in (1, 2)}
    return plots.lengths({"trained": estimates, "served": estimates}, title)


def test_a_figure_s_label_says_what_to_look_at_and_how_much_is_behind_it():
    figure = lengths()
    assert figure.get_label().startswith("Look at ")
    assert "601 to 602 rounds a point" in figure.get_label()
    assert figure.get_suptitle() == "T"


def test_a_long_title_is_folded_and_none_of_it_is_lost():
    title = "At K = 4 the draft yields " + ", ".join(f"wiring {i} 1.59" for i in range(12))
    figure = lengths(title)
    assert "\n" in figure.get_suptitle()
    assert figure.get_suptitle().replace("\n", " ") == title


def test_two_drawings_of_one_figure_have_the_same_bytes():
    drawn = []
    for _ in range(2):
        png = io.BytesIO()
        lengths().savefig(png, format="png", metadata={"Software": None})
        drawn.append(png.getvalue())
    assert drawn[0] == drawn[1]


def test_a_boundary_has_one_style_and_usual_ids_differ():
    for ids in (KIMI, BUNDLED):
        assert len({_style.boundary_style(k) for k in ids}) == len(ids)
    for fed in ((3, 31, 59), (2, 30, 58), BUNDLED):
        assert len({_style.boundary_style(k)[0] for k in fed}) == len(fed)
    rows = [
        {"truth": truth, "step": 0, "full_acc": 0.4, "low": 0.3, "high": 0.5}
        for truth in ("recorded token", "teacher B(28)", "teacher B(30)")
    ]
    for shown in (rows, rows[2:]):  # whatever else is in the figure
        (axes,) = plots.accuracy_by_truth(pd.DataFrame(shown), [0.4], "T").axes
        handles, names = axes.get_legend_handles_labels()
        drawn = {name: handle[0].get_color() for name, handle in zip(names, handles, strict=True) if "B(" in name}
        assert drawn["teacher B(30)"] == _style.boundary_style(30)[0]


def test_wirings_keep_their_colours_for_themselves():
    colours = {colour for colour, _, _ in _style.STYLES.values()}
    others = {_style.boundary_style(k)[0] for k in range(80)} | {colour for colour, _, _ in _style.SERIES}
    assert len(colours) == 3
    assert not colours & (others | {_style.NEUTRAL, _style.FAINT, _style.BEST[0]})


def test_wirings_differ_in_marker_and_line_too():
    assert len({style[1:] for style in _style.STYLES.values()}) == len(_style.STYLES)
    assert len({style[1:] for style in _style.SERIES}) == len(_style.SERIES)
