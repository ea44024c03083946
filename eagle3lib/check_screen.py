"""An examination as one screen."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eagle3lib.boundaries import boundary_name
from eagle3lib.examination import Examination
from eagle3lib.findings import Severity

COLOURS = {Severity.FAULT: "red", Severity.RISK: "yellow", Severity.NOTE: "dim", Severity.OK: "green"}


def show(found: Examination, console: Console | None = None) -> None:
    """Print what was found: the file, the ids, the flags that matter, then the findings."""
    console = console or Console(highlight=False)
    checkpoint = found.checkpoint
    by = f", told by {', '.join(checkpoint.evidence)}" if checkpoint.evidence else ""
    prefix = f"; names begin with {checkpoint.prefix}" if checkpoint.prefix else ""
    console.print(f"[bold]{escape(str(checkpoint.path))}[/]: {escape(checkpoint.dialect + by + prefix)}")
    console.print(_tensors(found))
    if found.vocabulary:
        v = found.vocabulary
        console.print(f"Vocabulary: {len(v)} of {v.size} tokens, d2t read as {v.reading}: {escape(v.why)}")
    if found.ids:
        console.print(_ids(found))
    if (flags := _flags(found)) is not None:
        console.print(flags)
    if found.server_args:
        spoken = {k: v for k, v in found.server_args.items() if "spec" in k} or found.server_args
        shown = "  ".join(f"--{name}" + ("" if value is True else f" {value}") for name, value in spoken.items())
        console.print(f"Server: {escape(shown)}")
    for finding in found.findings:
        colour = COLOURS[finding.severity]
        console.print(f"[{colour}]{finding.severity.value:<5}[/] {escape(finding.title)}")
        if finding.severity in (Severity.FAULT, Severity.RISK):
            console.print(f"      {escape(finding.meaning)}", style="dim")
            if finding.remedy:
                console.print(f"      → {escape(finding.remedy)}")
    for note in found.notes:
        console.print(escape(note), style="dim")


def _tensors(found: Examination) -> Table | str:
    """Counts, and a row for each tensor that is not simply used."""
    counts = Counter(entry.status for entry in found.tensors)
    odd = [entry for entry in found.tensors if entry.status != "used"]
    title = ", ".join(f"{counts[status]} {status}" for status in ("used", "unused", "missing") if counts[status])
    if not odd:
        return f"Tensors: {title}"
    table = Table("tensor", "status", "note", box=None, pad_edge=False, title=f"Tensors: {title}", title_justify="left")
    for entry in odd:
        table.add_row(escape(entry.stored or entry.name), entry.status, escape(entry.note))
    return table


def _ids(found: Examination) -> Table:
    """A row an engine: where it finds ids, and which boundaries reach fc."""
    trained = "not told by this form" if found.trained is None else _names(found.trained)
    title = f"Layer ids of a target of {found.shape.n_layers} blocks; trained on {trained}"
    table = Table("engine", "ids", "found at", "feeds fc", box=None, pad_edge=False, title=title, title_justify="left")
    for row in found.ids:
        ids = "default" if row.ids is None else str(row.ids)
        served = _names(row.boundaries) if row.boundaries is not None else row.problem
        differs = row.boundaries is None or (found.trained is not None and tuple(row.boundaries) != found.trained)
        colour = "red" if differs else "default"
        table.add_row(
            escape(f"{row.system} {row.version}"), escape(ids), escape(row.spelling), f"[{colour}]{escape(served)}[/]"
        )
    return table


def _names(boundaries) -> str:
    return " ".join(map(boundary_name, boundaries))


def _flags(found: Examination) -> Table | None:
    """The flags of config.json that an engine ignores or that nobody knows."""
    odd = [entry for entry in found.flags if entry.status in ("ignored", "unknown")]
    if not odd:
        return None
    counts = Counter(entry.status for entry in found.flags)
    title = "Flags: " + ", ".join(f"{n} {status}" for status, n in counts.items())
    table = Table("flag", "value", "status", "note", box=None, pad_edge=False, title=title, title_justify="left")
    for entry in odd:
        table.add_row(escape(entry.path), escape(entry.text), entry.status, escape(entry.note))
    return table
