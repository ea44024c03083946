"""Named tensors in files of three kinds: header first, data when asked, never a whole file.

safetensors is mapped by its own library; `.bin` is torch's format, read as tensors alone so that no pickled
code runs (`pickles`); GGUF is dequantised row by row (`gguf_file`).
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3lib import gguf_file, pickles, plain_file
from eagle3lib.errors import InputError
from eagle3lib.folders import checkpoint_files, name_trouble

__all__ = [
    "TensorInfo", "checkpoint_files", "open_safetensors", "read_headers", "read_json", "read_rows", "read_tensor",
]  # fmt: skip

PICKLES = {".bin", ".pt", ".pth"}
#: What a file system answers that maps no files.
NO_MAP = {errno.ENODEV, errno.ENOMEM, errno.EINVAL}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor's header entry. `dtype` is the file's word for it: "BF16", "I64", "Q8_0", ...

    Attributes:
        name: as the file has it.
        rows: where a form stores several tensors as one, the rows that are this one.
        rotated_heads: where the file holds the rows of that many heads in llama.cpp's interleaved order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path
    rows: tuple[int, int] | None = None
    rotated_heads: int | None = None


@contextmanager
def open_safetensors(file: Path) -> Iterator:
    """A mapped safetensors file.

    Raises:
        InputError: if the file is missing, empty, truncated or not safetensors at all.
    """
    if not file.is_file():
        raise InputError(name_trouble(file) or f"Expected a safetensors file at {file}, found none; check the path.")
    try:
        if plain_file.wanted():
            yield plain_file.PlainFile(file)
            return
        with _mapped(file) as handle:
            yield handle
    except (SafetensorError, ValueError, RuntimeError, KeyError, OverflowError) as error:
        raise InputError(f"{file} is not a whole safetensors file ({_plain(error, file)}); copy it again.") from error


@contextmanager
def _mapped(file: Path) -> Iterator:
    """The file mapped, or read where its file system maps none."""
    try:
        opened = safe_open(file, framework="pt")
        handle = opened.__enter__()
    except OSError as error:
        if error.errno not in NO_MAP:
            raise
        yield plain_file.PlainFile(file)
        return
    try:
        yield handle
    finally:
        opened.__exit__(None, None, None)


def _plain(error: Exception, file: Path) -> str:
    """The library's message, and the one cause that people meet most often named."""
    with file.open("rb") as stream:
        head = stream.read(64)
    if head.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer: run `git lfs pull`"
    return f"{str(error).strip()}, {file.stat().st_size} bytes on disk"


def read_headers(files: list[Path]) -> dict[str, TensorInfo]:
    """Name, shape and dtype of every tensor, from the files' headers alone.

    Raises:
        InputError: if a file is missing or broken, or two files hold a tensor of one name.
    """
    infos: dict[str, TensorInfo] = {}
    for file in files:
        for info in _headers(file):
            if info.name in infos:
                raise InputError(
                    f"{file} and {infos[info.name].file.name} both hold {info.name}; keep the files of one"
                    " checkpoint in its folder, or the index that says which are."
                )
            infos[info.name] = info
    return infos


def _headers(file: Path) -> Iterator[TensorInfo]:
    if file.suffix in PICKLES:
        for name, tensor in pickles.tensors(file).items():
            yield TensorInfo(name, tuple(tensor.shape), pickles.dtype_name(tensor.dtype), file)
    elif file.suffix == ".gguf":
        for name, (shape, dtype) in gguf_file.open_gguf(file).shapes.items():
            yield TensorInfo(name, shape, dtype, file)
    else:
        with open_safetensors(file) as handle:
            for name in handle.keys():
                piece = handle.get_slice(name)
                yield TensorInfo(name, tuple(piece.get_shape()), piece.get_dtype(), file)


def read_tensor(info: TensorInfo) -> Tensor:
    """The tensor's data, as stored; from GGUF as float32, or as integers where they are.

    Raises:
        InputError: as `open_safetensors`.
    """
    if info.rows is None and info.rotated_heads is None:
        return _read(info, None)
    n_rows = info.shape[0]
    return read_rows(info, torch.arange(n_rows))


def read_rows(info: TensorInfo, rows: Tensor) -> Tensor:
    """Some rows of the tensor, in the order asked for; the rest of the file is not touched.

    Raises:
        InputError: as `open_safetensors`, or if a row is outside the tensor.
    """
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < info.shape[0]:
        raise InputError(
            f"Expected rows below {info.shape[0]} of {info.name} in {info.file}, found {int(rows.min())} .."
            f" {int(rows.max())}."
        )
    if info.rotated_heads is not None:
        rows = _interleaved(rows, info.shape[0], info.rotated_heads)
    if info.rows is not None:
        rows = rows + info.rows[0]
    return _read(info, rows)


def _interleaved(rows: Tensor, n_rows: int, heads: int) -> Tensor:
    """Where llama.cpp stores a row of a rotary projection.

    Its converter puts the two halves of a head one beside the other: row 2i + j of a head is what everyone
    else has at row j·d/2 + i (conversion/llama.py, `permute`).
    """
    head_dim = n_rows // heads
    head, within = rows // head_dim, rows % head_dim
    half, i = within // (head_dim // 2), within % (head_dim // 2)
    return head * head_dim + 2 * i + half


def _read(info: TensorInfo, rows: Tensor | None) -> Tensor:
    if info.file.suffix in PICKLES:
        whole = pickles.tensors(info.file)[info.name]
        return whole if rows is None else whole[rows]
    if info.file.suffix == ".gguf":
        return gguf_file.open_gguf(info.file).read(info.name, rows)
    with open_safetensors(info.file) as handle:
        if rows is not None and isinstance(handle, plain_file.PlainFile):
            return handle.get_rows(info.name, rows)
        mapped = handle.get_tensor(info.name)  # not read before it is used
        return mapped if rows is None else mapped[rows]


def read_json(file: Path) -> dict:
    """A JSON object from a file.

    Raises:
        InputError: if the file is missing, not JSON, or not an object.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(name_trouble(file) or f"Expected {file}, found no such file; check the path.") from None
    except (ValueError, RecursionError) as error:  # among them no UTF-8, and numbers of thousands of digits
        raise InputError(f"{file} is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise InputError(f"Expected a JSON object in {file}, found {type(data).__name__}.")
    return data
