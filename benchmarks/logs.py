"""How fast and how lean servers' logs are read, as ratios within one run.

    python benchmarks/logs.py                  logs of 64 MB: decode lines alone, and few of them among others
    python benchmarks/logs.py --megabytes 1000

Peers: `grep -c` of the word that all lines wanted hold, and a plain loop over the file's lines that asks each for it.
Times are medians of interleaved repeats after a warm-up, files in the disk cache. Memory is what reading adds at its
peak to what a fresh process held before (Linux only).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from forward import alone, over_baseline, seconds
from rich.console import Console
from rich.table import Table

from eagle3lib.serving import read_served

HERE = Path(__file__).parent
REQUEST = '[2026-03-04 10:11:12] INFO:     10.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK'


def decode_line(i: int) -> str:
    """As SGLang writes it in 2026, lengths between 2.00 and 2.99."""
    length = 2 + i * 37 % 100 / 100
    return (
        f"[2026-03-04 10:11:{i % 60:02d} TP0] Decode batch, #running-req: {1 + i % 8}, #token: {4096 + i % 1000}, token"
        f" usage: 0.03, accept len: {length:.2f}, accept rate: {(length - 1) / 3:.2f}, cuda graph: True, gen throughput"
        f" (token/s): {300 + i % 50}.25, #queue-req: {i % 3}"
    )


def write_log(path: Path, megabytes: int, others: int) -> None:
    """A log of about that size, with so many other lines after each decode line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    thousand = "".join(decode_line(i) + "\n" + (REQUEST + "\n") * others for i in range(1000)).encode()
    with path.open("wb") as file:
        for _ in range(megabytes * 10**6 // len(thousand) + 1):
            file.write(thousand)


def iterate(path: Path, word: bytes = b"accept len") -> int:
    """The plain loop."""
    with path.open("rb") as file:
        return sum(word in line for line in file)


def grep(path: Path) -> bytes:
    """Its count of lines."""
    return subprocess.run(["grep", "-c", "accept len", path], check=True, capture_output=True).stdout


def memory(path: Path) -> float:
    """Peak MiB over what the process held; a small log first, so that what is loaded once is not counted."""
    small = path.with_suffix(".small")
    small.write_bytes(path.open("rb").read(10**6))
    read_served(small)
    return over_baseline(lambda: read_served(path))[1]


def main(
    megabytes: int = 64,
    repeats: int = 3,
    work: Annotated[Path, typer.Option(help="Where the logs are written.")] = HERE / "work" / "logs",
) -> None:
    """Print the table."""
    console = Console()
    table = Table("log", "MB/s", "loop, MB/s", "grep -c, MB/s", "peak MiB over the process")
    for name, others in (("decode lines alone", 0), ("one line in 20", 19), ("one line in 1000", 999)):
        path = work / f"{megabytes}-{others}.log"
        write_log(path, megabytes, others)
        size = path.stat().st_size / 1e6
        todo: dict[str, Callable[[], object]] = {
            "read": lambda path=path: read_served(path),
            "loop": lambda path=path: iterate(path),
            "grep": lambda path=path: grep(path),
        }
        taken = seconds(todo, repeats)
        peak = f"{alone(memory, path):.1f}" if sys.platform == "linux" else "not measured"
        table.add_row(name, *(f"{size / taken[which]:.0f}" for which in todo), peak)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
