"""Rotary position embedding of the draft's queries and keys."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def cos_sin(
    positions: Int[Tensor, " T"], head_dim: int, theta: float
) -> tuple[Float[Tensor, "T d"], Float[Tensor, "T d"]]:
    """Cosines and sines of every position, float32 (RoFormer, arXiv 2104.09864; half-split layout).

    angle[p, j] = p · theta^(-2j / d),   j = 0 .. d/2 - 1, repeated for the second half
    """
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.float()[:, None] * (theta**-exponents)[None, :]  # [T, d/2]
    angles = torch.cat([angles, angles], dim=-1)  # [T, d]
    return angles.cos(), angles.sin()


def rotate(x: Float[Tensor, "h T d"], cos: Float[Tensor, "T d"], sin: Float[Tensor, "T d"]) -> Float[Tensor, "h T d"]:
    """x · cos + half_turn(x) · sin, where half_turn maps (a, b) to (-b, a)."""
    first, second = x.chunk(2, dim=-1)
    half_turn = torch.cat([-second, first], dim=-1)
    return x * cos.to(x.dtype) + half_turn * sin.to(x.dtype)
