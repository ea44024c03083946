"""What repairs bring back on the bundled draft, by what is served and by the number of tokens fitted.

    python data/smollm2/prepare.py repair           once: states captured again from the committed tokens
    python benchmarks/repair.py                     all of it, into data/smollm2/repair.json
    python benchmarks/repair.py --tokens 5000       some of it; other rows of the file stay

Fitted on training prompts, the penalty chosen on eight other training prompts, judged on all held-out ones along the
walk: chain, greedy, bonus included. Tuning starts from the refit on most tokens.
"""

from __future__ import annotations

import shlex
import sys
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eagle3lib import load_case
from eagle3lib.boundaries import Wiring
from eagle3lib.investigation import Investigation
from eagle3lib.material import Material
from eagle3lib.repair import Ladder, climb
from eagle3lib.results import write_json
from eagle3lib.tensors import read_json

DATA = Path(__file__).parent.parent / "data" / "smollm2"
BOUNDARIES = (0, 2, 3, 15, 16, 27, 28, 30)
SERVED = ((3, 16, 28), (2, 15, 27), (15, 27, 28), (30, 30, 30))
TOKENS = (800, 1500, 2500, 3500, 5000, 20000)
VALIDATION, STEPS = 8, 4


def rows_of(ladder: Ladder, asked: int) -> list[dict]:
    """One row a rung, with the number of tokens that it used."""
    found = []
    for rung in ladder.rungs:
        fitted = rung.name in ("refit", "tune")
        row = {"served": list(ladder.served.slots), "rung": rung.name, "tokens": asked if fitted else 0}
        row |= {"length": rung.found.walk.length.to_json(), "lost": rung.lost.to_json()}
        row |= {"gain": rung.gain.to_json() if rung.gain else None, "recovered": rung.recovered.to_json()}
        row |= {"conditional": [c.value for c in rung.found.walk.conditional], "worst_quarter_loses": rung.worst}
        row |= {"offered": rung.offered, "fit": ladder.fit.to_json() if rung.name == "refit" else None}
        found.append(row)
    return found


def main(
    tokens: Annotated[list[int] | None, typer.Option(help="Tokens to fit, several times.")] = None,
    served: Annotated[list[str] | None, typer.Option(help="Boundaries served, as 3,16,28; several times.")] = None,
    tune_at: Annotated[int, typer.Option(help="Tune after the refit on so many tokens; 0 for never.")] = TOKENS[-1],
    out: Annotated[Path, typer.Option(help="The record.")] = DATA / "repair.json",
) -> None:
    """Climb the ladder for each served wiring and number of tokens."""
    console = Console(highlight=False, soft_wrap=True)
    inv = Investigation(load_case(DATA / "repair.toml"))
    by_name = {section.name: Material.of(list(inv.open(section, BOUNDARIES))) for section in inv.case.dumps}
    train, judged = by_name["train"], by_name["held_out"]
    validation = train.chosen(range(VALIDATION))
    rest = train.chosen(range(VALIDATION, len(train.served)))
    wirings = [tuple(int(b) for b in text.split(",")) for text in served] if served else SERVED
    record = read_json(out) if out.exists() else {"rows": []}
    for slots in wirings:
        for n in tokens or TOKENS:
            if rest.tokens < n:
                console.print(f"{n:,} tokens were asked for and {rest.tokens:,} are captured; left out.")
                continue
            sets = (rest.up_to(n), validation, judged)
            target = inv.target if n == tune_at else None
            ladder = climb(inv.draft, inv.trained.wiring, Wiring(slots), sets, target, steps=STEPS, every_rung=True)
            new = rows_of(ladder, n)
            kept = [row for row in record["rows"] if _key(row) not in {_key(other) for other in new}]
            record = {
                "command": shlex.join(["python", "benchmarks/repair.py", *sys.argv[1:]]),
                "date": date.today().isoformat(),
                "trained": list(inv.trained.wiring.slots),
                "steps": STEPS,
                "judged": {"prompts": len(judged.served), "tokens": judged.tokens},
                "validation": {"prompts": len(validation.served), "tokens": validation.tokens},
                "true_length": ladder.true.walk.length.to_json(),
                "true_conditional": [c.value for c in ladder.true.walk.conditional],
                "rows": sorted([*kept, *new], key=_key),
            }
            write_json(out, record)
            for row in new:
                console.print(f"{slots} {row['rung']:7} {row['tokens']:6} {row['length']['value']:.3f}"
                              f" back {row['recovered']['value']:.1%}")  # fmt: skip


def _key(row: dict) -> tuple:
    return tuple(row["served"]), row["rung"], row["tokens"]


if __name__ == "__main__":
    typer.run(main)
