"""A notebook's tables as CSV files beside the report, for whoever wants the numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lib.results import write_text

if TYPE_CHECKING:
    import pandas as pd

LONGEST_NAME = 60
#: A cell that begins so is a formula to a spreadsheet, and texts of a vocabulary or a side table are not ours.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def table_paths(out: Path, name: str) -> list[Path]:
    """The tables that notebook `name` left under `out`, by name."""
    return sorted((out / "tables").glob(f"{name[:2]}_*.csv"))


def table_path(out: Path, name: str, caption: str) -> Path:
    """Where a table of notebook `name` goes: OUT/tables/NN_caption.csv."""
    words = re.sub(r"[^a-z0-9]+", "_", caption.casefold()).strip("_")
    return out / "tables" / f"{name[:2]}_{words[:LONGEST_NAME].strip('_')}.csv"


def write_table(path: Path, df: pd.DataFrame) -> None:
    """Write a table with all of its digits; its index too, unless that is a plain count."""
    import pandas as pd

    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, df.map(_harmless).to_csv(index=not isinstance(df.index, pd.RangeIndex), lineterminator="\n"))


def _harmless(cell: Any) -> Any:
    """Text that a spreadsheet would run, led by an apostrophe, which makes it text there too."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
