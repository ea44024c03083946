"""Rotary position embedding of the draft's queries and keys (RoFormer, arXiv 2104.09864), stretched or not.

    f_j      = theta^(-2j / r),  j = 0 .. r/2 - 1          r turned dimensions of a head
    angle    = (position) · f'_j                           f' by the kind: see `frequencies`
    (a, b)   → (a cos - b sin, b cos + a sin) · magnitude  pairs (j, j + r/2), or (2j, 2j + 1) if interleaved

The kinds and their numbers are those of transformers' `modeling_rope_utils`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eagle3lib.config import Rope


def cos_sin(
    positions: Int[Tensor, " T"], rope: Rope, dim: int, length: int | None = None
) -> tuple[Float[Tensor, "T r/2"], Float[Tensor, "T r/2"]]:
    """Cosines and sines of every position for `dim` turned dimensions, float32, times the magnitude.

    Args:
        length: positions of the whole sequence, for the kinds that depend on it; None for the last given one's.
    """
    if length is None:
        length = int(positions.max()) + 1 if len(positions) else 0
    f = frequencies(rope, dim, rope.length or length).to(positions.device)
    angles = positions.float()[:, None] * f  # [T, r/2]
    m = magnitude(rope)
    return angles.cos() * m, angles.sin() * m


def rotate(
    x: Float[Tensor, "h T d"],
    cos: Float[Tensor, "T r/2"],
    sin: Float[Tensor, "T r/2"],
    interleaved: bool = False,
) -> Float[Tensor, "h T d"]:
    """Each pair of the first r dimensions turned by its angle; the other dimensions stay."""
    turned, rest = x.split([2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    pairs = a * cos - b * sin, b * cos + a * sin
    turned = torch.stack(pairs, dim=-1).flatten(-2) if interleaved else torch.cat(pairs, dim=-1)
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def frequencies(rope: Rope, dim: int, length: int) -> Float[Tensor, " r/2"]:
    """f' of each pair, in radians a position.

    linear    f / factor                                                       (position interpolation)
    dynamic   theta · (factor · n / original - factor + 1)^(r / (r - 2)) in theta's place, n = max(length, original)
    llama3    f where the wavelength is short, f / factor where long, a mix between
    yarn      the same mix on a ramp over dimensions (arXiv 2309.00071)
    longrope  f / short_j up to the original length, f / long_j beyond (arXiv 2402.13753)
    """
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    if rope.kind == "dynamic":
        n = max(length, rope.original_length)
        stretch = rope.factor * n / rope.original_length - (rope.factor - 1)
        return 1.0 / (rope.theta * stretch ** (dim / (dim - 2))) ** exponents
    f = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return f / rope.factor
    if rope.kind == "longrope":
        factors = rope.long_factors if length > rope.original_length else rope.short_factors
        return 1.0 / (torch.tensor(factors) * rope.theta**exponents)
    if rope.kind == "llama3":
        turns = rope.original_length * f / (2 * math.pi)  # within the original length
        kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        return _mixed(f, rope.factor, kept.clamp(0, 1))
    if rope.kind == "yarn":
        return _mixed(f, rope.factor, _yarn_kept(rope, dim))
    return f


def magnitude(rope: Rope) -> float:
    """What cosines and sines are multiplied by, so that stretched positions keep the scores' size."""
    if rope.magnitude is not None:
        return rope.magnitude
    if rope.kind == "yarn":
        if rope.mscale and rope.mscale_all_dim:
            return yarn_scale(rope.factor, rope.mscale) / yarn_scale(rope.factor, rope.mscale_all_dim)
        return yarn_scale(rope.factor, 1.0)
    if rope.kind == "longrope" and rope.factor > 1:
        return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_length))
    return 1.0


def yarn_scale(factor: float, weight: float) -> float:
    """0.1 · weight · ln(factor) + 1, and 1 where nothing is stretched."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _mixed(f: Float[Tensor, " r/2"], factor: float, kept: Float[Tensor, " r/2"]) -> Float[Tensor, " r/2"]:
    """f where `kept` is 1, f / factor where it is 0."""
    return (1 - kept) * f / factor + kept * f


def _yarn_kept(rope: Rope, dim: int) -> Float[Tensor, " r/2"]:
    """1 for pairs that turn `beta_fast` times or more within the original length, 0 below `beta_slow`."""

    def pair(turns: float) -> float:  # which pair turns that often
        return dim * math.log(rope.original_length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 * (low == high)
    return 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
