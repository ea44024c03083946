"""GGUF files: the header in milliseconds, rows dequantised when asked, token texts only when read.

gguf's own reader makes one object an array element, seconds for a vocabulary and its merges. The one here
walks over arrays without reading them and decodes a list of strings when its `contents` are wanted.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.folders import name_trouble


class GGUFFile:
    """An open GGUF file.

    Attributes:
        shapes: name → (shape as torch has it, type's name) of every tensor.
    """

    def __init__(self, path: Path) -> None:
        import gguf  # here, since only GGUF files pay for its import

        self.path = path
        self._dequantize = gguf.quants.dequantize
        self._integers = {gguf.GGMLQuantizationType[n] for n in ("I8", "I16", "I32", "I64")}
        self._string = gguf.GGUFValueType.STRING
        try:
            self._reader = _lazy_reader()(path)
        except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError, struct.error) as error:
            raise InputError(f"{path} is not a whole GGUF file ({error}); copy it again.") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.shapes = {
            name: (tuple(int(n) for n in reversed(tensor.shape)), tensor.tensor_type.name)
            for name, tensor in self._tensors.items()
        }

    def has(self, key: str) -> bool:
        """Whether the header has this field."""
        return key in self._reader.fields

    def value(self, key: str) -> Any:
        """A field of the header.

        Raises:
            InputError: if the file lacks it.
        """
        field = self._reader.fields.get(key)
        if field is None:
            raise InputError(f"Expected the field {key} in {self.path}, found none.")
        if field.types[1:] == [self._string] and self._reader.byte_order == "I":
            return _strings(field.parts[-1])
        return field.contents()

    def read(self, name: str, rows: Tensor | None = None) -> Tensor:
        """A tensor or some of its rows, float32; integers stay integers.

        Raises:
            InputError: if the file lacks it.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            raise InputError(f"Expected the tensor {name} in {self.path}, found none.")
        data = tensor.data if rows is None else tensor.data[rows.numpy()]
        if tensor.tensor_type in self._integers:
            return torch.from_numpy(data.copy())
        return torch.from_numpy(self._dequantize(data, tensor.tensor_type).copy())


def open_gguf(path: Path) -> GGUFFile:
    """The file at `path`; the same object as long as the file does not change.

    Raises:
        InputError: if it is missing or broken.
    """
    if not path.is_file():
        raise InputError(name_trouble(path) or f"Expected a GGUF file at {path}, found none; check the path.")
    stat = path.stat()
    return _open(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _open(path: Path, changed: int, size: int) -> GGUFFile:
    return GGUFFile(path)


@lru_cache(maxsize=1)
def _lazy_reader() -> type:
    import numpy as np
    from gguf import GGUFReader, GGUFValueType

    class LazyReader(GGUFReader):
        """gguf's reader, except that an array is one part whatever its length."""

        def _get_field_parts(self, orig_offs: int, raw_type: int):
            swapped = self.byte_order != "I"
            if raw_type != GGUFValueType.ARRAY or swapped:  # another byte order is rare enough to be slow
                return super()._get_field_parts(orig_offs, raw_type)
            kind = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
            length = int(self._get(orig_offs + 4, np.uint64)[0])
            begin = orig_offs + 12
            if (scalar := self.gguf_scalar_to_np.get(kind)) is not None:
                values = self._get(begin, scalar, length)
                return 12 + values.nbytes, [values], [0], [GGUFValueType.ARRAY, kind]
            if kind != GGUFValueType.STRING:
                return super()._get_field_parts(orig_offs, raw_type)
            end, size_of = begin, struct.Struct("<Q").unpack_from
            buffer = memoryview(self.data)
            for _ in range(length):
                end += 8 + size_of(buffer, end)[0]
            return end - orig_offs, [self.data[begin:end]], [0], [GGUFValueType.ARRAY, kind]

    return LazyReader


def _strings(block) -> list[str]:
    """The strings of an array as GGUF stores them: a length in eight bytes, then UTF-8."""
    data, at, found = block.tobytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        found.append(data[at + 8 : at + 8 + length].decode("utf-8", errors="replace"))
        at += 8 + length
    return found
