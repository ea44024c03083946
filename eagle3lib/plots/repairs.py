"""Figures of repairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eagle3lib.bootstrap import Estimate
from eagle3lib.plots._style import FAINT, NEUTRAL, SERIES, STYLES, figure_of, with_intervals


def ladder(table: pd.DataFrame, title: str) -> Figure:
    """Acceptance length of every rung and of the true wiring, with intervals; `table` as `Ladder.table` gives it."""
    look = "Look which rung's interval lies above the one before it. Bars: 95 % intervals over samples."
    figure, (axes,) = figure_of(0.4 * len(table) + 1.0, title=title, look=look)
    y = np.arange(len(table))
    errors = np.abs([table["length"] - table["low"], table["high"] - table["length"]])
    axes.errorbar(table["length"], y, xerr=errors, fmt="none", ecolor=NEUTRAL, lw=1)
    styles = {"served": STYLES["served"], "rewire": STYLES["rewired"], "true wiring": STYLES["trained"]}
    for i, row in enumerate(table.itertuples()):
        colour, marker, _ = styles.get(row.rung, (NEUTRAL, "D", "-"))
        axes.plot(row.length, i, marker, color=colour, ms=7)
    axes.set_yticks(y, table["rung"])
    axes.invert_yaxis()
    axes.set_xlabel("tokens a round, bonus included (95 % interval)")
    return figure


def recovery(curves: Mapping[str, Mapping[int, Estimate]], title: str) -> Figure:
    """Share of the lost acceptance length that a refit brings back, against the tokens that it was fitted on."""
    look = (
        "Look how many tokens a curve needs to come near the line at 1, where all of the loss is back. Shaded: 95 %"
        " intervals over samples."
    )
    figure, (axes,) = figure_of(3.4, title=title, look=look)
    for (name, by_tokens), (colour, marker, line) in zip(curves.items(), SERIES, strict=False):
        with_intervals(axes, list(by_tokens), list(by_tokens.values()), colour, marker, line, name)
    ticks: Sequence[int] = sorted({n for by_tokens in curves.values() for n in by_tokens})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks], minor=False)
    axes.minorticks_off()
    axes.axhline(1, color=FAINT, lw=1, zorder=0)
    axes.set_xlabel("tokens fitted")
    axes.set_ylabel("share of the loss that came back")
    axes.legend(frameon=False, title="served")
    return figure
