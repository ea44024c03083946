"""Where the pass computes."""

from __future__ import annotations

from pathlib import Path

import torch

from eagle3lib.errors import InputError


def resolve_device(device: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU.

    Raises:
        InputError: if CUDA is asked for and absent, or the word is no device.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise InputError(f"Expected a device such as cpu, cuda or cuda:1, found {device!r}.") from None
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"The device {device!r} was asked for and torch finds no CUDA device; use --device cpu.")
    return resolved


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be taken there; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    told = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return int(told.split()[1]) * 1024 if told else None
