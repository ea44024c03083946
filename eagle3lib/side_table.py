"""A table beside a dump: a row a sample, whose columns name slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from eagle3lib.boundaries import Wiring
from eagle3lib.errors import InputError
from eagle3lib.hidden_text import hide_labels
from eagle3lib.investigation import Investigation
from eagle3lib.rollout import Rollout
from eagle3lib.rounds import Chances
from eagle3lib.sample import Sample
from eagle3lib.slices import Labels, by_column, by_prompt_length, by_turn

READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": pd.read_csv,
    ".jsonl": lambda file: pd.read_json(file, lines=True),
    ".parquet": pd.read_parquet,
}
#: The column by which samples are found; without it rows stand in the samples' order.
KEY = "sample"
#: A column of more different values than this names samples, not slices.
MOST_VALUES = 40


def read_side_table(file: Path) -> pd.DataFrame:
    """The table as it stands.

    Raises:
        InputError: if the file is of another kind, or cannot be read as what its name says.
    """
    if file.suffix not in READERS:
        raise InputError(f"Expected a side table that ends in {', '.join(READERS)}, found {file}.")
    try:
        return READERS[file.suffix](file)
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"The side table {file} cannot be read ({error}); write it as its name says.") from None


def slice_columns(table: pd.DataFrame) -> list[str]:
    """The columns that name slices: all but the key, of no more than `MOST_VALUES` different values."""
    # By their texts, since a cell of JSON lines may be a list, which cannot be counted as it stands.
    values = {str(column): table[column].astype(str).nunique() for column in table if column != KEY}
    return [column for column, n in values.items() if 1 < n <= MOST_VALUES]


def slice_labels(
    inv: Investigation,
    rollouts: Sequence[Rollout | Chances],
    samples: Sequence[Sample],
    wiring: Wiring,
    hide_text: bool = False,
) -> dict[str, Labels]:
    """By name of the slicing: turns, prompt lengths, and every column of the dumps' side tables.

    Args:
        hide_text: number the side tables' values, which may be users' texts.

    Raises:
        InputError: as `read_side_table` and `slices.by_column`.
    """
    built_in: dict[str, Labels] = {"turn": by_turn(rollouts), "prompt length": by_prompt_length(samples)}
    labels: dict[str, Labels] = {}
    for section in inv.sections(wiring.slots):
        if section.side_table:
            table = read_side_table(section.side_table)
            own = [r for r in rollouts if r.sample.startswith(f"{section.name}/")]
            for column in slice_columns(table):
                name = f"{column} (side table)" if column in built_in else column
                labels[name] = {**labels.get(name, {}), **by_column(own, table, column)}
    if hide_text:
        labels = {name: hide_labels(found) for name, found in labels.items()}
    return built_in | labels
