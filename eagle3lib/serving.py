"""What a server said: its logs, metrics and benchmarks, read by content and reduced to counts of rounds.

Whatever a system prints is converted to the mean of the drafts accepted a round; the acceptance length of the page is
that plus one, over all the server's rounds, last ones of responses among them, where a replay leaves those out. Rates
over drafted tokens are never compared: they depend on how many were drafted, and on what was counted as drafted.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3lib.ecosystems import LOGS
from eagle3lib.ecosystems._logs import LogReader, Shape, Window
from eagle3lib.errors import InputError
from eagle3lib.log_lines import LONGEST_DOCUMENT, json_lines, marked_lines, opened
from eagle3lib.served_reading import Served, served
from eagle3lib.tally import Tally

#: Texts of a server's arguments that are kept, and characters of each.
MOST_LAUNCHES, LONGEST_LAUNCH = 8, 2**16
#: Bytes of a line of numbers; those that are read take some hundreds.
LONGEST_TOLD = 4096


@dataclass(frozen=True)
class ServedLog:
    """One file.

    Attributes:
        readings: what each shape of line in it says, the most telling first; they may tell of the same rounds.
        launch: what the server was started with, in its own words, where the file shows it.
        notes: what was odd, with counts, and what explains it.
    """

    path: Path
    readings: tuple[Served, ...]
    launch: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def best(self) -> Served:
        """The reading that counts most."""
        return self.readings[0]


@dataclass
class _Collected:
    """Where readers put what they read."""

    tallies: dict[Shape, Tally] = field(default_factory=dict)
    odds: Counter[str] = field(default_factory=Counter)
    launches: list[str] = field(default_factory=list)
    hints: Counter[str] = field(default_factory=Counter)

    def window(self, shape: Shape, window: Window) -> None:
        if not window.sound:
            self.odds["numbers that cannot be"] += 1
        elif shape.over == "totals" or window.rounds > 0:
            tally = self.tallies.get(shape)
            if tally is None:
                tally = self.tallies[shape] = Tally(shape)
            tally.add(window)

    def odd(self, reason: str) -> None:
        self.odds[reason] += 1

    def launch(self, text: str) -> None:
        text = text[:LONGEST_LAUNCH].strip()
        if (
            any(sign in text for sign in (" -", "=", ":"))
            and text not in self.launches
            and len(self.launches) < MOST_LAUNCHES
        ):
            self.launches.append(text)

    def hint(self, text: str) -> None:
        self.hints[text] += 1


def read_served(path: Path) -> ServedLog:
    """Read a server's log, a scrape of its metrics, its replies' metadata, or a benchmark's results.

    Text of any size streams; `.gz` is unpacked on the way. Lines that are cut, garbled or copies are counted in
    `notes`.

    Raises:
        InputError: if there is no such file, or nothing in it tells of speculation.
    """
    if not path.is_file():
        raise InputError(f"Expected a server's log at {path}, found {'a folder' if path.is_dir() else 'none'}.")
    collected = _Collected()
    readers = [reader() for reader in LOGS]
    if _is_json(path):
        _read_records(path, readers, collected)
    if not collected.tallies:
        _read_lines(path, readers, collected)
    for reader in readers:
        reader.finish(collected)
    order = {shape: i for i, shape in enumerate(shape for reader in readers for shape in reader.shapes)}
    tallies = [tally for tally in collected.tallies.values() if tally.windows]
    # Another system's stray line does not win over the log's own lines; within a system the most telling does.
    lines = Counter[str]()
    for tally in tallies:
        lines[tally.shape.system] += tally.windows
    tallies.sort(key=lambda t: (-lines[t.shape.system], order[t.shape]))
    notes = _notes(collected)
    if not tallies:
        raise InputError(_nothing(path, readers, notes))
    readings = tuple(map(served, tallies))
    restarts = sum(tally.restarts for tally in tallies)
    notes += [f"totals fell back {restarts} times, as after a restart; counted on from zero"] if restarts else []
    if tallies[0].stride > 1:
        notes.append(f"intervals and loads are from every {tallies[0].stride}th of {tallies[0].windows:,} windows")
    return ServedLog(path, readings, tuple(collected.launches), tuple(notes))


def _read_lines(path: Path, readers: Sequence[LogReader], collected: _Collected) -> None:
    """Lines that hold a mark, to whose mark it is; arguments are kept as they are."""
    marks = [(mark, reader) for reader in readers for mark in reader.marks]
    arguments = [mark for reader in readers for mark in reader.arguments]
    owners = [reader for _, reader in marks]
    for line, held in marked_lines(path, [*(mark for mark, _ in marks), *arguments], collected.odds):
        if held[-1] >= len(owners):
            begins = min(line.find(arguments[i - len(owners)]) for i in held if i >= len(owners))
            collected.launch(line[begins:].decode("utf-8", errors="replace"))
        elif len(line) > LONGEST_TOLD:
            collected.odd(f"longer than {LONGEST_TOLD:,} bytes")
        else:
            text = line.decode("utf-8", errors="replace")
            for reader in (owners[held[0]],) if len(held) == 1 else dict.fromkeys(owners[i] for i in held):
                reader.line(text, collected)


def _is_json(path: Path) -> bool:
    """Whether the file begins as JSON does; a log's `[date` does not."""
    with opened(path) as stream:
        try:
            begin = b"".join(stream.read1(4096).split())
        except (OSError, EOFError, zlib.error):
            return False
    return begin[:1] == b"{" or begin[:2] in (b"[{", b"[]")


