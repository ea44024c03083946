"""A ladder of repairs as one screen."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eagle3lib.boundaries import boundary_name
from eagle3lib.repair import Ladder


def show(ladder: Ladder, console: Console) -> None:
    """The ladder as a table, the refit's numbers, and the conclusion."""
    rows = ladder.table()
    rates = [name for name in rows.columns if name.startswith("c_")]
    table = Table(
        box=None,
        pad_edge=False,
        title=f"Acceptance length along the walk, K = {ladder.steps}, chain, greedy, bonus included; gain over the rung"
        " below; share of the loss that came back; conditional rates; what the worst quarter of the prompts loses",
        title_justify="left",
    )
    for heading in ("rung", "length", "gain", "back", *rates, "worst", ""):
        table.add_column(heading, no_wrap=True)
    for row in rows.to_dict("records"):
        table.add_row(
            row["rung"],
            _interval(row, "length", "low", "high"),
            _interval(row, "gain", "gain low", "gain high"),
            f"{row['recovered']:.0%}" if row["rung"] not in ("served", "true wiring") else "",
            *(f"{row[name]:.2f}" for name in rates),
            f"{row['worst quarter loses']:.2f}",
            "suffices" if row["offered"] and row["suffices"] else "offered" if row["offered"] else "",
        )
    console.print(table)
    for slot, value in ladder.zeroed.items():
        console.print(
            f"{boundary_name(ladder.trained.slots[slot])} is not served; its slot is worth {value} tokens a round,"
            f" the margin is {ladder.margin:g}."
        )
    if fit := ladder.fit:
        console.print(
            f"Refit: {fit.tokens:,} tokens for {fit.inputs:,} inputs ({fit.tokens_per_input:.1f} each), {fit.bounded}"
            f" rows bounded, penalty {fit.penalty:g}, condition {fit.condition:.0f}, residual {fit.residual:.4f}, scale"
            f" ratio {fit.scale_ratio:.3f}."
        )
    if ladder.tuned:
        nats = ", ".join(f"{value:.3f}" for value in ladder.tuned.nats)
        console.print(f"Tuning, nats a token on the prompts to choose on, pass by pass: {nats}.")
    console.print(escape(ladder.sentence))


def _interval(row: dict, value: str, low: str, high: str) -> str:
    if row[value] != row[value]:
        return ""
    return escape(f"{row[value]:.3f} [{row[low]:.3f}, {row[high]:.3f}]")
