"""How fast and how small the replay of all starts is: the bundled draft on bundled samples.

    python benchmarks/rollout.py

It is held against a server's loop that drafts from each start with a KV cache, whose prefix is computed once; both
read the same embedding table, and must accept the same drafts. Then its cost against K and against the length,
and its peak memory against the number of samples streamed. Times are medians of interleaved repeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from forward import alone, over_baseline, seconds
from rich.console import Console
from rich.table import Table

from eagle3lib import load_case
from eagle3lib.acceptance import acceptance
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.investigation import Investigation
from eagle3lib.repaired_checkpoint import own_embedding
from eagle3lib.rollout import Rollout, rollout
from eagle3lib.sample import Sample
from eagle3lib.sequential import from_every_start

CASE = Path(__file__).parent.parent / "data" / "smollm2" / "case.toml"
DEPTHS, LENGTHS = (1, 2, 4, 8, 16), (128, 256, 512, 1024, 2048)
STREAMS, STREAM_STEPS = (10, 200), 2


def opened() -> tuple[Investigation, Draft, Wiring]:
    """The bundled case, its draft with the embedding in memory, and the trained wiring."""
    investigation = Investigation(load_case(CASE), "cpu")
    draft = replace(investigation.draft, embedding=own_embedding(investigation.draft))
    return investigation, draft, investigation.trained.wiring


def stream(investigation: Investigation, wiring: Wiring) -> Iterator[Sample]:
    """The bundled samples, read from their files again and again."""
    while True:
        for section in investigation.sections(wiring.slots):
            yield from investigation.open(section, wiring.slots)


def joined(samples: Iterator[Sample], wiring: Wiring, tokens: int) -> Sample:
    """So many pairs of bundled samples end to end, every one of them a start."""
    parts, found = [], 0
    while found <= tokens:
        sample = next(samples)
        n = sample.n_pairs
        parts.append((sample.token_ids[:n], {b: sample.states[b][:n] for b in wiring.slots}))
        found += n
    ids = torch.cat([own for own, _ in parts])[: tokens + 1]
    states = {b: torch.cat([own[b] for _, own in parts])[:tokens] for b in wiring.slots}
    return Sample("joined", ids, torch.ones(tokens + 1, dtype=torch.bool), states)


def same(found: Rollout, drafted: dict[int, list[int]]) -> float:
    """Share of the starts whose drafted tokens agree up to the first miss, where the loop leaves the recording."""
    agree = 0
    for row, t in enumerate(found.starts.tolist()):
        told = min(int(found.hit[row].int().cumprod(0).sum()) + 1, int(found.valid[row].sum()))
        agree += drafted[t][:told] == found.predicted[row, :told].tolist()
    return agree / len(found.starts)


def streamed(n: int, threads: int) -> float:
    """Peak MiB of replaying and averaging n samples, in a process of its own."""
    steps = STREAM_STEPS
    torch.set_num_threads(threads)
    investigation, draft, wiring = opened()
    samples = stream(investigation, wiring)
    rollout(draft, next(samples), wiring, steps)  # touches every weight
    return over_baseline(lambda: acceptance([rollout(draft, s, wiring, steps) for s in islice(samples, n)], steps))[1]


def fitted(x: tuple[int, ...], y: list[float], degree: int) -> tuple[np.ndarray, float]:
    """Coefficients from the constant up, by least squares of relative errors, and the largest relative error."""
    x, y = np.array(x, dtype=float), np.array(y)
    coefficients = np.polynomial.polynomial.polyfit(x, y, degree, w=1 / y)
    return coefficients, float(np.abs(np.polynomial.polynomial.polyval(x, coefficients) / y - 1).max())


def main(
    tokens: int = 512,
    steps: int = 7,
    threads: int = 2,
    repeats: Annotated[int, typer.Option(help="Of every time; the loop takes most of it.")] = 3,
) -> None:
    """Print the tables."""
    console = Console()
    torch.set_num_threads(threads)
    investigation, draft, wiring = opened()

    def sample(n: int) -> Sample:
        return joined(stream(investigation, wiring), wiring, n)

    whole = sample(tokens)
    times = seconds(
        {
            "replay": lambda: rollout(draft, whole, wiring, steps),
            "loop": lambda: list(from_every_start(draft, whole, wiring, steps)),
        },
        repeats,
    )
    agreeing = same(rollout(draft, whole, wiring, steps), dict(from_every_start(draft, whole, wiring, steps)))
    goals = [
        ("replay against the loop", f"{times['loop'] / times['replay']:.1f}×", "≥ 20×"),
        ("starts with equal drafts", f"{agreeing:.2%}", "100 %"),
    ]
    console.print(f"{steps} steps from each of {tokens - 1} starts, {threads} threads, median of {repeats}:")
    console.print(f"replay {times['replay']:.2f} s, loop {times['loop']:.2f} s")

    by_depth = seconds({f"K = {k}": lambda k=k: rollout(draft, whole, wiring, k) for k in DEPTHS}, repeats)
    samples = {n: sample(n) for n in LENGTHS}
    by_length = seconds({f"T = {n}": lambda s=s: rollout(draft, s, wiring, steps) for n, s in samples.items()}, repeats)
    costs = Table("replay", "seconds")
    for name, taken in {**by_depth, **by_length}.items():
        costs.add_row(name, f"{taken:.3f}")
    console.print(costs)
    (a, b), error = fitted(DEPTHS, list(by_depth.values()), 1)
    console.print(f"T = {tokens}: {a:.3f} {b:+.4f} K seconds, within {error:.0%}")
    (a, b, c), error = fitted(LENGTHS, list(by_length.values()), 2)
    console.print(f"K = {steps}: {a:.3f} {b:+.3e} T {c:+.3e} T² seconds, within {error:.0%}")

    few, many = (alone(streamed, n, threads) for n in STREAMS)
    goals.append((f"peak MiB of {STREAMS[1]} samples over that of {STREAMS[0]}", f"{many - few:.0f}", "≤ 16"))
    console.print(f"peak over the loaded draft: {few:.0f} MiB for {STREAMS[0]} samples, {many:.0f} for {STREAMS[1]}")
    aims = Table("", "found", "aim")
    for row in goals:
        aims.add_row(*row)
    console.print(aims)


if __name__ == "__main__":
    typer.run(main)
