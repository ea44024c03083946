"""Acceptance length by slice: dataset, category, turn, prompt length, or any column of a side table.

A slice is a set of turns. Its interval is by bootstrap over samples like every other, and so is the difference
from all other turns; a slice that says too little is named as such instead of ranked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from eagle3lib.acceptance import mean_length
from eagle3lib.bootstrap import Estimate, estimate
from eagle3lib.errors import InputError
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Chances, chances, expected_rounds, walk
from eagle3lib.sample import Sample

#: The categories of SPEED-Bench's qualitative split, 80 prompts each: suggested labels for a side table's `category`,
#: so that numbers compare with published ones. (arXiv 2604.09557; ai-dynamo/aiperf, docs/tutorials/speed-bench.md)
SPEED_BENCH = (
    "coding", "humanities", "math", "multilingual", "qa", "rag", "reasoning", "roleplay", "stem", "summarization",
    "writing",
)  # fmt: skip
#: Fewer rounds than this say nothing of a slice.
FEW_ROUNDS = 30

#: The label of each turn, by sample name and number of the turn.
Labels = Mapping[tuple[str, int], str]


@dataclass(frozen=True)
class Slice:
    """One slice along the walk, bonus included, each turn's last round left out.

    Attributes:
        apart: its length less that of all other turns.
        degenerate: why it says too little, "" where it does not.
    """

    name: str
    length: Estimate
    apart: Estimate
    samples: int
    degenerate: str


def slices(rollouts: Sequence[Rollout | Chances], labels: Labels, steps: int) -> list[Slice]:
    """Every label's acceptance length, from the lowest; degenerate slices last.

    Raises:
        ValueError: if a rollout has fewer steps.
    """
    histograms = [_by_turn(rollout, steps) for rollout in rollouts]
    names = sorted({str(label) for label in labels.values()})
    found = [_slice(name, rollouts, histograms, labels, steps) for name in names]
    return sorted(found, key=lambda s: (bool(s.degenerate), s.length.value))


def by_turn(rollouts: Sequence[Rollout | Chances]) -> Labels:
    """Labels "turn 1", "turn 2", ... of a conversation."""
    return {(r.sample, turn): f"turn {turn + 1}" for r in rollouts for turn in r.turns.unique().tolist()}


def by_prompt_length(samples: Sequence[Sample], edges: Sequence[int] = (128, 512, 2048, 8192, 32768)) -> Labels:
    """Labels of how many tokens stood before the turn."""
    limits = [0, *edges]
    names = [f"{low:>6} to {high - 1} tokens" for low, high in zip(limits, edges, strict=False)]
    names.append(f"{limits[-1]:>6} tokens and more")
    return {
        (sample.name, i): names[int(np.searchsorted(edges, turn.begin, side="right"))].strip()
        for sample in samples
        for i, turn in enumerate(sample.turns)
    }


def by_column(rollouts: Sequence[Rollout | Chances], table: pd.DataFrame, column: str, key: str = "sample") -> Labels:
    """Labels from a side table, a row a sample, found by the samples' names
    (with or without their dump's before them) or, without a key column, in order.

    Raises:
        InputError: if the column is missing, a sample has no row or two, or a table without a key column has
            another number of rows.
    """
    if column not in table:
        raise InputError(f"The side table has no column {column!r}; it has {', '.join(map(str, table.columns))}.")
    names = [r.sample.split("/", 1)[-1] for r in rollouts]  # without the dump's
    if key in table:
        keys = table[key].astype(str)
        if keys.duplicated().any():
            twice = keys[keys.duplicated()].iloc[0]
            raise InputError(f"The side table names the sample {twice!r} twice in its column {key!r}.")
        found = dict(zip(keys, table[column], strict=True))
        if missing := [name for name in names if name not in found]:
            raise InputError(
                f"The side table has no row for {len(missing)} of {len(names)} samples, the first {missing[0]!r};"
                f" its column {key!r} must hold the samples' names."
            )
        values = [found[name] for name in names]
    elif len(table) != len(rollouts):
        raise InputError(
            f"The side table has {len(table)} rows for {len(rollouts)} samples and no column {key!r} that names them."
        )
    else:
        values = table[column].tolist()
    return {
        (r.sample, turn): "(empty)" if pd.api.types.is_scalar(value) and pd.isna(value) else str(value)
        for r, value in zip(rollouts, values, strict=True)
        for turn in r.turns.unique().tolist()
    }


def slice_rows(found: Sequence[Slice]) -> list[dict]:
    """One row a slice, for a table."""
    return [
        {
            "slice": s.name,
            "length": s.length.value,
            "low": s.length.low,
            "high": s.length.high,
            "against the rest": s.apart.value,
            "told apart": s.apart.excludes_zero and not s.degenerate,
            "rounds": s.length.count,
            "samples": s.samples,
            "degenerate": s.degenerate,
        }
        for s in found
    ]


def _by_turn(rollout: Rollout | Chances, steps: int) -> dict[int, np.ndarray]:
    """[K + 1] rounds by accepted drafts of each turn, last ones left out."""
    found = chances(rollout).limited(steps)
    turns = found.turns.unique().tolist()
    histograms = {turn: np.zeros(steps + 1) for turn in turns}
    if found.settled:
        for item in walk(found, steps):
            histograms[item.turn][item.accepted] += not item.last
        return histograms
    for turn in turns:
        rows = found.turns == turn
        part = Chances(found.sample, found.starts[rows], found.turns[rows], found.chance[rows], found.valid[rows])
        histograms[turn] = expected_rounds(part, steps).histogram[0]
    return histograms


def _slice(
    name: str,
    rollouts: Sequence[Rollout | Chances],
    histograms: Sequence[dict[int, np.ndarray]],
    labels: Labels,
    steps: int,
) -> Slice:
    sums = np.zeros((len(rollouts), 2, steps + 1))
    for i, (rollout, turns) in enumerate(zip(rollouts, histograms, strict=True)):
        for turn, histogram in turns.items():
            sums[i, int(str(labels.get((rollout.sample, turn))) != name)] += histogram
    inside = sums[:, 0].sum(1) > 0
    own, total = sums[inside, 0], sums[:, 0].sum(0)
    length = estimate(own, mean_length, total.sum())
    apart = estimate(
        sums.reshape(len(sums), -1),
        lambda s: mean_length(s[..., : steps + 1]) - mean_length(s[..., steps + 1 :]),
        total.sum(),
    )
    samples = int(inside.sum())
    return Slice(name, length, apart, samples, _degenerate(total, samples))


def _degenerate(total: np.ndarray, samples: int) -> str:
    if total.sum() < FEW_ROUNDS:
        return f"{total.sum():.0f} rounds, fewer than {FEW_ROUNDS}"
    if samples < 2:
        return "one sample, so nothing is known of how samples differ"
    if (total > 0).sum() == 1:
        return f"every round has {int(total.argmax()) + 1} tokens"
    return ""
