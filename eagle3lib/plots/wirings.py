"""Figures of truths and wirings."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eagle3lib.plots._style import FAINT, NEUTRAL, STYLES, boundary_style, figure_of


def accuracy_by_truth(table: pd.DataFrame, claimed: Sequence[float] | None, title: str) -> Figure:
    """full_acc_k against each truth, beside the library's own number."""
    look = (
        "Look which truth's points meet the dashes of the library's own number: that one taught."
        if claimed is not None
        else "Look which truth the draft agrees with most: that one taught, or is next to it."
    )
    figure, (axes,) = figure_of(3.4, title=title, look=f"{look} Bars: 95 % intervals over samples.")
    for i, (truth, rows) in enumerate(table.groupby("truth", sort=False)):
        offset = 0.06 * (i - table["truth"].nunique() / 2)
        errors = [rows["full_acc"] - rows["low"], rows["high"] - rows["full_acc"]]
        colour, marker = _truth_style(str(truth))
        axes.errorbar(rows["step"] + offset, rows["full_acc"], yerr=errors, fmt=marker, color=colour, label=truth)
    if claimed is not None:
        axes.plot(range(len(claimed)), claimed, "k_", ms=26, label="the library's own number")
    axes.set_xticks(sorted(table["step"].unique()))
    axes.set_xlabel("step k of the draft")
    axes.set_ylabel("full_acc_k (correct at every step up to k)")
    axes.set_ylim(0)
    axes.legend(frameon=False, title="truth")
    return figure


def _truth_style(name: str) -> tuple[str, str]:
    """The colour and marker of the boundary that taught; what is no boundary is neutral."""
    found = re.search(r"B\((\d+)\)", name)
    return boundary_style(int(found[1])) if found else (NEUTRAL, "o")


def slot_heat_map(table: pd.DataFrame, title: str) -> Figure:
    """Excess cross-entropy of each boundary in each slot, the other slots as in the best wiring."""
    look = "Look along each row: its lightest cell is the boundary that the slot was trained on."
    figure, (axes,) = figure_of(1.6 + 0.45 * len(table), title=title, look=look)
    image = axes.imshow(table.to_numpy(), aspect="auto", cmap="cividis_r")
    axes.set_xticks(range(table.shape[1]), [str(c) for c in table.columns])
    axes.set_yticks(range(table.shape[0]), list(table.index))
    axes.set_xlabel("boundary fed to the slot")
    if table.shape[1] <= 8:
        threshold = np.nanmax(table.to_numpy()) / 2
        for (row, column), value in np.ndenumerate(table.to_numpy()):
            ink = "white" if value > threshold else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink)
    figure.colorbar(image, ax=axes, label="nats a token above the best")
    return figure


def ranking(rows: pd.DataFrame, title: str) -> Figure:
    """Cross-entropy above the best wiring, with paired intervals; ties are filled lighter."""
    look = "Look how far the served wiring lies from zero, and whether any other comes near it. Hollow: ties."
    figure, (axes,) = figure_of(0.3 * len(rows) + 1.2, title=title, look=look)
    y = np.arange(len(rows))
    errors = np.abs([rows["excess"] - rows["low"], rows["high"] - rows["excess"]])
    axes.errorbar(rows["excess"], y, xerr=errors, fmt="none", ecolor=NEUTRAL, lw=1)
    for i, (_, row) in enumerate(rows.iterrows()):
        colour, marker, _ = STYLES.get(row["role"], (NEUTRAL, "o", "-"))
        axes.plot(row["excess"], i, marker, color=colour, mfc="white" if row["tie"] and i else colour)
    axes.set_yticks(y, rows["label"])
    axes.invert_yaxis()
    axes.axvline(0, color=FAINT, lw=1, zorder=0)
    axes.set_xlabel("cross-entropy above the best, nats a token (paired 95 % interval)")
    return figure


def bench(table: pd.DataFrame, title: str) -> Figure:
    """Accuracy, cross-entropy and acceptance length of a few wirings with their intervals (`Bench.table`)."""
    look = (
        "Look whether the trained row is as good as the best, and what the served one loses. Bars: 95 % intervals over"
        f" samples; {int(table['tokens'].max()):,} tokens."
    )
    figure, panels = figure_of(0.35 * len(table) + 1.3, 3, title, look, sharey=True)
    labels = {"accuracy": "accuracy", "cross_entropy": "cross-entropy, nats a token", "length": "acceptance length"}
    y = np.arange(len(table))
    for axes, (column, label) in zip(panels, labels.items(), strict=True):
        value, low, high = (table[name] for name in (column, f"{column}_low", f"{column}_high"))
        axes.errorbar(value, y, xerr=np.abs([value - low, high - value]), fmt="none", ecolor=NEUTRAL, lw=1)
        for i, name in enumerate(table["name"]):
            colour, marker, _ = STYLES.get(name, (NEUTRAL, "o", "-"))
            axes.plot(value.iloc[i], i, marker, color=colour)
        axes.set_xlabel(label)
    panels[0].set_yticks(y, [f"{row['name']}  {row['wiring']}" for _, row in table.iterrows()])
    panels[0].invert_yaxis()
    return figure
