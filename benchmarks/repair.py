"""What repairs bring back on the bundled draft, by what is served and by the number of tokens fitted.

    python data/smollm2/prepare.py repair           once: states captured again from the committed tokens
    python benchmarks/repair.py                     all of it, into data/smollm2/repair.json
    python benchmarks/repair.py --tokens 5000       some of it; other rows of the file stay
    python benchmarks/repair.py --by-kind           fitted on one kind of prompt alone, judged on each kind

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
from eagle3lib.acceptance import Acceptance, acceptance
from eagle3lib.boundaries import Wiring
from eagle3lib.investigation import Investigation
from eagle3lib.material import Material
from eagle3lib.refit import Fit, refit
from eagle3lib.results import write_json
from eagle3lib.rewire import move_columns
from eagle3lib.rungs import Judge, Rung
from eagle3lib.sample import Sample
from eagle3lib.tensors import read_json
from eagle3lib.tune import tune

DATA = Path(__file__).parent.parent / "data" / "smollm2"
BOUNDARIES = (0, 2, 3, 15, 16, 27, 28, 30)
SERVED = ((3, 16, 28), (2, 15, 27), (15, 27, 28), (30, 30, 30))
TOKENS = (800, 1500, 2500, 3500, 5000, 20000)
VALIDATION, STEPS = 8, 4
#: A prompt is of the kind "make" where the request begins with one of these words, else of the kind "answer": 24 of
#: the 44 kinds of training request are of the first. Each fit of one kind takes so many tokens, served so.
MAKE = ("Write", "Create", "Make")
KIND_TOKENS, KIND_SERVED = 5000, (2, 15, 27)


def main(
    tokens: Annotated[list[int] | None, typer.Option(help="Tokens to fit, several times.")] = None,
    served: Annotated[list[str] | None, typer.Option(help="Boundaries served, as 3,16,28; several times.")] = None,
    tune_at: Annotated[int, typer.Option(help="Tune after the refit on so many tokens; 0 for never.")] = TOKENS[-1],
    kinds: Annotated[bool, typer.Option("--by-kind", help="Fits of one kind of prompt instead.")] = False,
    out: Annotated[Path, typer.Option(help="The record.")] = DATA / "repair.json",
) -> None:
    """Climb the ladder for each served wiring and number of tokens."""
    console = Console(highlight=False, soft_wrap=True)
    inv = Investigation(load_case(DATA / "repair.toml"))
    by_name = {section.name: Material.of(list(inv.open(section, BOUNDARIES))) for section in inv.case.dumps}
    train, judged = by_name["train"], by_name["held_out"]
    if kinds:
        by_kind(inv, train, out, console)
        return
    validation = train.chosen(range(VALIDATION))
    rest = train.chosen(range(VALIDATION, len(train.served)))
    trained = inv.trained.wiring
    record = Record(out, judged, validation, trained)
    for slots in [tuple(int(b) for b in text.split(",")) for text in served] if served else SERVED:
        wiring = Wiring(slots)
        judge = Judge(inv.draft, trained, wiring, judged, STEPS)
        rungs = [judge.rung("served", inv.draft)]
        if (rewired := move_columns(inv.draft, trained, wiring)).moved:
            rungs.append(judge.rung("rewire", rewired.draft, rungs[0]))
        below = rungs[-1]
        for n in tokens or TOKENS:
            if rest.tokens < n:
                console.print(f"{n:,} tokens were asked for and {rest.tokens:,} are captured; left out.")
                continue
            fit = refit(inv.draft, trained, wiring, rest.up_to(n), validation)
            rungs.append(judge.rung("refit", fit.draft, below))
            record.keep(slots, rungs, n, fit)
            if n == tune_at:
                tuned = tune(fit.draft, wiring, inv.target, rest.up_to(n), validation)
                rungs = [judge.rung("tune", tuned.draft, rungs[-1])]
                record.keep(slots, rungs, n)
            record.write(acceptance(judge.true, STEPS))
            for rung in rungs:
                back = rung.recovered
                console.print(f"{slots} {rung.name:7} {n:6} {rung.found.walk.length} back {back}")
            rungs = []


def kind_of(inv: Investigation, sample: Sample) -> str:
    """By the first word of the user's request."""
    prompt = "".join(map(inv.target.text, sample.token_ids[: sample.turns[0].begin].tolist()))
    request = prompt.rsplit("user\n", 1)[1].strip()
    return "make" if request.startswith(MAKE) else "answer"


