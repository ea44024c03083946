"""torch's own files (`.bin`, `.pt`, `.ckpt`) as tensors alone: no pickled code ever runs.

Before a file is loaded its archive is looked through: deflated entries and sizes beyond the file's own are
refused, so that nothing can grow in memory; after it, tensors that show more than they store.
"""

from __future__ import annotations

import warnings
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.folders import name_trouble

#: safetensors' words for torch's dtypes, so that a ledger reads the same whatever the file.
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip

#: How deep a file's lists and dictionaries may be nested: a list of samples of lists of states.
DEPTH = 6


def dtype_name(dtype: torch.dtype) -> str:
    """ "BF16" of `torch.bfloat16`."""
    return DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a state dictionary, mapped where the file allows it.

    A dictionary around it, as trainers write (`{"model": {...}, "step": 7}`), is opened.

    Raises:
        InputError: as `read`, or if the file holds no state dictionary.
    """
    if not file.is_file():
        raise InputError(name_trouble(file) or f"Expected a file at {file}, found none; check the path.")
    stat = file.stat()
    return _tensors(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _tensors(file: Path, changed: int, size: int) -> dict[str, Tensor]:
    data = read(file)
    for key in ("state_dict", "model_state_dict", "model", "module"):
        if isinstance(data, dict) and isinstance(data.get(key), dict):
            data = data[key]
            break
    found = {name: value for name, value in data.items() if isinstance(value, Tensor)} if isinstance(data, dict) else {}
    if not found:
        raise InputError(f"Expected a dictionary of tensors in {file}, found {type(data).__name__} without any.")
    return found


def read(file: Path, name: Path | None = None) -> Any:
    """What `torch.save` wrote: tensors, mapped where the file allows it, in lists and dictionaries.

    Args:
        name: what messages call the file, where it is another file's unpacked content.

    Raises:
        InputError: if the file is missing, broken, needs pickled code to load, is compressed inside, or holds a
            tensor that shows more than it stores.
    """
    name = name or file
    if not file.is_file():
        raise InputError(name_trouble(name) or f"Expected a file at {name}, found none; check the path.")
    mapped, reason = _archive(file)
    if not reason:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on pickle protocols; what cannot be read is refused below
                data = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
            reason = _content_trouble(data, DEPTH)
        except Exception as error:  # whatever torch raises of a file is the file's fault
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if not reason:
        return data
    with file.open("rb") as stream:
        if stream.read(64).startswith(b"version https://git-lfs"):
            reason = "it is a git-lfs pointer: run `git lfs pull`"
    raise InputError(
        f"{name} cannot be read as tensors alone ({reason[:200]}), and pickled code is never run; copy it again, or"
        " save its tensors as safetensors where it was written."
    )


def _archive(file: Path) -> tuple[bool, str]:
    """Whether a file is an archive, which can be mapped (those of torch before 1.6 are none), and what is wrong with
    it, "" where nothing is."""
    try:
        if not zipfile.is_zipfile(file):
            return False, ""
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        return True, f"its archive is broken: {error}"
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        return True, "its archive is compressed, as torch never writes it"
    if sum(entry.file_size for entry in entries) > file.stat().st_size:
        return True, "its archive claims to hold more than the file does"
    return True, ""


def _content_trouble(data: Any, depth: int) -> str:
    """What in the content is neither a plain tensor nor text and numbers, "" where nothing is."""
    if depth == 0:
        return "it is nested too deep"
    if isinstance(data, Tensor):
        plain = type(data) in (Tensor, torch.nn.Parameter) and data.layout == torch.strided
        if not plain or data.dtype not in DTYPES or data.device.type != "cpu":
            return f"it holds a tensor of a kind that is not read: {data.dtype}, {data.layout}"
        if data.numel() * data.element_size() > (stored := data.untyped_storage().nbytes()):
            return f"it holds a tensor {list(data.shape)} that shows more than the {stored} bytes stored"
        return ""
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ()
    return next((trouble for part in parts if (trouble := _content_trouble(part, depth - 1))), "")
