"""How much the search for a wiring saves, whether it finds a planted one, and what it holds, in one run.

    python benchmarks/wiring.py                     the bundled dump of every boundary
    python benchmarks/wiring.py --toys 20           the planted wiring of so many toy drafts
    python benchmarks/wiring.py --wide              62 boundaries of width 7168, random: peak memory; writes 2 GB

The search is held against a loop of full forward passes over the candidates that it looked at, some of them passed and
the rest counted at their mean; scores of the passed ones are compared. Times are processor seconds of one thread, so
that other work on the machine does not count.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from forward import alone, over_baseline
from passes import BUNDLED
from rich.console import Console
from rich.table import Table
from shapes import Shape, write_draft

from eagle3lib import draft_head, forward, fusion
from eagle3lib.boundaries import Wiring
from eagle3lib.case import load_case
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.dumps import open_dump
from eagle3lib.investigation import Investigation
from eagle3lib.own_layout import write_sample
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample
from eagle3lib.scorer import BATCH_BYTES, Scorer
from eagle3lib.scores import Slots
from eagle3lib.search import spread_evenly
from eagle3lib.wiring import coordinate_search

HERE = Path(__file__).parent
MIB = 2**20
WIDE_KEPT = 2**26  # bytes of contributions in the wide search: a sixth of all, so that some are made again
TOY = Shape(48, 96, 4, 2, 12, 256, 96, torch.float32)
WIDE = Shape(7168, 2048, 64, 8, 128, 8192, 1024, torch.float32)  # of Kimi-K2.5's states, layer and head small


@torch.inference_mode()
def full_pass(draft: Draft, samples: Sequence[Sample], slots: Slots) -> float:
    """Cross-entropy of the recorded tokens, by the whole pass over every pair: nothing is kept or left out."""
    logprobs = []
    for sample in samples:
        embedding = draft.embed(sample.token_ids[1 : sample.n_pairs + 1])
        u, _ = forward.first_step(draft, draft.config, fusion.fuse(draft, sample, Wiring(slots)), embedding)
        starts = torch.tensor(sample.starts)
        logprobs.append(draft_head.choose(draft, u[starts], sample.token_ids[starts + 2]).logprob)
    logprob = torch.cat(logprobs)
    return float(-logprob[logprob.isfinite()].double().mean())


def against_full_passes(passed: int, console: Console) -> None:
    """The search on the bundled case, from three starts."""
    inv = Investigation(load_case(BUNDLED.parent / "case.toml"), "cpu")
    section = max(inv.sections(), key=lambda s: len(inv.stored_boundaries(s)))
    boundaries, samples, draft = inv.stored_boundaries(section), list(inv.open(section)), inv.draft
    n = inv.shape.n_layers
    starts = [(2, n // 2, n - 3), inv.served.wiring.slots, spread_evenly(boundaries, 3)]
    full_pass(draft, samples, starts[0])  # warms up
    scorer, began = Scorer(draft, samples), time.process_time()
    ranking = coordinate_search(scorer, boundaries, starts)
    searched = time.process_time() - began
    looked_at = sorted(scorer.looked_at)
    chosen = random.Random(0).sample(looked_at, passed)
    began = time.process_time()
    scores = {slots: full_pass(draft, samples, slots) for slots in chosen}
    each = (time.process_time() - began) / passed
    apart = max(abs(scorer.score(slots).cross_entropy_value - nats) for slots, nats in scores.items())
    times = len(looked_at) * each / searched
    table = Table("search on the bundled dump", "found", "aim")
    table.add_row("best wiring, and how many tie", f"{Wiring(ranking.best.slots)}, {len(ranking.ties) - 1}", "")
    table.add_row(
        "candidates, looked at, scored in full", f"{ranking.candidates}, {len(looked_at)}, {len(ranking.scores)}", ""
    )
    table.add_row("seconds of the search", f"{searched:.1f}", "")
    table.add_row("seconds of a full pass", f"{each:.3f}", "")
    table.add_row("× less than full passes over what it looked at", f"{times:.1f}", "≥ 10")
    table.add_row(
        "× less than full passes over every candidate", f"{ranking.candidates * each / searched:,.0f}", "≥ 10"
    )
    table.add_row(f"largest difference of {passed} scores, nats", f"{apart:.1e}", "≤ 1e-4")
    console.print(table)


def told_by(draft: Draft, sample: Sample, slots: Slots) -> Sample:
    """The sample with its tokens replaced by the draft's own greedy choices under a wiring, from left to right."""
    while True:
        found = rollout(draft, sample, Wiring(slots), 1)
        if bool(found.hit.all()):
            return sample
        tokens = sample.token_ids.clone()
        tokens[found.starts + 2] = found.predicted[:, 0]
        sample = replace(sample, token_ids=tokens)


def toy_draft(folder: Path, seed: int) -> Draft:
    """Random weights whose choices hang on what `fc` is fed: a large head, and attention that speaks softly."""
    draft = load_draft(write_draft(TOY, folder), device="cpu")
    source = torch.Generator().manual_seed(seed)
    for weight in (draft.weights.fc, draft.weights.head):
        weight.copy_(torch.randn(weight.shape, generator=source) / weight.shape[1] ** 0.5)
    draft.weights.head.mul_(2)
    draft.weights.layers[0].o.weight.mul_(0.3)
    return draft


