"""Figures of what a round costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from eagle3lib.batches import AtBatch
from eagle3lib.bootstrap import Estimate
from eagle3lib.plans import OFF, Plan, plan_at
from eagle3lib.plots._style import BEST, FAINT, NEUTRAL, SERIES, STYLES, figure_of, with_intervals
from eagle3lib.speeds import Speed, break_even, quotient
from eagle3lib.throughput import CostModel

#: Drafting and the rest of a round; not the colours of the wirings.
PARTS = (("drafting", NEUTRAL, "//"), ("verification and overhead", FAINT, ""), ("whole round", FAINT, ""))


def rounds(speeds: Sequence[Speed], model: CostModel, title: str) -> Figure:
    """Measured rounds by verified nodes, split where a profile splits them; the line between; a token's time."""
    shown = [s for s in speeds if s.steps != 0 and s.nodes is not None and s.batch == model.batch]
    look = (
        "Look at how much of a bar grows with its nodes: what is left at one node is paid whatever is drafted."
        " The dashed line is a token without a draft, with its interval; whiskers are intervals of the round."
    )
    figure, (axes,) = figure_of(3.4, title=title, look=look)
    x = np.array([s.nodes for s in shown])
    split = all(s.draft_ms is not None for s in shown)
    bottom = np.zeros(len(shown))
    width = 0.6
    for name, colour, hatch in PARTS[1::-1] if split else PARTS[2:]:
        ms = np.array([s.round_ms.value if not split else _part(s, name) for s in shown])
        axes.bar(x, ms, width, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", label=name)
        bottom += ms
    off = np.array([[s.round_ms.value - s.round_ms.low, s.round_ms.high - s.round_ms.value] for s in shown]).T
    axes.errorbar(x, bottom, yerr=off, fmt="none", ecolor="black", capsize=3)
    along = range(1, max(x) + 1)
    line = [model.rounds.at(n) for n in along]
    if None not in line:
        axes.plot(list(along), [e.value for e in line], "k:", lw=1.2, label="fitted")
    if model.token_ms is not None:
        _level(axes, model.token_ms, f"a token without a draft, {model.token_ms.value:.1f} ms")
    axes.set_xlabel("verified nodes a round, root included")
    axes.set_ylabel("milliseconds a round")
    axes.set_ylim(0)
    axes.legend(frameon=False, fontsize="small")
    return figure


def earned(by_wiring: Mapping[str, Sequence[Plan]], token_ms: Estimate, title: str) -> Figure:
    """Acceptance length of chains beside what each has to yield."""
    look = "Look at where a curve lies above the break-even: only those draft lengths pay. Shades are 95 % intervals."
    figure, (axes,) = figure_of(3.4, title=title, look=look)
    for name, found in by_wiring.items():
        chains = [p for p in found if p.shape.topk == 1 and p.shape.steps]
        with_intervals(axes, [p.shape.steps for p in chains], [p.length for p in chains], *STYLES[name], name)
    needed = [break_even(p.round_ms, token_ms) for p in chains]
    with_intervals(axes, [p.shape.steps for p in chains], needed, *BEST, ":", "break-even")
    axes.set_xlabel("draft length K (chain)")
    axes.set_ylabel("tokens a round, bonus included")
    axes.set_ylim(1)
    axes.legend(frameon=False)
    return figure


def speeds_by_shape(by_wiring: Mapping[str, Sequence[Plan]], title: str) -> Figure:
    """Expected tokens a second of chains by draft length, and without a draft."""
    look = (
        "Look at which draft lengths lie above the dashed line, the speed without a draft. Shades are 95 % intervals."
    )
    figure, (axes,) = figure_of(3.4, title=title, look=look)
    off = None
    for name, found in by_wiring.items():
        chains = [p for p in found if p.shape.topk == 1 and p.shape.steps]
        with_intervals(axes, [p.shape.steps for p in chains], [p.speed for p in chains], *STYLES[name], name)
        off = plan_at(found, OFF) or off
    if off is not None:
        _level(axes, off.speed, f"speculation off, {off.speed.value:.1f}")
    axes.set_xlabel("draft length K (chain)")
    axes.set_ylabel("tokens a second")
    axes.set_ylim(0)
    axes.legend(frameon=False)
    return figure


def over_batches(found: Sequence[AtBatch], title: str) -> Figure:
    """What the fastest plan gains over serving without a draft, by batch size."""
    look = "Look at where the curves fall to 1: from there on speculation gains nothing. Shades are 95 % intervals."
    figure, (axes,) = figure_of(3.0, title=title, look=look)
    with_intervals(axes, [a.batch for a in found], [a.ratio for a in found], *SERIES[0], "fastest")
    fixed = [a for a in found if a.chain is not None]
    if fixed:
        ratios = [quotient(a.chain.speed, a.off.speed) for a in fixed]
        with_intervals(axes, [a.batch for a in fixed], ratios, *SERIES[1], fixed[0].chain.shape.label)
    axes.axhline(1, color=NEUTRAL, ls=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks([a.batch for a in found], [str(a.batch) for a in found])
    axes.set_xlabel("sequences served at once")
    axes.set_ylabel("times the speed without a draft")
    axes.legend(frameon=False)
    return figure


def widenings(by_target: Mapping[str, Mapping[int, float]], title: str) -> Figure:
    """How many decoding steps a verification costs, by its nodes, one line a target."""
    look = "Look at how far the sparse target lies above the dense one: its wider verification reads more experts."
    figure, (axes,) = figure_of(3.0, title=title, look=look)
    for (name, by_nodes), (colour, marker, line) in zip(by_target.items(), SERIES, strict=False):
        axes.plot(list(by_nodes), list(by_nodes.values()), marker=marker, ls=line, color=colour, label=name)
    axes.set_xlabel("verified nodes a round, root included")
    axes.set_ylabel("decoding steps")
    axes.set_ylim(0)
    axes.legend(frameon=False)
    return figure


def _level(axes, level: Estimate, label: str) -> None:
    """A dashed line with its interval, to compare with."""
    axes.axhline(level.value, color=NEUTRAL, ls="--", label=label)
    axes.axhspan(level.low, level.high, color=NEUTRAL, alpha=0.15, lw=0)


def _part(s: Speed, name: str) -> float:
    return s.draft_ms.value if name == "drafting" else s.round_ms.value - s.draft_ms.value
