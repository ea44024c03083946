"""What every system would print of the same run, each by its own arithmetic (`ecosystems`), side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3lib.ecosystems import METRICS
from eagle3lib.ecosystems._metrics import Run, Value
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Round, walk


@dataclass(frozen=True)
class Printed:
    """One number of one system, for a page: see `ecosystems._metrics.Metric` for the fields."""

    system: str
    name: str
    value: Value
    over: str
    bonus: str
    definition: str


def printed(rollouts: Sequence[Rollout], steps: int) -> list[Printed]:
    """Every system's numbers of a replayed greedy or one-hot run of K = `steps`.

    Every turn of a conversation is a request of its own, as a server sees it.

    Raises:
        ValueError: if a rollout has fewer steps.
    """
    run = counts(rollouts, steps)
    bonus = {True: "included", False: "left out", None: "–"}
    return [Printed(m.system, m.name, m.formula(run), m.over, bonus[m.bonus], m.definition) for m in METRICS]


def counts(rollouts: Sequence[Rollout], steps: int) -> Run:
    """The counts behind them.

    Raises:
        ValueError: if a rollout has fewer steps.
    """
    requests = [request for rollout in rollouts for request in _by_turn(walk(rollout, steps))]
    hits = np.stack([r.hit[:, :steps].numpy().sum(0) for r in rollouts]).sum(0)
    prefix = np.stack([r.hit[:, :steps].int().cumprod(1).sum(0).numpy() for r in rollouts]).sum(0)
    starts = np.stack([r.valid[:, :steps].numpy().sum(0) for r in rollouts]).sum(0)
    return Run(
        steps,
        accepted=tuple(np.array([item.accepted for item in rounds]) for rounds in requests),
        committed=tuple(np.array([item.committed for item in rounds]) for rounds in requests),
        # A rejected draft was held against a token as well; where the turn ended or K was reached none was.
        checked=tuple(np.array([_checked(item, steps) for item in rounds]) for rounds in requests),
        prefix_hits=prefix,
        hits=hits,
        starts=starts,
    )


def _checked(item: Round, steps: int) -> int:
    return item.accepted if item.cut else min(item.accepted + 1, steps)


def _by_turn(rounds: list[Round]) -> list[list[Round]]:
    """The walk's rounds, turn by turn."""
    turns: dict[int, list[Round]] = {}
    for item in rounds:
        turns.setdefault(item.turn, []).append(item)
    return list(turns.values())
