"""Stage `dump`: what reading a dump's files came upon."""

from __future__ import annotations

from eagle3lib.dumps import Reading
from eagle3lib.findings import Finding, Severity, quantity

RISK, NOTE = Severity.RISK, Severity.NOTE
#: Bad files that a finding names.
NAMED = 5


def check_files(dump: str, reading: Reading, longest: int | None = None) -> list[Finding]:
    """Findings on the files of a dump after a pass over it: bad ones, a part read for the whole, long ones cut.

    Args:
        dump: its name in the case.
        longest: tokens of a window, as the pass was told.
    """
    found = []
    if reading.problems:
        names = list(reading.problems)[:NAMED]
        found.append(
            Finding(
                "dump.bad_files",
                RISK,
                f"{len(reading.problems)} of the files read of {dump} cannot be used, among them {', '.join(names)}",
                f"They were passed over; the numbers are of the others. {reading.problems[names[0]]}",
                "Copy or dump these files again.",
                {"dump": dump, "bad_files": len(reading.problems), "names": names},
            )
        )
    if reading.found is not None:
        found.append(
            Finding(
                "dump.part_read",
                NOTE,
                f"{reading.read} of the {reading.found} files of {dump} are read, evenly spread",
                "The numbers are of these files, the same ones in every run.",
                "State limit, stride or seed for the dump in the case to read others, or all with stride = 1.",
                {"dump": dump, "read": reading.read, "found": reading.found},
            )
        )
    if reading.windowed:
        found.append(
            Finding(
                "dump.windows",
                NOTE,
                quantity(len(reading.windowed), f"sequence of {dump} is", f"sequences of {dump} are")
                + f" longer than {longest} tokens and read in windows",
                f"A window begins with {(longest or 0) // 2} tokens of context. That is exact for a draft whose sliding"
                " window is no longer; another sees no keys before the context, and a turn that crosses windows counts"
                " as a turn of its own in each.",
                "State a larger `longest` for the dump in the case, if memory allows.",
                {"dump": dump, "sequences": len(reading.windowed), "longest": longest},
            )
        )
    return found + [
        Finding("dump.layout_note", NOTE, f"{dump}: what its files leave open", sentence, evidence={"dump": dump})
        for sentence in sorted(reading.notes)
    ]