def _read_records(path: Path, readers: Sequence[LogReader], collected: _Collected) -> None:
    """A JSON document, or JSON lines."""
    broken = 0
    for line in json_lines(path, collected.odds):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            broken += 1
            if broken > 1 and not collected.tallies:
                break  # a document, or a log that begins with a brace
            continue
        _take(document, readers, collected)
    if not collected.tallies and path.stat().st_size > LONGEST_DOCUMENT:
        collected.odds[f"a JSON document longer than {LONGEST_DOCUMENT:,} bytes"] += 1
    elif not collected.tallies:
        with opened(path) as stream:
            try:
                _take(json.loads(stream.read(LONGEST_DOCUMENT)), readers, collected)
            except (ValueError, RecursionError, OSError, EOFError, zlib.error):
                return
    elif collected.tallies and broken:
        collected.odds["no whole JSON"] += broken


def _take(document: Any, readers: Sequence[LogReader], collected: _Collected) -> None:
    for record in document if isinstance(document, list) else [document]:
        if isinstance(record, dict):
            any(reader.record(record, collected) for reader in readers)


def _notes(collected: _Collected) -> list[str]:
    odd = [f"{reason}: {times:,} left out" for reason, times in collected.odds.most_common()]
    return [*odd, *collected.hints]


def _nothing(path: Path, readers: Sequence[LogReader], notes: Sequence[str]) -> str:
    """What was looked for, in one sentence."""
    looked = "; ".join(f"{s.system}: {s.looks}" for reader in readers for s in reader.shapes)
    said = f" ({'; '.join(notes)})" if notes else ""
    return f"{path} tells nothing of speculation{said}; looked for {looked}."


def served_rows(logs: Sequence[ServedLog]) -> list[dict]:
    """One row a reading, for a page."""
    return [
        {
            "file": log.path.name,
            "system": reading.shape.system,
            "line": reading.shape.name,
            "windows": reading.windows,
            "rounds": reading.rounds,
            "accepted a round": reading.length.value - 1,
            "acceptance length, bonus included": f"{reading.length:.3f}",
            "K": reading.steps,
            "drafted a round": reading.drafted,
            "tokens/s": f"{reading.speed.value:.1f} ({reading.shape.speed})" if reading.speed else None,
            "running": reading.running,
            "definition": reading.shape.definition,
        }
        for log in logs
        for reading in log.readings
    ]