def by_kind(inv: Investigation, train: Material, out: Path, console: Console) -> None:
    """What a refit on one kind of prompt brings back on that kind and on the other, beside one of as many tokens of
    both. Judged on training prompts that none of the fits saw: the draft knows them, all three wirings alike."""
    told = [kind_of(inv, sample) for sample in train.served]
    places = {kind: [i for i, k in enumerate(told) if k == kind] for kind in ("make", "answer")}
    validation = {kind: train.chosen(own[:VALIDATION]) for kind, own in places.items()}
    fits = {kind: train.chosen(own[VALIDATION:]).up_to(KIND_TOKENS) for kind, own in places.items()}
    left = {kind: own[VALIDATION + len(fits[kind].served) :] for kind, own in places.items()}
    half = VALIDATION // 2
    both = [fits[kind].up_to(KIND_TOKENS // 2) for kind in places]
    fits["both"] = Material.of([s for part in both for s in part.served])
    validation["both"] = Material.of([s for part in validation.values() for s in part.served[:half]])
    wiring, trained = Wiring(KIND_SERVED), inv.trained.wiring
    judges = {kind: Judge(inv.draft, trained, wiring, train.chosen(left[kind]), STEPS) for kind in places}
    rows = []
    for fitted, material in fits.items():
        draft = refit(inv.draft, trained, wiring, material, validation[fitted]).draft
        for kind, judge in judges.items():
            broken = judge.rung("served", inv.draft)
            rung = judge.rung("refit", draft, broken)
            rows.append(
                {"fitted": fitted, "tokens": material.tokens, "judged": kind, "prompts": len(judge.judged.served)}
                | {"true": acceptance(judge.true, STEPS).walk.length.value, "length": rung.found.walk.length.to_json()}
                | {"broken": broken.found.walk.length.value, "recovered": rung.recovered.to_json()}
            )
            console.print(f"fitted on {fitted}, judged on {kind}: {rung.found.walk.length} back {rung.recovered}")
    record = read_json(out)
    record["by_kind"] = {
        "command": shlex.join(["python", "benchmarks/repair.py", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "rule": f"make where the request begins with {', '.join(MAKE)}; else answer",
        "served": list(KIND_SERVED),
        "rows": rows,
    }
    write_json(out, record)


class Record:
    """The rows of earlier runs and of this one; a row made again replaces the old one."""

    def __init__(self, file: Path, judged: Material, validation: Material, trained: Wiring) -> None:
        self.file = file
        before = read_json(file) if file.exists() else {}
        self.rows = {_key(row): row for row in before.get("rows", [])}
        self.kinds = {"by_kind": before["by_kind"]} if "by_kind" in before else {}
        self.facts = {
            "command": shlex.join(["python", "benchmarks/repair.py", *sys.argv[1:]]),
            "date": date.today().isoformat(),
            "trained": list(trained.slots),
            "steps": STEPS,
            "judged": {"prompts": len(judged.served), "tokens": judged.tokens},
            "validation": {"prompts": len(validation.served), "tokens": validation.tokens},
        }

    def keep(self, slots: tuple[int, ...], rungs: list[Rung], tokens: int, fit: Fit | None = None) -> None:
        """Rungs of one served wiring; those without data have no tokens."""
        for rung in rungs:
            fitted = rung.name in ("refit", "tune")
            row = {"served": list(slots), "rung": rung.name, "tokens": tokens if fitted else 0, **rung.to_json()}
            row |= {"fit": fit.to_json()} if rung.name == "refit" and fit else {}
            self.rows[_key(row)] = row

    def write(self, true: Acceptance) -> None:
        """The file, sorted."""
        found = {
            "true": {"length": true.walk.length.to_json(), "conditional": [c.value for c in true.walk.conditional]}
        }
        write_json(
            self.file, {**self.facts, **found, **self.kinds, "rows": [self.rows[key] for key in sorted(self.rows)]}
        )


def _key(row: dict) -> tuple:
    return tuple(row["served"]), row["rung"], row["tokens"]


if __name__ == "__main__":
    typer.run(main)
