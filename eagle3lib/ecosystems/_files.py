"""The files of a dump's folder, found one by one: a folder may hold a million."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lib.errors import InputError

#: Names sorted at a time: smaller folders come in the order of their names.
CHUNK = 4096


def by_length(name: str) -> tuple[int, str]:
    """Sorts data_2 before data_10."""
    return len(name), name


def named(folder: Path, prefix: str, suffix: str | tuple[str, ...]) -> Iterator[Path]:
    """Files by their names' ends; hidden ones are left out. Sorted as far as `CHUNK` reaches, and not listed before."""
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        names = (e.name for e in entries if e.name.startswith(prefix) and e.name.endswith(suffix))
        names = (name for name in names if not name.startswith("."))
        while chunk := sorted(islice(names, CHUNK), key=by_length):
            yield from (folder / name for name in chunk)


def numbered(folder: Path, pattern: str) -> Iterator[Path]:
    """Files `pattern.format(i)` by number, without a list of the folder until a number is missing."""
    for i in count():
        file = folder / pattern.format(i)
        if not file.exists():
            break
        yield file
    prefix, suffix = pattern.split("{", 1)[0], pattern.rsplit("}", 1)[1]
    rest = (file for file in named(folder, prefix, suffix) if number(file, strict=False) > i)
    yield from sorted(rest, key=lambda file: by_length(file.name))


def number(file: Path, *, strict: bool = True) -> int:
    """The i at the end of a name such as `hs_{i}.safetensors`.

    Raises:
        InputError: if there is none and `strict`; otherwise such files come last.
    """
    digits = file.stem.rsplit("_", 1)[-1]
    if digits.isdecimal() and len(digits) < 20:
        return int(digits)
    if strict:
        raise InputError(f"Expected a number at the end of the name of {file}, found {digits[:40]!r}.")
    return 1 << 62


def dictionary(data: Any, where: Path | str) -> dict:
    """A file's content where it is a dictionary.

    Raises:
        InputError: if it is anything else.
    """
    if not isinstance(data, dict):
        raise InputError(f"Expected a dictionary of tensors in {where}, found {type(data).__name__}.")
    return data


def entry(data: dict, key: str, where: Path | str, kind: type = Tensor) -> Any:
    """An entry of a dictionary from a file.

    Raises:
        InputError: if it is missing or of another kind.
    """
    found = data.get(key)
    if not isinstance(found, kind):
        raise InputError(f"Expected {key} as a {kind.__name__} in {where}, found {type(found).__name__}.")
    return found


def token_row(tensor: Tensor, what: str, where: Path | str, length: int | None = None) -> Tensor:
    """Ids, a mask or numbers by token: one axis, behind a batch axis of one perhaps.

    Raises:
        InputError: if there are more axes, or another number of tokens than `length`.
    """
    row = tensor[0] if tensor.ndim == 2 and tensor.shape[0] == 1 else tensor
    if row.ndim != 1 or (length is not None and len(row) != length):
        expected = f"[{length}]" if length is not None else "one axis"
        raise InputError(f"Expected {expected} for the {what} in {where}, found {list(tensor.shape)}.")
    return row


def token_row_ids(tensor: Tensor, where: Path | str) -> Tensor:
    """Token ids [T].

    Raises:
        InputError: if they are no whole numbers, below 0, or none at all.
    """
    row = token_row(tensor, "token ids", where)
    fractional = row.is_floating_point() or row.is_complex() or row.dtype == torch.bool
    if fractional or not len(row) or int(row.min()) < 0:
        raise InputError(f"Expected whole token ids from 0 up in {where}, found {list(row.shape)} of {row.dtype}.")
    return row.long()


def token_mask(tensor: Tensor, where: Path | str, length: int) -> Tensor:
    """A loss mask [T].

    Raises:
        InputError: if it has another length than the tokens, or holds anything but 0 and 1, as labels do.
    """
    if tensor.ndim == 1 and len(tensor) != length:
        raise InputError(f"{where} holds {length} ids and a loss mask of {len(tensor)}; they must agree.")
    row = token_row(tensor, "loss mask", where, length)
    if not bool(((row == 0) | (row == 1)).all()):
        raise InputError(f"Expected a loss mask of zeros and ones in {where}, found others; store it, not labels.")
    return row.bool()
