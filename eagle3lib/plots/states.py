"""Figures of recorded states."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eagle3lib.boundaries import FINAL_NORMED, boundary_name
from eagle3lib.comparison import Comparison
from eagle3lib.placement import Placement
from eagle3lib.plots._style import FAINT, NEUTRAL, STYLES, figure_of


def norm_profile(profile: pd.DataFrame, title: str) -> Figure:
    """Distribution of token norms by boundary, logarithmic: median, middle 90 %, extremes.

    The normed last state has no place in the depth; it stands apart, behind the deepest boundary.
    """
    look = (
        "Look at the left end: an embedding is far smaller than the states after it. A first state as large as the"
        " others is no B(0)."
    )
    figure, (axes,) = figure_of(3.6, title=title, look=look)
    depths = [boundary for boundary in profile["boundary"] if boundary != FINAL_NORMED]
    behind = max(depths) + max(1, 0.08 * (max(depths) - min(depths))) if depths else 0
    x = [behind if boundary == FINAL_NORMED else boundary for boundary in profile["boundary"]]
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if FINAL_NORMED in set(profile["boundary"]):
        axes.set_xticks([behind], ["normed"], minor=True)
        axes.xaxis.remove_overlapping_locs = False
    axes.vlines(x, profile["smallest"], profile["largest"], color=FAINT, lw=1, label="smallest to largest")
    axes.vlines(x, profile["p5"], profile["p95"], color=STYLES["trained"][0], lw=4, alpha=0.5, label="5 % to 95 %")
    axes.plot(x, profile["median"], "o-", color=STYLES["trained"][0], ms=4, label="median")
    axes.set_yscale("log")
    axes.set_xlabel("boundary B(k), after k blocks")
    axes.set_ylabel("norm of a token's state")
    axes.legend(frameon=False)
    return figure


def placement_map(placement: Placement, title: str) -> Figure:
    """Angle between every two boundaries' states of one token: it grows away from the diagonal."""
    size = len(placement.boundaries)
    look = "Look for the dark band along the diagonal: a state that is darkest elsewhere is another boundary's."
    figure, (axes,) = figure_of(4.2, title=title, look=look, width=5.6)
    image = axes.imshow(placement.angles, cmap="cividis", vmin=0, vmax=90)
    shown = range(0, size, max(size // 10, 1))
    names = [boundary_name(placement.boundaries[i]) for i in shown]
    axes.set_xticks(shown, names, rotation=45)
    axes.set_yticks(shown, names)
    if size <= 8:
        for (row, column), value in np.ndenumerate(placement.angles):
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", color="white" if value < 45 else "black")
    figure.colorbar(image, ax=axes, label="median angle between states of one token, degrees")
    return figure


def state_differences(comparison: Comparison, title: str) -> Figure:
    """Difference of two dumps over depth, and the ratio of their norms."""
    look = (
        "Look where the difference begins: up to there both stacks compute the same. A ratio of norms off 1 is a"
        " scale, not rounding."
    )
    figure, (left, right) = figure_of(3.4, 2, title, look)
    names = [boundary_name(state.boundary) for state in comparison.states]
    x = range(len(names))
    means, extremes = ([100 * getattr(s, name) for s in comparison.states] for name in ("relative", "relative_max"))
    left.plot(x, means, "o-", color=STYLES["trained"][0], label="mean over tokens")
    left.plot(x, extremes, "D--", color=NEUTRAL, mfc="none", label="largest")
    left.set_yscale("symlog", linthresh=0.1)
    left.set_ylim(0)
    left.set_ylabel("difference, % of the first dump's norm")
    left.legend(frameon=False)
    right.axhline(1, color=FAINT, lw=1, zorder=0)
    right.plot(x, [s.norm_ratio for s in comparison.states], "o-", color=STYLES["trained"][0])
    right.set_ylabel("norm, second over first")
    shown = range(0, len(names), max(len(names) // 10, 1))
    for axes in (left, right):
        axes.set_xticks(shown, [names[i] for i in shown], rotation=45)
        axes.set_xlabel("boundary")
    return figure


def readings(found: pd.DataFrame, title: str) -> Figure:
    """By how many nats each reading of the last state finds the recorded token unlikely; the stated one is first."""
    look = "Look at the first bar: it is the stated reading, and must be the shortest by far."
    figure, (axes,) = figure_of(0.32 * len(found) + 1.0, title=title, look=look)
    rows = np.arange(len(found))
    axes.barh(rows, -found["mean_logprob"], color=[STYLES["trained"][0], *[FAINT] * (len(found) - 1)])
    axes.set_yticks(rows, found["reading"])
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("−mean log-probability of the recorded token, nats (less is better)")
    return figure
