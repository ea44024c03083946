"""One list of layer ids, as each system reads it: the same numbers, other boundaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3lib.ecosystems import System, TargetShape
from eagle3lib.errors import InputError


@dataclass(frozen=True)
class IdReading:
    """What one system makes of the ids in a config: boundaries, or one sentence why there are none.

    Attributes:
        version: of the system, as stated or last read; a span of releases where one reading holds for several.
        ids: None where it falls back to its default.
        spelling: where it found them, and which lists it passes over.
    """

    system: str
    version: str
    ids: list[int] | None
    spelling: str
    boundaries: list[int] | None
    problem: str | None
    note: str


def read_by(system: System, config: dict[str, Any], shape: TargetShape, version: str | None = None) -> IdReading:
    """One system's reading; a list it stops on is a reading too.

    Raises:
        InputError: if the version is none.
    """
    at, note = version or system.default_version, system.note(shape, version)
    try:
        ids = system.read_ids(config)
    except InputError as error:
        return IdReading(system.label, at, None, "unreadable", None, str(error), note)
    listed = None if ids.ids is None else list(ids.ids)
    spelling = ids.spelling + (f"; passes over {', '.join(ids.ignored)}" if ids.ignored else "")
    problem = system.trouble(ids, shape, version)
    boundaries = None if problem else list(system.asked(ids, shape, version))
    return IdReading(system.label, at, listed, spelling, boundaries, problem, note)


def over_releases(system: System, config: dict[str, Any], shape: TargetShape) -> list[IdReading]:
    """A system's readings from the oldest release that was read to the newest, one for each span that agrees."""
    read = [read_by(system, config, shape, version) for version in system.changes(shape)]
    first = [i for i in range(len(read)) if i == 0 or _differs(read[i - 1], read[i])]
    spans = zip(first, [*first[1:], len(read)], strict=True)
    return [_spanning(read[i:end], read[end].version if end < len(read) else None) for i, end in spans]


def _differs(one: IdReading, other: IdReading) -> bool:
    """Whether two versions of one system read otherwise; a problem names its version."""
    problems = [(r.problem or "").replace(r.version, "") for r in (one, other)]
    return one.boundaries != other.boundaries or problems[0] != problems[1]


def _spanning(readings: list[IdReading], next_version: str | None) -> IdReading:
    """The last of readings that agree, under the span of their versions."""
    last = readings[-1]
    if next_version is not None:
        span = f"{readings[0].version} to before {next_version}"
    else:
        span = f"{readings[0].version} to {last.version}" if len(readings) > 1 else last.version
    return IdReading(last.system, span, last.ids, last.spelling, last.boundaries, last.problem, last.note)
