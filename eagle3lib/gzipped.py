"""A gzip file's content as a file of its own, unpacked with a bound: a gzip's own word on its size is worth nothing."""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle3lib.errors import InputError

#: States in bfloat16 shrink to two thirds; a file that grows by more than this is none of states.
LARGEST_RATIO = 32
#: Bytes that any file may unpack to: all-zero or repeated states shrink a thousandfold, and are to be found.
ALWAYS_ALLOWED = 256 * 2**20
PIECE = 2**20


@contextmanager
def unpacked(file: Path) -> Iterator[Path]:
    """The content in a temporary file, gone afterwards; what was mapped from it stays.

    Raises:
        InputError: if the file is no whole gzip file, or its content is out of proportion.
    """
    bound = max(ALWAYS_ALLOWED, LARGEST_RATIO * file.stat().st_size)
    with tempfile.TemporaryDirectory(prefix="eagle3lib-", ignore_cleanup_errors=True) as folder:
        content, written = Path(folder) / "content", 0
        try:
            with gzip.open(file, "rb") as packed, content.open("wb") as out:
                while piece := packed.read(PIECE):
                    written += len(piece)
                    if written > bound:
                        raise InputError(
                            f"{file} unpacks to more than {LARGEST_RATIO} times its size, as hidden states never do;"
                            " refused. If it is yours, unpack it yourself."
                        )
                    out.write(piece)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{file} is not a whole gzip file ({error}); copy it again.") from None
        yield content
