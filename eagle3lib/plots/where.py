"""Figures of acceptance by slice, token class, checkpoint and draft length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from eagle3lib.averages import Budget
from eagle3lib.checkpoints import Contender
from eagle3lib.plots._style import BEST, FAINT, NEUTRAL, STYLES, figure_of
from eagle3lib.slices import Slice
from eagle3lib.token_classes import ClassAcceptance


def by_slice(found: Sequence[Slice], overall: float, title: str) -> Figure:
    """Acceptance length of each slice with its interval, beside that of all; degenerate slices hollow."""
    look = (
        "Look for intervals that leave the line: those slices are drafted better or worse than the rest. Hollow: too"
        " few rounds to tell."
    )
    figure, (axes,) = figure_of(0.35 * len(found) + 1.2, title=title, look=look)
    for row, s in enumerate(found):
        low, high = (v if np.isfinite(v) else s.length.value for v in (s.length.low, s.length.high))
        axes.hlines(row, low, high, color=NEUTRAL, lw=1.5)
        axes.plot(s.length.value, row, "o", color=STYLES["trained"][0], mfc="white" if s.degenerate else None)
    axes.axvline(overall, color=FAINT, lw=1, zorder=0)
    axes.set_yticks(range(len(found)), [f"{s.name} ({s.length.count} rounds)" for s in found])
    axes.invert_yaxis()
    axes.set_xlabel("tokens a round, bonus included (95 % interval; line: all)")
    return figure


def token_classes(found: Sequence[ClassAcceptance], title: str) -> Figure:
    """What ends rounds, and how often such tokens are drafted right at the first step."""
    look = (
        "Look for kinds whose share of the rejections exceeds their share of all tokens. Bars on the right: 95 %"
        f" intervals over samples; {sum(c.first_step.count for c in found):,} starts."
    )
    figure, (left, right) = figure_of(0.32 * len(found) + 1.4, 2, title, look, sharey=True)
    rows = np.arange(len(found))
    left.barh(rows - 0.2, [c.ended for c in found], 0.4, color=NEUTRAL, label="of rejections")
    left.barh(rows + 0.2, [c.share for c in found], 0.4, color=FAINT, hatch="//", label="of all tokens")
    left.set_yticks(rows, [c.name for c in found])
    left.invert_yaxis()
    left.set_xlabel("share")
    left.legend(frameon=False, loc="lower right")
    values = [c.first_step for c in found]
    right.hlines(rows, [v.low for v in values], [v.high for v in values], color=NEUTRAL)
    right.plot([v.value for v in values], rows, "o", color=STYLES["trained"][0])
    right.set_xlim(0, 1)
    right.set_xlabel("drafted right at step 0, all starts")
    return figure


def over_training(found: Sequence[Contender], title: str) -> Figure:
    """Acceptance length over training, the best checkpoint marked; the loss, where known, on its own axis."""
    run = sorted((c for c in found if c.step is not None), key=lambda c: c.step)
    look = (
        "Look whether the star stands at the last step: if not, training went on past the best draft. Shaded: 95 %"
        " intervals over samples."
    )
    figure, (axes,) = figure_of(3.4, title=title, look=look)
    steps, colour = [c.step for c in run], STYLES["trained"][0]
    axes.plot(steps, [c.length.value for c in run], "o-", color=colour, label="acceptance length")
    axes.fill_between(steps, [c.length.low for c in run], [c.length.high for c in run], color=colour, alpha=0.18, lw=0)
    best = [c for c in run if c.best]
    axes.plot([c.step for c in best], [c.length.value for c in best], BEST[1], color=BEST[0], ms=16, label="best")
    axes.set_xlabel("training step")
    axes.set_ylabel("tokens a round, bonus included")
    axes.legend(frameon=False)
    if any(c.loss is not None for c in run):
        losses = axes.twinx()
        losses.plot(steps, [np.nan if c.loss is None else c.loss for c in run], "s--", color=NEUTRAL, ms=4)
        losses.set_ylabel("loss (squares)", color=NEUTRAL)
    return figure


def what_a_draft_token_buys(found: Sequence[Budget], title: str) -> Figure:
    """Tokens a round against verified nodes a round for every K, and the oracle that knows each round's best K."""
    *fixed, oracle = found
    look = (
        "Look where the curve goes flat: from there on each further draft token is verified for nothing. The star is"
        " the most that an adaptive draft length could win."
    )
    figure, (axes,) = figure_of(3.4, title=title, look=look)
    colour, marker, line = STYLES["trained"]
    axes.plot([b.nodes for b in fixed], [b.length.value for b in fixed], marker=marker, ls=line, color=colour)
    for b in fixed:
        axes.annotate(b.name, (b.nodes, b.length.value), xytext=(4, -12), textcoords="offset points", fontsize="small")
    axes.plot(oracle.nodes, oracle.length.value, BEST[1], color=BEST[0], ms=14, label=oracle.name, clip_on=False)
    axes.set_xlabel("verified nodes a round, root included")
    axes.set_ylabel("tokens a round, bonus included")
    axes.set_ylim(1)
    axes.legend(frameon=False, loc="lower right")
    return figure
