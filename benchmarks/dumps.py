"""How fast and how lean dumps are read, as ratios within one run.

    python benchmarks/dumps.py                      throughput, memory, and the first of a million files
    python benchmarks/dumps.py --files 0            without the million files, which take minutes to make

Throughput is against the library's own loader of the same files, every number touched in both. Times are medians of
interleaved repeats after a warm-up, files in the disk cache. Memory is what a pass over the samples adds at its peak
to what its process held before, mapped pages of files and private memory apart (Linux only).
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import torch
import typer
from forward import MIB, alone, resident, seconds
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3lib.axes import Known
from eagle3lib.dumps import open_dump
from eagle3lib.own_layout import FILE_NAME, write_sample
from eagle3lib.turns import TurnRule

HERE = Path(__file__).parent
BOUNDARIES = (0, 3, 16, 30)
RULE = TurnRule(prompt_length=16)


def touch(tensors: Iterable[Tensor]) -> float:
    """Read every number."""
    return sum(float(tensor.view(torch.int16).sum(dtype=torch.int64)) for tensor in tensors)


def states(tokens: int, hidden: int, seed: int) -> Tensor:
    """[4, tokens, hidden] in bfloat16."""
    return torch.randn(len(BOUNDARIES), tokens, hidden, generator=torch.Generator().manual_seed(seed)).bfloat16()


def write_dumps(work: Path, n: int, tokens: int, hidden: int) -> dict[str, Path]:
    """The same samples in three layouts: ours, the connector's stack, and the old list."""
    folders = {name: work / f"{name}-{n}x{tokens}x{hidden}" for name in ("own", "stack", "list")}
    for name, folder in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(n):
            stored, ids = states(tokens, hidden, i), torch.arange(tokens)
            mask = ids >= RULE.prompt_length
            if name == "own" and not (folder / FILE_NAME.format(i)).exists():
                write_sample(folder, i, ids, mask, dict(zip(BOUNDARIES, stored, strict=True)))
            elif name == "stack" and not (file := folder / f"cmpl-{i:05d}.safetensors").exists():
                save_file({"hidden_states": stored.transpose(0, 1).contiguous(), "token_ids": ids}, file)
            elif name == "list" and not (file := folder / f"data_{i}.pt").exists():
                listed = [state.clone() for state in stored]
                torch.save({"input_ids": ids, "hidden_states": listed, "loss_mask": mask.long()}, file)
    return folders


def ours(folder: Path, hidden: int, read: tuple[int, ...] | None = None) -> None:
    """A pass of this package."""
    for sample in open_dump(folder, BOUNDARIES, read=read, known=Known(hidden), turns=RULE):
        touch(sample.states.values())


def theirs(folder: Path) -> None:
    """A pass of the library that wrote the files."""
    for file in sorted(folder.iterdir()):
        if file.suffix == ".pt":
            touch(torch.load(file, weights_only=True)["hidden_states"])
        else:
            touch(t for t in load_file(file).values() if t.dtype == torch.bfloat16)


def throughput(work: Path, n: int, tokens: int, hidden: int, repeats: int, console: Console) -> None:
    """The table of full and part reads."""
    folders = write_dumps(work, n, tokens, hidden)
    size = n * len(BOUNDARIES) * tokens * hidden * 2
    todo = {}
    for name, folder in folders.items():
        todo[f"{name}, library"] = lambda folder=folder: theirs(folder)
        todo[f"{name}, all"] = lambda folder=folder: ours(folder, hidden)
        todo[f"{name}, one of {len(BOUNDARIES)}"] = lambda folder=folder: ours(folder, hidden, BOUNDARIES[1:2])
    times = seconds(todo, repeats)
    table = Table("", "seconds", "GB/s", "library's time over ours", "aim")
    for name, taken in times.items():
        layout, kind = name.split(", ")
        part = 1 / len(BOUNDARIES) if kind.startswith("one") else 1
        aim = {"library": "", "all": "≥ 0.9"}.get(kind, f"≥ {0.9 * len(BOUNDARIES):.1f}")
        ratio = times[f"{layout}, library"] / taken
        table.add_row(name, f"{taken:.3f}", f"{part * size / taken / 1e9:.2f}", f"{ratio:.2f}", aim)
    console.print(f"{n} samples of {tokens} tokens, {len(BOUNDARIES)} states of {hidden}: {size / MIB:.0f} MiB")
    console.print(table)


def memory(folder: Path, hidden: int) -> tuple[float, float]:
    """The most private and the most mapped MiB over those before, in a pass."""
    ours(folder, hidden, ())
    private, mapped = [resident("RssAnon")], [resident("RssFile")]
    for sample in open_dump(folder, BOUNDARIES, known=Known(hidden), turns=RULE):
        touch(sample.states.values())
        private.append(resident("RssAnon"))
        mapped.append(resident("RssFile"))
    return max(private) - private[0], max(mapped) - mapped[0]


def make_many(folder: Path, files: int) -> None:
    """A folder of that many names, each a link to one sample."""
    folder.mkdir(parents=True, exist_ok=True)
    sample = folder.parent / "one.safetensors"
    save_file({"hidden_states": torch.zeros(64, 4, 128).bfloat16(), "token_ids": torch.arange(64)}, sample)
    with os.scandir(folder) as entries:
        there = sum(1 for _ in itertools.islice(entries, files))
    for i in range(there, files):
        (folder / f"cmpl-{i * 7919 % 1_000_003:06x}-{i}.safetensors").symlink_to(sample)


def first_sample(folder: Path) -> tuple[float, float]:
    """Seconds to the first sample and to the next thousand."""
    began = time.perf_counter()
    stream = iter(open_dump(folder, BOUNDARIES, known=Known(128), turns=RULE))
    next(stream)
    first = time.perf_counter() - began
    for _ in itertools.islice(stream, 1000):
        pass
    return first, time.perf_counter() - began - first


def main(
    samples: int = 24,
    tokens: int = 1024,
    hidden: int = 2048,
    files: Annotated[int, typer.Option(help="Of the folder with many; 0 leaves it out.")] = 1_000_000,
    repeats: int = 5,
    threads: int = 2,
    work: Annotated[Path, typer.Option(help="Where the dumps are written, about 1.5 GB.")] = HERE / "work" / "dumps",
) -> None:
    """Print the three tables."""
    console = Console()
    torch.set_num_threads(threads)
    throughput(work, samples, tokens, hidden, repeats, console)
    if sys.platform == "linux":
        table = Table("memory of a pass over", "private MiB", "mapped MiB")
        for n in (10, 1000):
            for name, folder in write_dumps(work, n, 256, 576).items():
                private, mapped = alone(memory, folder, 576)
                table.add_row(f"{n} samples, {name}", f"{private:.1f}", f"{mapped:.1f}")
        console.print(table)
    if files:
        make_many(work / "many", files)
        first, thousand = alone(first_sample, work / "many")
        table = Table(f"a folder of {files:,} files", "seconds", "aim")
        table.add_row("first sample", f"{first:.3f}", "< 1")
        table.add_row("the next thousand", f"{thousand:.3f}", "")
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
