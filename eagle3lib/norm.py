"""Root-mean-square norm."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def rms_norm(x: Float[Tensor, "*T H"], weight: Float[Tensor, " H"], eps: float) -> Float[Tensor, "*T H"]:
    """rms(x) · weight, statistics in float32, cast back before the product as Llama does.

    rms(x) = x / sqrt(mean(x²) + eps)                                          (arXiv 1910.07467)
    """
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)
