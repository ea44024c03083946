"""Figures of what a server said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from eagle3lib.plots._style import NEUTRAL, STYLES, figure_of, with_intervals
from eagle3lib.served_comparison import Comparison

#: Servers in one figure; more hide each other.
MOST_SERVERS = 4
_MARKERS = "DvXP"


def served_survival(found: Sequence[Comparison], title: str) -> Figure:
    """Survival by draft position: the replays as lines, servers of the same round as points, both with intervals.

    Args:
        found: comparisons with counts by position, all of one shape of round.
    """
    first = found[0]
    look = "Look at which replay the points lie on: the engine accepts as that wiring does. Bars and shades: intervals."
    figure, (axes,) = figure_of(3.4, title=title, look=look)
    for name, rates in first.replayed.items():
        if name in STYLES:
            colour, marker, line = STYLES[name]
            positions = range(1, len(rates.survival) + 1)
            with_intervals(axes, positions, rates.survival, colour, marker, line, f"replay, {name}")
    for i, one in enumerate(found[:MOST_SERVERS]):
        x = np.arange(1, len(one.numbers.survival) + 1) + 0.06 * (i + 1)
        value, low, high = np.array([e.numbers for e in one.numbers.survival]).T
        bars = np.clip([value - low, high - value], 0, None)
        axes.errorbar(x, value, bars, fmt=_MARKERS[i], color=NEUTRAL, ms=5, capsize=3, label=one.numbers.label)
    axes.set_xlabel(f"draft position k ({first.shape})")
    axes.set_ylabel("survival S_k")
    axes.set_xticks(range(1, len(first.numbers.survival) + 1))
    axes.set_ylim(0)
    axes.legend(frameon=False)
    return figure
