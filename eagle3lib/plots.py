"""Figures: every function returns a matplotlib figure whose title states the finding.

One colour stands for one wiring everywhere (Okabe and Ito's palette, told apart by colour-blind readers), and
line styles and markers differ too, for a grey print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eagle3lib.acceptance import Acceptance
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import boundary_name
from eagle3lib.comparison import Comparison
from eagle3lib.placement import Placement

matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"})

#: colour, marker and line style of each wiring.
STYLES = {
    "trained": ("#0072B2", "o", "-"),
    "served": ("#D55E00", "s", "--"),
    "rewired": ("#009E73", "^", "-."),
}
NEUTRAL = "#555555"
WIDTH = 8.0


def _figure(height: float, columns: int = 1, **kwargs) -> tuple[Figure, np.ndarray]:
    """A figure outside pyplot, so that nothing is drawn twice in a notebook."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False, **kwargs)[0]


def slot_columns(norms: Sequence[float], names: Sequence[str], title: str) -> Figure:
    """Norm of `fc`'s columns by slot: what share of the fused state each slot can make."""
    figure, (axes,) = _figure(2.2)
    axes.barh(range(len(norms)), norms, color=STYLES["trained"][0])
    axes.set_yticks(range(len(norms)), names)
    axes.invert_yaxis()
    axes.set_xlabel("Frobenius norm of the slot's columns of fc")
    axes.set_title(title)
    return figure


def weight_scales(stats: pd.DataFrame, title: str) -> Figure:
    """Root mean square and largest magnitude of each tensor, logarithmic."""
    figure, (axes,) = _figure(0.28 * len(stats) + 1.2)
    rows = np.arange(len(stats))
    axes.hlines(rows, stats["rms"], stats["largest"], color="#BBBBBB")
    axes.plot(stats["rms"], rows, "o", color=STYLES["trained"][0], label="root mean square")
    axes.plot(stats["largest"], rows, "D", color=STYLES["served"][0], label="largest magnitude", mfc="none")
    axes.set_yticks(rows, stats["tensor"])
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("magnitude of a weight")
    axes.legend(loc="lower right", frameon=False)
    axes.set_title(title)
    return figure


def norm_profile(profile: pd.DataFrame, title: str) -> Figure:
    """Distribution of token norms by boundary, logarithmic: median, middle 90 %, extremes."""
    figure, (axes,) = _figure(3.6)
    x = profile["boundary"]
    axes.vlines(x, profile["smallest"], profile["largest"], color="#BBBBBB", lw=1, label="smallest to largest")
    axes.vlines(x, profile["p5"], profile["p95"], color=STYLES["trained"][0], lw=4, alpha=0.5, label="5 % to 95 %")
    axes.plot(x, profile["median"], "o-", color=STYLES["trained"][0], ms=4, label="median")
    axes.set_yscale("log")
    axes.set_xlabel("boundary B(k), after k blocks")
    axes.set_ylabel("norm of a token's state")
    axes.legend(frameon=False)
    axes.set_title(title)
    return figure


