"""torch's own files (`pytorch_model.bin`) as tensors alone: no pickled code ever runs."""

from __future__ import annotations

import pickle
import warnings
from functools import lru_cache
from pathlib import Path

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

#: What torch raises of a file that is broken, no archive, or more than tensors.
BROKEN = (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError, IndexError)


def dtype_name(dtype: torch.dtype) -> str:
    """ "BF16" of `torch.bfloat16`."""
    return DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a state dictionary, mapped where the file allows it.

    A dictionary around it, as trainers write (`{"model": {...}, "step": 7}`), is opened.

    Raises:
        InputError: if the file is missing, broken, holds no state dictionary, or needs pickled code to load.
    """
    if not file.is_file():
        raise InputError(name_trouble(file) or f"Expected a file at {file}, found none; check the path.")
    stat = file.stat()
    return _tensors(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _tensors(file: Path, changed: int, size: int) -> dict[str, Tensor]:
    data = _load(file)
    for key in ("state_dict", "model_state_dict", "model", "module"):
        if isinstance(data, dict) and isinstance(data.get(key), dict):
            data = data[key]
            break
    found = {name: value for name, value in data.items() if isinstance(value, Tensor)} if isinstance(data, dict) else {}
    if not found:
        raise InputError(f"Expected a dictionary of tensors in {file}, found {type(data).__name__} without any.")
    return found


def _load(file: Path):
    reason = ""
    for mapped in (True, False):  # files of torch before 1.6 are no archives and cannot be mapped
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on pickle protocols; what cannot be read is refused below
                return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except BROKEN as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            reason = reason if "mmap" in words[0] else words[0]
    with file.open("rb") as stream:
        if stream.read(64).startswith(b"version https://git-lfs"):
            reason = "it is a git-lfs pointer: run `git lfs pull`"
    raise InputError(
        f"{file} cannot be read as tensors alone ({reason[:200]}), and pickled code is never run; copy it again, or"
        " save its state dictionary as safetensors."
    )
