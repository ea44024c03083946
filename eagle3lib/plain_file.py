"""A safetensors file read with seek and read, for file systems that cannot map files.

Some cluster mounts refuse shared maps (`No such device`), and on others a page fault kills the process with
SIGBUS, which cannot be caught: set `EAGLE3LIB_PLAIN_READ=1` there. The format is eight bytes of length, a JSON
header and the data (safetensors' own README).
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: As the format's own library has it.
LONGEST_HEADER = 100_000_000
#: Set to anything but 0 to map nothing.
VARIABLE = "EAGLE3LIB_PLAIN_READ"
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def wanted() -> bool:
    """Whether the environment asks for files to be read instead of mapped."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


@dataclass(frozen=True)
class _Entry:
    shape: tuple[int, ...]
    dtype: str
    begin: int

    def get_shape(self) -> list[int]:
        """As safetensors' slice has it."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """As safetensors' slice has it."""
        return self.dtype


def _entry(entry: dict[str, Any], data: int, size: int) -> _Entry:
    """One line of the header, held against the file's size before anything is read.

    Raises:
        ValueError: if shape, type and place disagree.
    """
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if any(type(n) is not int or n < 0 for n in (*shape, begin, end)):
        raise ValueError("a shape or an offset is no whole number")
    if math.prod(shape) * DTYPES[entry["dtype"]].itemsize != end - begin:
        raise ValueError(f"{end - begin} bytes are no {entry['dtype']} {list(shape)}")
    if data + end > size:
        raise ValueError(f"the data end beyond the file's {size} bytes")
    return _Entry(shape, entry["dtype"], data + begin)


class PlainFile:
    """What `safe_open` offers, as far as this package uses it.

    Raises:
        ValueError: if the file is cut or its header is no header.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(size - 8, LONGEST_HEADER):
                raise ValueError(f"the header says {length} bytes of a file of {size}")
            try:
                header: dict[str, Any] = json.loads(stream.read(length))
                self._metadata = header.pop("__metadata__", None)
                self._entries = {name: _entry(entry, 8 + length, size) for name, entry in header.items()}
            except (TypeError, AttributeError, KeyError, RecursionError) as error:
                raise ValueError(f"the header is no table of tensors: {error!r}") from None

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self._entries)

    def metadata(self) -> dict[str, str] | None:
        """The file's own notes."""
        return self._metadata

    def get_slice(self, name: str) -> _Entry:
        """Shape and type of a tensor."""
        return self._entries[name]

    def get_tensor(self, name: str) -> Tensor:
        """A tensor, read whole."""
        entry = self._entries[name]
        n = torch.Size(entry.shape).numel()
        return self._read(entry, entry.begin, n).reshape(entry.shape)

    def get_rows(self, name: str, rows: Tensor) -> Tensor:
        """Some rows of a tensor, each read by itself."""
        entry = self._entries[name]
        width = torch.Size(entry.shape[1:]).numel()
        step = width * DTYPES[entry.dtype].itemsize
        found = [self._read(entry, entry.begin + row * step, width) for row in rows.tolist()]
        return (torch.stack(found) if found else torch.empty(0, width, dtype=DTYPES[entry.dtype])).reshape(
            len(rows), *entry.shape[1:]
        )

    def _read(self, entry: _Entry, at: int, n: int) -> Tensor:
        dtype = DTYPES[entry.dtype]
        with self.file.open("rb") as stream:
            stream.seek(at)
            data = bytearray(stream.read(n * dtype.itemsize))
        return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
