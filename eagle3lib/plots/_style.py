"""What all figures share: size, colours, markers.

One colour stands for one wiring everywhere (Okabe and Ito's palette, told apart by colour-blind readers), and
line styles and markers differ too, for a grey print.
"""

from __future__ import annotations

from collections.abc import Sequence

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
NEUTRAL = "#555555"
WIDTH = 8.0


def figure_of(height: float, columns: int = 1, **kwargs) -> tuple[Figure, np.ndarray]:
    """A figure outside pyplot, so that nothing is drawn twice in a notebook."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False, **kwargs)[0]


def with_intervals(axes, x, estimates: Sequence[Estimate], colour: str, marker: str, line: str, label: str) -> None:
    values, lows, highs = (np.array([getattr(e, name) for e in estimates]) for name in ("value", "low", "high"))
    axes.plot(list(x), values, marker=marker, ls=line, color=colour, label=label, ms=5)
    axes.fill_between(list(x), lows, highs, color=colour, alpha=0.18, lw=0)