def planted(n: int, console: Console, n_boundaries: int = 24) -> None:
    """Toy drafts, each with a wiring of its own; states of neighbouring boundaries are alike, as in a real target."""
    found, looked_at = 0, []
    for seed in range(n):
        source = torch.Generator().manual_seed(seed)
        slots = tuple(torch.randint(n_boundaries, (3,), generator=source).tolist())
        samples = []
        with tempfile.TemporaryDirectory() as folder:
            draft = toy_draft(Path(folder), seed)
            for i in range(4):
                steps = torch.randn(n_boundaries, 60, TOY.hidden_size, generator=source)
                ids = torch.randint(TOY.vocab_size, (60,), generator=source)
                states = dict(enumerate(steps.cumsum(0) / torch.arange(1, n_boundaries + 1)[:, None, None].sqrt()))
                samples.append(told_by(draft, Sample(str(i), ids, torch.arange(60) >= 10, states), slots))
            scorer = Scorer(draft, samples)
            starts = [(2, n_boundaries // 2, n_boundaries - 4), spread_evenly(range(n_boundaries), 3)]
            ranking = coordinate_search(scorer, range(n_boundaries), starts)
        found += ranking.best.slots == slots
        looked_at.append(len(scorer.looked_at))
        if ranking.best.slots != slots:
            console.print(f"toy {seed}: planted {slots}, found {ranking.best.slots}")
    table = Table("planted wirings", "found", "aim")
    table.add_row(f"of {n} toy drafts, {n_boundaries**3:,} candidates each", str(found), str(n))
    table.add_row("candidates looked at, most", str(max(looked_at)), "")
    console.print(table)


def write_wide(folder: Path, samples: int, tokens: int, boundaries: int) -> None:
    """A dump of random states, one sample in memory at a time."""
    for i in range(samples):
        source = torch.Generator().manual_seed(i)
        ids = torch.randint(WIDE.vocab_size, (tokens,), generator=source)
        states = {b: torch.randn(tokens, WIDE.hidden_size, generator=source).bfloat16() for b in range(boundaries)}
        write_sample(folder, i, ids, torch.arange(tokens) >= 4, states)


def search_wide(work: Path, boundaries: int) -> dict[str, float]:
    """Peak MiB of a search over the wide dump, over the draft in memory and its dump opened."""
    draft = load_draft(work / "draft", device="cpu")
    dump = open_dump(work / "dump", tuple(range(boundaries)), temperature=0.0)
    found = {}
    full_pass(draft, [next(iter(dump))], spread_evenly(dump.boundaries, 3))  # maps every weight

    def search() -> None:
        scorer = Scorer(draft, dump, kept=WIDE_KEPT)
        ranking = coordinate_search(scorer, dump.boundaries, [spread_evenly(dump.boundaries, 3)])
        pairs = sum(sample.n_pairs for sample in dump)
        found.update(looked_at=len(scorer.looked_at), full=len(ranking.scores), kept=scorer.kept_bytes / MIB)
        found["block"] = pairs * WIDE.hidden_size * 4 / MIB
        found["states"] = boundaries * pairs * WIDE.hidden_size * 2 / MIB

    seconds, peak = over_baseline(search)
    return found | {"seconds": seconds, "peak": peak}


def wide(work: Path, samples: int, tokens: int, boundaries: int, console: Console) -> None:
    """The table of the wide search."""
    write_draft(WIDE, work / "draft")
    dump = work / "dump"
    if not dump.is_dir():
        dump.mkdir(parents=True)
        write_wide(dump, samples, tokens, boundaries)
    found = alone(search_wide, work, boundaries)
    every = 3 * boundaries * found["block"]
    table = Table(f"{boundaries} boundaries of width {WIDE.hidden_size}", "found", "aim")
    table.add_row("candidates looked at, scored in full", f"{found['looked_at']:.0f}, {found['full']:.0f}", "")
    table.add_row("seconds", f"{found['seconds']:.0f}", "")
    table.add_row("contributions kept at the end, MiB", f"{found['kept']:.0f}", f"≤ {WIDE_KEPT / MIB:.0f}")
    # What is kept, the states, and some 24 blocks [P, H] that a pass of the layer holds with its products' buffers: of
    # one candidate or of a batch, whatever the number of boundaries.
    bound = WIDE_KEPT / MIB + found["states"] + 24 * max(found["block"], BATCH_BYTES / MIB)
    table.add_row("peak MiB, mapped pages of the states included", f"{found['peak']:.0f}", f"≤ {bound:.0f}")
    table.add_row("all contributions would take, MiB", f"{every:.0f}", "")
    console.print(table)


def main(
    toys: Annotated[int, typer.Option(help="So many planted toys instead of the bundled dump.")] = 0,
    wide_states: Annotated[bool, typer.Option("--wide", help="The memory of wide states instead.")] = False,
    passed: Annotated[int, typer.Option(help="Candidates that are passed in full for comparison.")] = 10,
    samples: int = 2,
    tokens: int = 40,
    boundaries: int = 62,
    work: Annotated[Path, typer.Option(help="Where random weights and states are written.")] = HERE / "work" / "wide",
) -> None:
    """Print one table."""
    console = Console()
    if wide_states:
        if sys.platform != "linux":
            raise typer.BadParameter("memory is measured on Linux only")
        wide(work, samples, tokens, boundaries, console)
        return
    torch.set_num_threads(1)
    planted(toys, console) if toys else against_full_passes(passed, console)


if __name__ == "__main__":
    typer.run(main)
