"""How fast and how small the manual pass is, as ratios within one run.

    python benchmarks/forward.py                    the bundled draft, against speculators and bare matrix products
    python benchmarks/forward.py --shape kimi       a draft of Kimi-K2.5's shape: opening it, and a pass

Times are medians of interleaved repeats after a warm-up. Memory is each pass's peak over what its own process
held before (Linux only), after a short pass that touches every weight.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from passes import BUNDLED, manual, random_sample, runners
from rich.console import Console
from rich.table import Table
from shapes import SHAPES, write_draft

from eagle3lib.checkpoint import load_draft
from eagle3lib.dialects import read_checkpoint
from eagle3lib.ledger import flag_ledger, tensor_ledger

HERE = Path(__file__).parent
MIB = 2**20


def seconds(todo: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in todo}
    for repeat in range(repeats + 1):
        for name, action in todo.items():
            began = time.perf_counter()
            action()
            if repeat:  # the first is the warm-up
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def resident(field: str) -> float:
    """A line of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def over_baseline(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and peak MiB of memory over what the process holds now."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before, began = resident("VmRSS"), time.perf_counter()
    action()
    return time.perf_counter() - began, resident("VmHWM") - before


def measure_pass(name: str, folder: Path, dtype: torch.dtype, tokens: int, steps: int, threads: int) -> float:
    """Peak MiB of one pass, in a process of its own."""
    torch.set_num_threads(threads)
    run = runners(folder, dtype, tokens, steps)[name]
    run(min(tokens, 16))
    return over_baseline(lambda: run(tokens))[1]


def measure_opening(folder: Path) -> tuple[float, float]:
    """Seconds and MiB of reading the header and making its ledger, imports done."""

    def ledger() -> None:
        checkpoint = read_checkpoint(folder)
        table = Table("tensor", "status")
        for entry in tensor_ledger(checkpoint):
            table.add_row(entry.name, entry.status)
        for flag in flag_ledger(checkpoint):
            table.add_row(flag.path, flag.status)
        Console(file=open(os.devnull, "w")).print(table)  # noqa: SIM115

    return over_baseline(ledger)


def measure_large(folder: Path, tokens: int, steps: int, threads: int) -> dict[str, float]:
    """Seconds and peak MiB of a pass over mapped bfloat16 weights, the weights' own pages counted apart."""
    torch.set_num_threads(threads)
    draft = load_draft(folder, device="cpu", dtype=torch.bfloat16)
    manual(draft, random_sample(draft, 16), 2)
    sample = random_sample(draft, tokens)
    mapped = resident("RssFile")
    taken, peak = over_baseline(lambda: manual(draft, sample, steps))
    table = draft.embedding.numel() * draft.embedding.element_size() / MIB
    block = tokens * draft.config.draft_vocab_size * 4 / MIB
    return {"seconds": taken, "peak": peak, "mapped": mapped, "embedding": table, "logits": block}


def alone(function: Callable, *args: object) -> object:
    """The function's result, from a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices itself."""
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def compare(folder: Path, tokens: int, steps: int, threads: int, repeats: int, console: Console) -> None:
    """The table of the bundled draft's shape."""
    torch.set_num_threads(threads)
    todo, choices = {}, {}
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if not native_bfloat16():
        del dtypes["bfloat16"]
        console.print("bfloat16 is left out: this CPU does not multiply it natively")
    for label, dtype in dtypes.items():
        for name, run in runners(folder, dtype, tokens, steps).items():
            todo[f"{name}, {label}"] = lambda run=run: run(tokens)
            if name != "products":
                choices[f"{name}, {label}"] = torch.cat([ids for ids in run(tokens)])
    times, base = seconds(todo, repeats), "speculators, float32"
    peaks = {}
    if sys.platform == "linux":
        passes = [(name, label) for label in dtypes for name in ("manual", "speculators")]
        peaks = {
            f"{n}, {label}": alone(measure_pass, n, folder, dtypes[label], tokens, steps, threads)
            for n, label in passes
        }
    table = Table("", "seconds", "× faster than speculators", "× its products", "peak MiB", "same choices")
    for name, taken in times.items():
        own = times[f"products, {name.split(', ')[1]}"]
        same = f"{float((choices[name] == choices[base]).float().mean()):.2%}" if name in choices else ""
        peak = f"{peaks[name]:.0f}" if name in peaks else ""
        table.add_row(name, f"{taken:.2f}", f"{times[base] / taken:.2f}", f"{taken / own:.2f}", peak, same)
    console.print(f"{steps} steps over {tokens} tokens, {threads} threads, median of {repeats}")
    console.print(table)
    goals = [
        ("float32 against speculators", times[base] / times["manual, float32"], "≥ 3.3"),
        ("float32 against its products", times["manual, float32"] / times["products, float32"], "≤ 1.45"),
    ]
    if "bfloat16" in dtypes:
        goals.append(("bfloat16 against speculators' float32", times[base] / times["manual, bfloat16"], "≥ 6.5"))
    if peaks:
        goals.append(("peak memory against speculators'", peaks["manual, float32"] / peaks[base], "≤ 0.5"))
    aims = Table("ratio", "found", "aim")
    for name, value, aim in goals:
        aims.add_row(name, f"{value:.2f}", aim)
    console.print(aims)


def large(folder: Path, tokens: int, steps: int, threads: int, console: Console) -> None:
    """The table of a large draft."""
    alone(measure_opening, folder)  # warms the disk cache
    taken, opened = alone(measure_opening, folder)
    found = alone(measure_large, folder, tokens, steps, threads)
    table = Table("", "found", "aim")
    table.add_row("header and ledger, seconds", f"{taken:.2f}", "< 3")
    table.add_row("header and ledger, MiB over the imports", f"{opened:.0f}", "< 100")
    table.add_row(f"{steps} steps over {tokens} tokens, seconds", f"{found['seconds']:.1f}", "")
    table.add_row(
        "peak MiB over the mapped weights",
        f"{found['peak']:.0f}",
        f"without the embedding table's {found['embedding']:.0f} or a logits block of {found['logits']:.0f}",
    )
    table.add_row("weights mapped, MiB", f"{found['mapped']:.0f}", "")
    console.print(table)


def main(
    shape: Annotated[str, typer.Option(help=f"One of {', '.join(SHAPES)}.")] = "bundled",
    tokens: Annotated[int | None, typer.Option(help="1024, or 256 for kimi.")] = None,
    steps: int = 7,
    threads: int = 2,
    repeats: int = 3,
    work: Annotated[Path, typer.Option(help="Where random weights are written; kimi's are 4.4 GB.")] = HERE / "work",
) -> None:
    """Print the tables of one shape."""
    console = Console()
    if shape == "kimi":
        large(write_draft(SHAPES[shape], work / shape), tokens or 256, steps, threads, console)
        return
    real = shape == "bundled" and BUNDLED.is_dir()
    folder = BUNDLED if real else write_draft(SHAPES[shape], work / shape)
    console.print("the bundled draft" if real else f"random weights of the shape {shape}")
    compare(folder, tokens or 1024, steps, threads, repeats, console)


if __name__ == "__main__":
    typer.run(main)
