"""The committed record of repairs: its tables and curves, and the promise that it keeps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from bundled import CASE

from eagle3lib import plots
from eagle3lib.errors import InputError
from eagle3lib.repair_record import kinds_table, lost_on_others, read_record, recorded_table, recovery_curves

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


def test_what_a_fit_on_one_kind_of_prompt_loses_on_the_other() -> None:
    """As recorded: most of the loss comes back on the other kind too, less than from a fit on both."""
    record = read_record(RECORD)
    assert record["by_kind"]["command"] == "python benchmarks/repair.py --by-kind"
    table = kinds_table(record).set_index("fitted")
    assert set(table.index) == {"make", "answer", "both"}
    for fitted, other in (("make", "answer"), ("answer", "make")):
        column = f"back on {other}"
        assert 0.8 < table.loc[fitted, column] < table.loc["both", column]
        assert table.loc[fitted, f"{column}, low"] < table.loc[fitted, column] < table.loc[fitted, f"{column}, high"]
    others = (("make", "back on answer"), ("answer", "back on make"))
    gaps = [table.loc["both", column] - table.loc[fitted, column] for fitted, column in others]
    assert lost_on_others(record) == pytest.approx(max(gaps))
    assert kinds_table({"rows": []}).empty and math.isnan(lost_on_others({"rows": []}))


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(InputError, match="list of rows"):
        read_record(tmp_path / "empty.json")
