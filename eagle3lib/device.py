"""Where the pass computes."""

from __future__ import annotations

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
