"""What all figures share: size, colours, markers, where the title stands, and the sentence that says what to look at.

One colour stands for one thing everywhere. The colours of the three wirings are Okabe and Ito's, told apart by
colour-blind readers; they are used for nothing else, except that what is measured of the draft as trained is drawn
in the trained wiring's. A boundary has its colour and marker in every figure, of whatever target. Line styles,
markers and hatches differ too, for a grey print.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from eagle3lib.bootstrap import Estimate

matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"})

#: colour, marker and line style of each wiring.
STYLES = {
    "trained": ("#0072B2", "o", "-"),
    "served": ("#D55E00", "s", "--"),
    "rewired": ("#009E73", "^", "-."),
}
#: Of series that are no wiring of this case, in order.
SERIES = (("#332288", "D", "-"), ("#CC6677", "v", "--"), ("#117733", "P", "-."), ("#999933", "X", ":"))
NEUTRAL = "#555555"
FAINT = "#BBBBBB"  # reference lines, ranges, and bars that are only there to compare with
BEST = ("black", "*")  # what no fixed choice reaches, and the best of several
WIDTH = 8.0
TITLE_LENGTH = 88  # characters on a line of the title

#: Colours of boundaries (Paul Tol's), in an order that keeps the usual layer ids of 30 and 61 blocks apart.
_BOUNDARY_COLOURS = (
    "#332288", "#6699CC", "#AA4499", "#CC6677", "#44AA99", "#999933", "#117733", "#DDCC77", "#882255", "#661100",
    "#88CCEE",
)  # fmt: skip
_BOUNDARY_MARKERS = "sD^vPXd"


def figure_of(
    height: float, columns: int = 1, title: str = "", look: str = "", width: float = WIDTH, **kwargs
) -> tuple[Figure, np.ndarray]:
    """A figure outside pyplot, so that nothing is drawn twice in a notebook, and its axes.

    Args:
        title: the finding with its number; long ones are folded.
        look: what to look at, and what bars and shades mean; it becomes the figure's label, which pages show below.
        kwargs: as `Figure.subplots`.
    """
    lines = textwrap.wrap(title, int(TITLE_LENGTH * width / WIDTH))
    figure = Figure(figsize=(width, height + 0.2 * max(len(lines) - 1, 0)), layout="constrained", label=look)
    if lines:
        figure.suptitle("\n".join(lines), x=0.01, ha="left")
    return figure, figure.subplots(1, columns, squeeze=False, **kwargs)[0]


def with_intervals(axes, x, estimates: Sequence[Estimate], colour: str, marker: str, line: str, label: str) -> None:
    """A line through the estimates, their intervals shaded."""
    values, lows, highs = (np.array([getattr(e, name) for e in estimates]) for name in ("value", "low", "high"))
    axes.plot(list(x), values, marker=marker, ls=line, color=colour, label=label, ms=5)
    axes.fill_between(list(x), lows, highs, color=colour, alpha=0.18, lw=0)


def boundary_style(k: int) -> tuple[str, str]:
    """Colour and marker of B(k)."""
    return _BOUNDARY_COLOURS[k % len(_BOUNDARY_COLOURS)], _BOUNDARY_MARKERS[k % len(_BOUNDARY_MARKERS)]


def counted(estimates: Iterable[Estimate], what: str) -> str:
    """How many trials are behind the estimates, as in "612 to 655 rounds"."""
    counts = sorted({e.count for e in estimates})
    span = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}" if counts else "no"
    return f"{span} {what}"
