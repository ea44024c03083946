"""Our own layout for dumps: one safetensors file a sample, which says what it holds.

`sample_{i:06d}.safetensors` holds
    token_ids       [T]     int64
    loss_mask       [T]     bool or uint8: the target generated the token
    boundary.{k}    [R, H]  B(k), the states of the first R tokens; R is T or T - 1
    final_normed    [R, H]  norm(B(n)), optional
    token_logprobs  [T]     float32, the target's log-probability of each token, NaN where unknown; optional
and in its metadata `format` = "eagle3lib", `version` = "1", and optionally `temperature`, `model`, `dtype_run` (of the
run that made the states) and `engine`. The reader is `ecosystems.own_dumps`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import save_file
from torch import Tensor

from eagle3lib.boundaries import FINAL_NORMED, Boundary, parse_boundary
from eagle3lib.errors import InputError

FORMAT, VERSION = "eagle3lib", "1"
FILE_NAME = "sample_{:06d}.safetensors"
STATE = "boundary."


def state_key(boundary: Boundary) -> str:
    """`boundary.3` for 3, `final_normed` for the normed last state."""
    return FINAL_NORMED if boundary == FINAL_NORMED else f"{STATE}{boundary}"


def state_boundary(key: str) -> Boundary | None:
    """The inverse of `state_key`; None for a tensor that is no state."""
    if key == FINAL_NORMED:
        return FINAL_NORMED
    try:
        return parse_boundary(key.removeprefix(STATE)) if key.startswith(STATE) else None
    except ValueError:
        return None


def write_sample(
    folder: Path | str,
    index: int,
    token_ids: Int[Tensor, " T"],
    loss_mask: Bool[Tensor, " T"],
    states: Mapping[Boundary, Float[Tensor, "R H"]],
    *,
    logprobs: Float[Tensor, " T"] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write one sample, under its final name only once it is whole, so that an interrupted run can go on.

    Args:
        metadata: beside format and version, such as temperature, model, dtype_run, engine.

    Raises:
        InputError: if the sizes do not fit each other.
    """
    n = len(token_ids)
    rows = {tuple(state.shape) for state in states.values()}
    if len(loss_mask) != n or (logprobs is not None and len(logprobs) != n):
        raise InputError(f"Sample {index} has {n} tokens and a mask or log-probabilities of another length.")
    if len(rows) != 1 or len(shape := next(iter(rows))) != 2 or shape[0] not in (n, n - 1):
        raise InputError(
            f"Sample {index} has {n} tokens; each state must be [{n} or {n - 1}, H], found {sorted(rows)}."
        )
    tensors = {"token_ids": token_ids.long(), "loss_mask": loss_mask.bool()}
    tensors |= {state_key(boundary): state for boundary, state in states.items()}
    if logprobs is not None:
        tensors["token_logprobs"] = logprobs.float()
    # Clones, since the format takes no two tensors of one storage, as slices of a stack are.
    tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    file = Path(folder) / FILE_NAME.format(index)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    save_file(tensors, unfinished, metadata={**(metadata or {}), "format": FORMAT, "version": VERSION})
    return unfinished.replace(file)
