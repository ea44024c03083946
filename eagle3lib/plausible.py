"""Values of a kind that no reader of a draft expects, said before any of them is computed with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.tensors import TensorInfo

#: Entries of config.json that are numbers wherever they are given.
NUMBERS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers",
    "rms_norm_eps", "vocab_size", "draft_vocab_size", "target_hidden_size", "rope_theta", "max_position_embeddings",
    "sliding_window", "num_aux_hidden_states", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim",
    "v_head_dim",
)  # fmt: skip
#: Entries that are sections of their own.
SECTIONS = ("rope_parameters", "rope_scaling")
MATRIX = re.compile(r"(fc|lm_head|embed_tokens)\.weight|layers\.\d+\.(self_attn|mlp)\.\w*_proj(_with_mqa)?\.weight")
VECTOR = re.compile(r"d2t|t2d|(.*norm.*)\.weight|.*\.bias")


def expect_numbers(path: Path, config: Mapping[str, Any]) -> None:
    """Complain of a size or constant that is no positive number, or a section that is none; null is absence.

    Raises:
        InputError: naming the entry and what it holds.
    """
    for name in NUMBERS:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise InputError(f"Expected a positive number for {name} in the config of {path}, found {value!r}.")
    for name in SECTIONS:
        if not isinstance(value := config.get(name), dict | None):
            raise InputError(f"Expected an object for {name} in the config of {path}, found {value!r}.")


def expect_ranks(path: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """Complain of a matrix that is a vector, or the other way round.

    Raises:
        InputError: naming the tensor and its shape.
    """
    for name, info in tensors.items():
        rank = 2 if MATRIX.fullmatch(name) else 1 if VECTOR.fullmatch(name) else None
        if rank is not None and (len(info.shape) != rank or 0 in info.shape):
            kind = "a matrix" if rank == 2 else "a vector"
            raise InputError(f"Expected {kind} for {info.name} in {path}, found the shape {list(info.shape)}.")
