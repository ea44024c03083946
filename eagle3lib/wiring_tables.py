"""Scores of wirings as tables, for figures and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.scorer import Scorer
from eagle3lib.scores import Ranking, Score, Slots


def ranking_table(ranking: Ranking, roles: Mapping[Slots, str], rows: int | None = None) -> pd.DataFrame:
    """One row a wiring, best first, its excess over the best paired by sample.

    Args:
        roles: what a wiring is known as, such as "trained" or "served".
        rows: at most this many rows, wirings with a role kept beyond that.
    """
    table = []
    for place, score in enumerate(ranking.scores):
        role = roles.get(score.slots, "")
        if rows is not None and place >= rows and not role:
            continue
        table.append({"place": place + 1, **_row(score, ranking.best, role)})
    return pd.DataFrame(table)


def _row(score: Score, best: Score, role: str) -> dict:
    excess, accuracy = score.excess(best), score.accuracy
    return {
        "label": f"{Wiring(score.slots)}{f'  {role}' if role else ''}",
        "role": role,
        "cross_entropy": score.cross_entropy.value,
        "excess": excess.value,
        "low": excess.low,
        "high": excess.high,
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "tie": score is best or not excess.excludes_zero,
    }


def each_boundary_in_each_slot(scorer: Scorer, around: Slots, boundaries: Sequence[Boundary]) -> pd.DataFrame:
    """Excess cross-entropy [slots, boundaries] over the wiring `around`, one slot changed at a time."""
    reference = scorer.score(around).cross_entropy_value
    table = {}
    for boundary in boundaries:
        column = []
        for slot in range(len(around)):
            changed = (*around[:slot], boundary, *around[slot + 1 :])
            column.append(scorer.score(changed).cross_entropy_value - reference)
        table[boundary] = column
    return pd.DataFrame(table, index=[f"slot {i + 1} (best: B({b}))" for i, b in enumerate(around)])
