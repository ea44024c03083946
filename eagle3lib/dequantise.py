"""A stored table as float32 rows: plain, or codes with scales whose shape says how they apply."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle3lib.errors import InputError
from eagle3lib.tensors import TensorInfo, read_rows, read_tensor

PLAIN = {"F64", "F32", "F16", "BF16"}
#: Types whose codes are numbers already, so that code times scale is the weight.
SCALED = {"F8_E4M3", "F8_E5M2", "I8"}
SCALES = ("weight_scale_inv", "weight_scale", "scale", "scales", "scale_inv")


@dataclass(frozen=True)
class Stored:
    """A table on disk: its shape, and the function that reads rows of it in float32."""

    shape: tuple[int, int]
    rows: Callable[[Tensor], Tensor]


def stored_matrix(info: TensorInfo, beside: Mapping[str, TensorInfo], quantization: Mapping[str, Any]) -> Stored:
    """The table of `info`, with what the file holds `beside` it by the ends of their names.

    weight[i, j] = code[i, j] · scale[i // b_row, j // b_col]; block sizes from `weight_block_size` of the
    quantisation's config, else 128, or whole rows or the whole table where the scale has that shape. DeepSeek's
    `weight_scale_inv` is, despite its name, the factor that codes are multiplied by.

    Raises:
        InputError: if the codes are packed, have no scale, or one whose shape fits no rule.
    """
    if info.dtype in PLAIN:
        return Stored(info.shape, lambda ids: read_rows(info, ids).float())
    packed = sorted(name for name in beside if name not in SCALES)
    scale_info = next((beside[name] for name in SCALES if name in beside), None)
    if info.dtype not in SCALED or packed or scale_info is None:
        found = f" with {', '.join(packed)}" if packed else "" if scale_info else " without a scale"
        raise InputError(
            f"{info.name} in {info.file} is {info.dtype} {list(info.shape)}{found}, which this reader cannot turn into"
            " numbers; give a copy of the target whose embedding and head are not quantised."
        )
    scale = read_tensor(scale_info).float()
    block = _block(info, scale, quantization)
    columns = torch.arange(info.shape[1]) // block[1]

    def rows(ids: Tensor) -> Tensor:
        # One gather of whole scale rows, then of columns: nothing of the table's own size is made.
        return read_rows(info, ids).float() * scale.reshape(_grid(info, block))[ids // block[0]][:, columns]

    return Stored(info.shape, rows)


def _grid(info: TensorInfo, block: tuple[int, int]) -> tuple[int, int]:
    return math.ceil(info.shape[0] / block[0]), math.ceil(info.shape[1] / block[1])


def _block(info: TensorInfo, scale: Tensor, quantization: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    n_rows, n_columns = info.shape
    if scale.numel() == 1:
        return n_rows, n_columns
    if scale.numel() == n_rows and scale.shape[0] == n_rows:
        return 1, n_columns
    stated = quantization.get("weight_block_size")
    block = (int(stated[0]), int(stated[1])) if isinstance(stated, list) and len(stated) == 2 else (128, 128)
    if tuple(scale.shape) == _grid(info, block):
        return block
    raise InputError(
        f"{info.name} in {info.file} is {list(info.shape)} and its scale {list(scale.shape)}, which fits neither rows"
        f" nor blocks of {block[0]} x {block[1]}; state weight_block_size in config.json's quantization_config."
    )