def placement_map(placement: Placement, title: str) -> Figure:
    """Angle between every two boundaries' states of one token: it grows away from the diagonal."""
    size = len(placement.boundaries)
    figure, (axes,) = _figure(4.2)
    image = axes.imshow(placement.angles, cmap="cividis", vmin=0, vmax=90)
    shown = range(0, size, max(size // 10, 1))
    names = [boundary_name(placement.boundaries[i]) for i in shown]
    axes.set_xticks(shown, names, rotation=45)
    axes.set_yticks(shown, names)
    if size <= 8:
        for (row, column), value in np.ndenumerate(placement.angles):
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", color="white" if value < 45 else "black")
    figure.colorbar(image, ax=axes, label="median angle between states of one token, degrees")
    axes.set_title(title)
    return figure


def state_differences(comparison: Comparison, title: str) -> Figure:
    """Difference of two dumps over depth, and the ratio of their norms."""
    figure, (left, right) = _figure(3.4, 2)
    names = [boundary_name(state.boundary) for state in comparison.states]
    x = range(len(names))
    means, extremes = ([100 * getattr(s, name) for s in comparison.states] for name in ("relative", "relative_max"))
    left.plot(x, means, "o-", color=STYLES["trained"][0], label="mean over tokens")
    left.plot(x, extremes, "D--", color=STYLES["served"][0], mfc="none", label="largest")
    left.set_yscale("symlog", linthresh=0.1)
    left.set_ylim(0)
    left.set_ylabel("difference, % of the first dump's norm")
    left.legend(frameon=False)
    right.axhline(1, color="#BBBBBB", lw=1, zorder=0)
    right.plot(x, [s.norm_ratio for s in comparison.states], "o-", color=STYLES["trained"][0])
    right.set_ylabel("norm, second over first")
    shown = range(0, len(names), max(len(names) // 10, 1))
    for axes in (left, right):
        axes.set_xticks(shown, [names[i] for i in shown], rotation=45)
        axes.set_xlabel("boundary")
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def norm_histogram(norms: Sequence[float], title: str) -> Figure:
    """How many tokens have a state of which norm."""
    figure, (axes,) = _figure(2.6)
    axes.hist(norms, bins=40, color=STYLES["trained"][0])
    axes.set_xlabel("norm of a token's state")
    axes.set_ylabel("tokens")
    axes.set_title(title)
    return figure


def accuracy_by_truth(table: pd.DataFrame, claimed: Sequence[float] | None, title: str) -> Figure:
    """full_acc_k against each truth, beside the library's own number."""
    figure, (axes,) = _figure(3.4)
    palette = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555"]
    for i, (truth, rows) in enumerate(table.groupby("truth", sort=False)):
        offset = 0.06 * (i - table["truth"].nunique() / 2)
        errors = [rows["full_acc"] - rows["low"], rows["high"] - rows["full_acc"]]
        axes.errorbar(
            rows["step"] + offset,
            rows["full_acc"],
            yerr=errors,
            fmt="osD^vPX"[i % 7],
            color=palette[i % len(palette)],
            label=truth,
        )
    if claimed is not None:
        axes.plot(range(len(claimed)), claimed, "k_", ms=26, label="the library's own number")
    axes.set_xticks(sorted(table["step"].unique()))
    axes.set_xlabel("step k of the draft")
    axes.set_ylabel("full_acc_k (correct at every step up to k)")
    axes.set_ylim(0)
    axes.legend(frameon=False, title="truth")
    axes.set_title(title)
    return figure


def slot_heat_map(table: pd.DataFrame, title: str) -> Figure:
    """Excess cross-entropy of each boundary in each slot, the other slots as in the best wiring."""
    figure, (axes,) = _figure(1.6 + 0.45 * len(table))
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
    axes.set_title(title)
    return figure


def ranking(rows: pd.DataFrame, title: str) -> Figure:
    """Cross-entropy above the best wiring, with paired intervals; ties are filled lighter."""
    figure, (axes,) = _figure(0.3 * len(rows) + 1.2)
    y = np.arange(len(rows))
    errors = np.abs([rows["excess"] - rows["low"], rows["high"] - rows["excess"]])
    axes.errorbar(rows["excess"], y, xerr=errors, fmt="none", ecolor=NEUTRAL, lw=1)
    for i, (_, row) in enumerate(rows.iterrows()):
        colour, marker, _ = STYLES.get(row["role"], (NEUTRAL, "o", "-"))
        axes.plot(row["excess"], i, marker, color=colour, mfc="white" if row["tie"] and i else colour)
    axes.set_yticks(y, rows["label"])
    axes.invert_yaxis()
    axes.axvline(0, color="#BBBBBB", lw=1, zorder=0)
    axes.set_xlabel("cross-entropy above the best, nats a token (paired 95 % interval)")
    axes.set_title(title)
    return figure


def survival(by_wiring: Mapping[str, Acceptance], title: str) -> Figure:
    """Survival S_k and conditional rate c_k along the walk, for each wiring."""
    figure, (left, right) = _figure(3.4, 2, sharex=True, sharey=True)
    for name, found in by_wiring.items():
        colour, marker, line = STYLES[name]
        steps = range(1, found.steps + 1)
        for axes, rates in ((left, found.walk.survival), (right, found.walk.conditional)):
            _with_intervals(axes, steps, rates, colour, marker, line, name)
    left.set_ylabel("probability")
    figure.suptitle(title, x=0.01, ha="left")
    left.set_title("survival S_k", fontsize="medium")
    right.set_title("conditional rate c_k", fontsize="medium")
    for axes in (left, right):
        axes.set_xlabel("draft position k")
        axes.set_ylim(0, 1)
    left.legend(frameon=False)
    return figure


def lengths(by_wiring: Mapping[str, Mapping[int, Estimate]], title: str) -> Figure:
    """Acceptance length along the walk against draft length K, each K walked."""
    figure, (axes,) = _figure(3.4)
    for name, by_steps in by_wiring.items():
        colour, marker, line = STYLES[name]
        _with_intervals(axes, list(by_steps), list(by_steps.values()), colour, marker, line, name)
    axes.set_xlabel("draft length K (chain)")
    axes.set_ylabel("tokens a round, bonus included")
    axes.set_ylim(1)
    axes.legend(frameon=False)
    axes.set_title(title)
    return figure


def round_lengths(by_wiring: Mapping[str, Sequence[int]], title: str) -> Figure:
    """Share of the walk's rounds by their length, each turn's last round left out."""
    figure, (axes,) = _figure(3.0)
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
    axes.set_title(title)
    return figure


def along_sequence(table: pd.DataFrame, title: str) -> Figure:
    """Mean round length against distance from the response's start."""
    figure, (axes,) = _figure(3.0)
    for name, rows in table.groupby("wiring", sort=False):
        colour, marker, line = STYLES[str(name)]
        estimates = [Estimate(*values) for values in rows[["value", "low", "high", "count"]].to_numpy()]
        _with_intervals(axes, rows["middle"].tolist(), estimates, colour, marker, line, str(name))
    axes.set_xlabel("tokens since the response began")
    axes.set_ylabel("tokens a round")
    axes.set_ylim(1)
    axes.legend(frameon=False)
    axes.set_title(title)
    return figure


def _with_intervals(axes, x, estimates: Sequence[Estimate], colour: str, marker: str, line: str, label: str) -> None:
    values, lows, highs = (np.array([getattr(e, name) for e in estimates]) for name in ("value", "low", "high"))
    axes.plot(list(x), values, marker=marker, ls=line, color=colour, label=label, ms=5)
    axes.fill_between(list(x), lows, highs, color=colour, alpha=0.18, lw=0)
