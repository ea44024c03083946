"""Figures of acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eagle3lib.acceptance import Acceptance
from eagle3lib.bootstrap import Estimate
from eagle3lib.plots._style import STYLES, counted, figure_of, with_intervals


def survival(by_wiring: Mapping[str, Acceptance], title: str) -> Figure:
    """Survival S_k and conditional rate c_k along the walk, for each wiring."""
    counts = counted((found.walk.survival[0] for found in by_wiring.values()), "rounds")
    look = (
        "Look where a curve leaves the trained one: on the right at k = 1 it is fed otherwise, later it feeds back"
        f" otherwise. Shaded: 95 % intervals over samples; {counts} a wiring."
    )
    figure, (left, right) = figure_of(3.4, 2, title, look, sharex=True, sharey=True)
    for name, found in by_wiring.items():
        colour, marker, line = STYLES[name]
        steps = range(1, found.steps + 1)
        for axes, rates in ((left, found.walk.survival), (right, found.walk.conditional)):
            with_intervals(axes, steps, rates, colour, marker, line, name)
    left.set_ylabel("probability")
    left.set_title("survival S_k", fontsize="medium")
    right.set_title("conditional rate c_k", fontsize="medium")
    for axes in (left, right):
        axes.set_xlabel("draft position k")
        axes.set_ylim(0, 1)
    left.legend(frameon=False)
    return figure


def lengths(by_wiring: Mapping[str, Mapping[int, Estimate]], title: str) -> Figure:
    """Acceptance length along the walk against draft length K, each K walked."""
    counts = counted((e for by_steps in by_wiring.values() for e in by_steps.values()), "rounds")
    look = (
        "Look at the distance between the curves, and where each goes flat: longer drafts bring nothing there."
        f" Shaded: 95 % intervals over samples; {counts} a point."
    )
    figure, (axes,) = figure_of(3.4, title=title, look=look)
    for name, by_steps in by_wiring.items():
        colour, marker, line = STYLES[name]
        with_intervals(axes, list(by_steps), list(by_steps.values()), colour, marker, line, name)
    axes.set_xlabel("draft length K (chain)")
    axes.set_ylabel("tokens a round, bonus included")
    axes.set_ylim(1)
    axes.legend(frameon=False)
    return figure


def round_lengths(by_wiring: Mapping[str, Sequence[int]], title: str) -> Figure:
    """Share of the walk's rounds by their length, each turn's last round left out."""
    totals = ", ".join(f"{name} {sum(counts):,}" for name, counts in by_wiring.items())
    look = f"Look at the first group: rounds that yield one token accepted nothing. Rounds: {totals}."
    figure, (axes,) = figure_of(3.0, title=title, look=look)
    width = 0.8 / len(by_wiring)
    for i, (name, counts) in enumerate(by_wiring.items()):
        x = np.arange(1, len(counts) + 1) + (i - (len(by_wiring) - 1) / 2) * width
        colour = STYLES[name][0]
        hatch = ("", "//", "..")[i % 3]
        axes.bar(
            x, np.array(counts) / max(sum(counts), 1), width, color=colour, hatch=hatch, edgecolor="white", label=name
        )
    axes.set_xlabel("tokens a round yields, bonus included")
    axes.set_ylabel("share of rounds")
    axes.legend(frameon=False)
    return figure


def along_sequence(table: pd.DataFrame, title: str) -> Figure:
    """Mean round length against distance from the response's start."""
    look = (
        "Look for a slope: a draft that falls behind along the response is fed or placed otherwise late in it."
        f" Shaded: 95 % intervals over samples; {int(table['count'].min()):,} rounds or more a point."
    )
    figure, (axes,) = figure_of(3.0, title=title, look=look)
    for name, rows in table.groupby("wiring", sort=False):
        colour, marker, line = STYLES[str(name)]
        estimates = [Estimate(*values) for values in rows[["value", "low", "high", "count"]].to_numpy()]
        with_intervals(axes, rows["middle"].tolist(), estimates, colour, marker, line, str(name))
    axes.set_xlabel("tokens since the response began")
    axes.set_ylabel("tokens a round")
    axes.set_ylim(1)
    axes.legend(frameon=False)
    return figure
