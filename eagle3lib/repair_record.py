"""Repairs that were measured before and recorded: rows of `benchmarks/repair.py`, as tables and curves."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Wiring
from eagle3lib.errors import InputError
from eagle3lib.tensors import read_json


def recovery_curves(record: dict) -> dict[str, dict[int, Estimate]]:
    """By served wiring, the share of the lost length that a refit brought back, by tokens fitted."""
    curves: dict[str, dict[int, Estimate]] = {}
    for row in record["rows"]:
        if row["rung"] == "refit":
            name = str(Wiring(tuple(row["served"])))
            curves.setdefault(name, {})[row["tokens"]] = Estimate(**row["recovered"])
    return {name: dict(sorted(by_tokens.items())) for name, by_tokens in curves.items()}


def recorded_table(record: dict) -> pd.DataFrame:
    """One row a served wiring and rung, of each fitted rung the one on most tokens: lengths, and what came back."""
    rows = pd.DataFrame(
        [
            {
                "served": str(Wiring(tuple(row["served"]))),
                "rung": row["rung"],
                "tokens fitted": row["tokens"],
                "length": row["length"]["value"],
                "low": row["length"]["low"],
                "high": row["length"]["high"],
                "recovered": row["recovered"]["value"],
                "recovered low": row["recovered"]["low"],
                "recovered high": row["recovered"]["high"],
            }
            for row in record["rows"]
        ]
    )
    return rows.sort_values("tokens fitted").groupby(["served", "rung"], sort=False).tail(1).sort_values(
        ["served", "tokens fitted", "rung"], kind="stable", ignore_index=True
    )  # fmt: skip


def kinds_table(record: dict) -> pd.DataFrame:
    """Of fits on one kind of prompt: what comes back on each kind, a row a fit. Empty where none was measured."""
    rows = record.get("by_kind", {}).get("rows", [])
    table = pd.DataFrame([{k: r[k] for k in ("fitted", "tokens", "judged")} | r["recovered"] for r in rows])
    if table.empty:
        return table
    wide = table.pivot(index=["fitted", "tokens"], columns="judged", values=["value", "low", "high"]).swaplevel(axis=1)
    kinds = list(dict.fromkeys(table["judged"]))
    flat = {
        f"back on {kind}" + ("" if part == "value" else f", {part}"): wide[kind][part]
        for kind in kinds
        for part in ("value", "low", "high")
    }
    return pd.DataFrame(flat).reset_index()


def lost_on_others(record: dict) -> float:
    """The most that a fit on one kind of prompt brings back less on another kind than a fit on all; as a share of the
    lost length. NaN where none was measured."""
    back = {(r["fitted"], r["judged"]): r["recovered"]["value"] for r in record.get("by_kind", {}).get("rows", [])}
    kinds = {judged for _, judged in back}
    gaps = [back["both", judged] - value for (fitted, judged), value in back.items() if fitted in kinds - {judged}]
    return max(gaps, default=float("nan"))


def read_record(file: Path) -> dict:
    """A record with its rows.

    Raises:
        InputError: if the file is missing or holds no rows.
    """
    record = read_json(file)
    if not isinstance(record.get("rows"), list) or not record["rows"]:
        raise InputError(f"Expected a list of rows in {file}, as benchmarks/repair.py writes it, found none.")
    return record
