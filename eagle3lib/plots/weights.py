"""Figures of a draft's weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eagle3lib.plots._style import FAINT, NEUTRAL, STYLES, figure_of


def slot_columns(norms: Sequence[float], names: Sequence[str], title: str) -> Figure:
    """Norm of `fc`'s columns by slot: what share of the fused state each slot can make."""
    look = "Look for a slot near zero: whatever is fed there, the draft hardly listens."
    figure, (axes,) = figure_of(2.2, title=title, look=look)
    axes.barh(range(len(norms)), norms, color=STYLES["trained"][0])
    axes.set_yticks(range(len(norms)), names)
    axes.invert_yaxis()
    axes.set_xlabel("Frobenius norm of the slot's columns of fc")
    return figure


def weight_scales(stats: pd.DataFrame, title: str) -> Figure:
    """Root mean square and largest magnitude of each tensor, logarithmic."""
    look = (
        "Look for a tensor far from its kind: never trained, scaled, or wrongly decoded. Norm weights lie near 1,"
        " matrices far below."
    )
    figure, (axes,) = figure_of(0.28 * len(stats) + 1.4, title=title, look=look)
    rows = np.arange(len(stats))
    axes.hlines(rows, stats["rms"], stats["largest"], color=FAINT)
    axes.plot(stats["rms"], rows, "o", color=STYLES["trained"][0], label="root mean square")
    axes.plot(stats["largest"], rows, "D", color=NEUTRAL, label="largest magnitude", mfc="none")
    axes.set_yticks(rows, stats["tensor"])
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("magnitude of a weight")
    figure.legend(loc="outside lower left", ncols=2, frameon=False)
    return figure
