"""The committed record of repairs: its tables and curves, and the promise that it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundled import CASE

from eagle3lib import plots
from eagle3lib.errors import InputError
from eagle3lib.repair_record import read_record, recorded_table, recovery_curves

RECORD = CASE.parent / "repair.json"


def test_at_least_95_percent_of_the_lost_length_comes_back() -> None:
    """On held-out prompts, served on [3, 16, 28] and on [2, 15, 27], as recorded with command and date."""
    record = read_record(RECORD)
    assert record["command"].startswith("python benchmarks/repair.py")
    table = recorded_table(record)
    for served in ("[3, 16, 28]", "[2, 15, 27]"):
        assert table[table["served"] == served]["recovered"].max() >= 0.95, served


def test_a_curve_holds_every_refit_in_order_of_tokens() -> None:
    record = read_record(RECORD)
    curves = recovery_curves(record)
    refits = [row for row in record["rows"] if row["rung"] == "refit"]
    assert sum(map(len, curves.values())) == len(refits) > 0
    for by_tokens in curves.values():
        assert list(by_tokens) == sorted(by_tokens)
    (axes,) = plots.recovery(curves, "a title").axes
    assert {text.get_text() for text in axes.get_legend().get_texts()} == set(curves)


def test_a_table_has_one_row_a_wiring_and_rung() -> None:
    table = recorded_table(read_record(RECORD))
    assert not table.duplicated(["served", "rung"]).any()


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(InputError, match="list of rows"):
        read_record(tmp_path / "empty.json")
