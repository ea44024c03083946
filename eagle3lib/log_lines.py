"""Lines of a log that hold one of some marks, in order, whatever the file's size.

A log is read in pieces and searched for the marks with `bytes.find`, so that the lines between cost no step of
Python. Carriage returns end a line (progress bars), colour codes are dropped, and a line longer than `LONGEST` is
skipped without being held.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

PIECE = 2**20
#: Bytes of a line of a log; a server's arguments take some ten thousand.
LONGEST = 2**18
#: Bytes of a JSON document, or of one line of JSON lines: a benchmark's output with all its texts.
LONGEST_DOCUMENT = 2**26
_COLOUR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
#: What the first bytes of a gzip file are.
_GZIP = b"\x1f\x8b"


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """The file's bytes, unpacked on the way where it is a gzip file."""
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        if not packed:
            yield raw
            return
        with gzip.open(raw) as stream:
            yield stream


def marked_lines(path: Path, marks: Sequence[bytes], odd: Counter[str]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Lines that hold a mark, without their line ends and colours, and which marks they hold.

    Args:
        marks: what is searched for.
        odd: counts what was skipped, by its reason.
    """
    for text in _whole_lines(path, LONGEST, odd):
        for begin, (end, held) in sorted(_spans(text, marks).items()):
            yield text[begin:end], held


def json_lines(path: Path, odd: Counter[str]) -> Iterator[bytes]:
    """Every line that is not blank, up to `LONGEST_DOCUMENT` bytes each."""
    for text in _whole_lines(path, LONGEST_DOCUMENT, odd):
        yield from (line for line in text.split(b"\n") if line.strip())


def _spans(text: bytes, marks: Sequence[bytes]) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Of each line that holds a mark, by its begin: its end, and which."""
    spans: dict[int, tuple[int, tuple[int, ...]]] = {}
    for i, mark in enumerate(marks):
        alone = (i,)
        at = text.find(mark)
        while at >= 0:
            end = text.find(b"\n", at)
            if end < 0:
                end = len(text)
            begin = text.rfind(b"\n", 0, at) + 1
            spans[begin] = (end, (*spans[begin][1], i) if begin in spans else alone)
            at = text.find(mark, end)
    return spans


def _whole_lines(path: Path, longest: int, odd: Counter[str]) -> Iterator[bytes]:
    """The file in pieces of whole lines; what a broken gzip file still gives is given."""
    rest, skipping = b"", False
    with opened(path) as stream:
        while True:
            try:
                piece = stream.read1(PIECE)  # not `read`, which drops what came before a broken end
            except (OSError, EOFError, zlib.error):
                odd["the end of the gzip file, cut or damaged"] += 1
                piece = b""
            if not piece:
                break
            if b"\r" in piece:
                piece = piece.replace(b"\r", b"\n")
            cut = piece.rfind(b"\n") + 1
            if skipping:
                if not cut:
                    continue
                piece, rest, skipping = piece[piece.find(b"\n") + 1 :], b"", False
                cut = piece.rfind(b"\n") + 1
            if cut:
                yield _plain(rest + piece[:cut])
                rest = piece[cut:]
            else:
                rest += piece
            if len(rest) > longest:
                odd[f"longer than {longest:,} bytes"] += 1
                rest, skipping = b"", True
    if rest:
        yield _plain(rest)


def _plain(text: bytes) -> bytes:
    return _COLOUR.sub(b"", text) if b"\x1b" in text else text
