"""Named tensors in safetensors files: header first, data when asked, never the whole file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3lib.errors import InputError


@dataclass(frozen=True)
class TensorInfo:
    """One tensor's header entry. `dtype` is the file's word for it: "BF16", "I64", ..."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path


@contextmanager
def open_safetensors(file: Path) -> Iterator:
    """A mapped safetensors file.

    Raises:
        InputError: if the file is missing, empty, truncated or not safetensors at all.
    """
    if not file.is_file():
        raise InputError(f"Expected a safetensors file at {file}, found none; check the path.")
    try:
        with safe_open(file, framework="pt") as handle:
            yield handle
    except SafetensorError as error:
        raise InputError(f"{file} is not a whole safetensors file ({_plain(error, file)}); copy it again.") from error


def _plain(error: SafetensorError, file: Path) -> str:
    """The library's message, and the one cause that people meet most often named."""
    with file.open("rb") as stream:
        head = stream.read(64)
    if head.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer: run `git lfs pull`"
    return f"{str(error).strip()}, {file.stat().st_size} bytes on disk"


def checkpoint_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder: those its index names, else the single file.

    Raises:
        InputError: if there is none, or if the index names a file that is absent or outside the folder.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        for name in names:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise InputError(f"{index} names the shard {name!r}, which is outside the folder; refused.")
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        raise InputError(f"Expected a .safetensors file in {folder}, found {found}.")
    return files


def read_headers(files: list[Path]) -> dict[str, TensorInfo]:
    """Name, shape and dtype of every tensor, from the files' headers alone.

    Raises:
        InputError: as `open_safetensors`.
    """
    infos: dict[str, TensorInfo] = {}
    for file in files:
        with open_safetensors(file) as handle:
            for name in handle.keys():
                piece = handle.get_slice(name)
                infos[name] = TensorInfo(name, tuple(piece.get_shape()), piece.get_dtype(), file)
    return infos


def read_tensor(info: TensorInfo) -> Tensor:
    """The tensor's data, as stored.

    Raises:
        InputError: as `open_safetensors`.
    """
    with open_safetensors(info.file) as handle:
        return handle.get_tensor(info.name)


def read_json(file: Path) -> dict:
    """A JSON object from a file.

    Raises:
        InputError: if the file is missing, not JSON, or not an object.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"Expected {file}, found no such file; check the path.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{file} is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise InputError(f"Expected a JSON object in {file}, found {type(data).__name__}.")
    return data
