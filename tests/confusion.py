"""The confusion table: what was planted, a row each, against what was named first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

#: The column of a plant of which nothing was named.
SILENCE = "nothing"


def confusion_table(plants: Mapping[str, Callable[[], str]]) -> pd.DataFrame:
    """1 where a row's plant led to the column's name.

    Args:
        plants: by the name that each has to be given (`SILENCE` for a healthy one), what investigates it and
            gives the name that comes first.
    """
    named = {planted: investigate() for planted, investigate in plants.items()}
    columns = list(dict.fromkeys([*plants, *named.values()]))
    rows = [[int(found == column) for column in columns] for found in named.values()]
    return pd.DataFrame(rows, index=pd.Index(list(plants), name="planted"), columns=columns)


def off_diagonal(table: pd.DataFrame) -> list[str]:
    """Every plant that was given another name, in words."""
    return [
        f"{planted} was named {row[row == 1].index[0]}" for planted, row in table.iterrows() if row.get(planted) != 1
    ]
