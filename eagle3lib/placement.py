"""How the states of one dump lie to each other: angles, norms and least-squares maps between every two.

    angle(a, b) = median over tokens of arccos(a·b / ‖a‖‖b‖)

An angle knows no scale; `depth_order` puts states in order by it. Whether two states are of the same tokens at all
is asked by a least-squares map from one to the other, which a rotation or a change of basis does not disturb. And
two samples that begin with the same tokens name each other's states exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eagle3lib.boundaries import FINAL_NORMED, Boundary, in_depth_order
from eagle3lib.sample import Sample

#: Rows taken from a sample, evenly spread, and in all; reading stops there.
ROWS_PER_SAMPLE, ROWS = 128, 1024
#: Random directions that the least-squares maps see: few, so that some hundred rows fit them well.
DIRECTIONS = 32
#: Ridge of the maps, as a share of the rows.
RIDGE = 0.01
#: Below so many rows the maps say nothing: a fold of 128 rows fits 32 inputs with an error 35 % above the truth.
FEW_ROWS = 256
#: Tokens that two samples must begin with alike for one to name the other's states.
FEW_COMMON = 5


@dataclass(frozen=True, eq=False)
class Placement:
    """How the states of one dump lie to each other.

    Attributes:
        boundaries: as the dump states them, ascending; `final_normed` last where it is held.
        rows: tokens measured.
        angles: [B, B] degrees, the median over tokens.
        ratios: [B, B] median of ‖column‖ / ‖row‖.
        norms: [B] median norm.
        residuals: [B, B] share of the column's variance that a linear map from the row leaves, over its chance value
            for maps of as many rows; None where there are too few rows.
    """

    boundaries: tuple[Boundary, ...]
    rows: int
    angles: np.ndarray
    ratios: np.ndarray
    norms: np.ndarray
    residuals: np.ndarray | None


def spread_rows(sample: Sample, n: int) -> Tensor:
    """At most n row indices, evenly spread over the last seven eighths of the rows.

    Row 0 is an attention sink of another size, and a chat template's first rows are alike in every sample, so that
    they fit even where a state's rows are of another one.
    """
    held = min(len(state) for state in sample.states.values())
    first = max(1, held // 8)
    return torch.linspace(first, held - 1, min(n, held - first)).long() if held > first else torch.zeros(0).long()


def place(samples: Iterable[Sample]) -> Placement | None:
    """Measure how the states of a dump lie to each other; None where no row is fit to be measured.

    Rows with a value that is not finite, or of zeros only, are left out. Memory is one block of `ROWS_PER_SAMPLE`
    rows of every boundary, whatever the length and number of samples.
    """
    boundaries: tuple[Boundary, ...] = ()
    cosines, sketches, norms = [], [], []
    for unit, norm, held in _unit_rows(samples):
        boundaries = held
        cosines.append(torch.einsum("anh,bnh->nab", unit, unit))
        sketches.append(unit @ _directions(unit.shape[-1]))
        norms.append(norm)
        if sum(n.shape[1] for n in norms) >= ROWS:
            break
    if not norms:
        return None
    length = torch.cat(norms, 1)  # [B, N]
    angle = torch.rad2deg(torch.cat(cosines).clamp(-1, 1).arccos())
    return Placement(
        boundaries,
        rows=length.shape[1],
        angles=angle.median(0).values.numpy(),
        ratios=torch.stack([(length / own).median(1).values for own in length]).numpy(),
        norms=length.median(1).values.numpy(),
        residuals=_residuals(torch.cat(sketches, 1)) if length.shape[1] >= FEW_ROWS else None,
    )


@dataclass(frozen=True)
class Identity:
    """A state named by a sample of the same model that begins with the same tokens and holds more boundaries.

    Attributes:
        nearest: the reference's boundary that the state is nearest to.
        angle: degrees to it, and to the reference's next nearest.
        rows: tokens in common, the first left out.
    """

    boundary: int
    nearest: int
    angle: float
    next_angle: float
    rows: int


def identify(sample: Sample, reference: Sample) -> list[Identity]:
    """Each state of `sample` held against every state of `reference` over the tokens with which both begin.

    States of a causal model depend on earlier tokens only, so over a common beginning (a chat template's, a system
    prompt) they are equal to rounding, whatever follows. Empty where fewer than `FEW_COMMON` tokens are in common.
    """
    rows = min(len(state) for s in (sample, reference) for state in s.states.values())
    common = min(sample.common_tokens(reference), rows, ROWS_PER_SAMPLE)
    ids = [b for b in reference.states if b != FINAL_NORMED]
    if common < FEW_COMMON or len(ids) < 2:
        return []
    known = torch.stack([reference.states[b][1:common].float() for b in ids])
    found = []
    for boundary, state in sample.states.items():
        if boundary != FINAL_NORMED:
            cosine = torch.cosine_similarity(state[1:common].float(), known, dim=-1)
            near = torch.rad2deg(cosine.clamp(-1, 1).arccos()).median(1).values.sort()
            found.append(
                Identity(boundary, ids[near.indices[0]], float(near.values[0]), float(near.values[1]), common - 1)
            )
    return found


def _unit_rows(samples: Iterable[Sample]) -> Iterator[tuple[Tensor, Tensor, tuple[Boundary, ...]]]:
    """Chosen rows of each sample at unit length [B, n, H], their norms [B, n], and the boundaries of axis 0."""
    for sample in samples:
        boundaries = in_depth_order(sample.states)
        rows = spread_rows(sample, ROWS_PER_SAMPLE)
        states = torch.stack([sample.states[b][rows].float() for b in boundaries])
        norm = states.norm(dim=-1)
        fit = (norm.isfinite() & (norm > 0)).all(0)
        if fit.any():
            yield states[:, fit].div_(norm[:, fit, None]), norm[:, fit], boundaries


def _directions(hidden: int) -> Float[Tensor, "H D"]:
    return torch.randn(hidden, DIRECTIONS, generator=torch.Generator().manual_seed(0)) / DIRECTIONS**0.5


def _residuals(sketch: Float[Tensor, "B N D"]) -> np.ndarray:
    """Each state from each by ridge regression, fitted on one half of the rows and judged on the other.

        W = (XᵀX + λ n I)⁻¹ Xᵀ Y,    residual = ‖Y' - X'W‖² / ‖Y'‖²,    by chance n / (n - D - 1)

    Halves are made of alternate quarters, so that neighbouring tokens seldom stand in both.
    """
    n_states, n_rows, width = sketch.shape
    fold = (torch.arange(n_rows) * 4 // n_rows) % 2 == 0
    total = np.zeros((n_states, n_states))
    for fit, judge in ((fold, ~fold), (~fold, fold)):
        mean, deviation = sketch[:, fit].mean(1, keepdim=True), sketch[:, fit].std(1, keepdim=True) + 1e-6
        scaled = (sketch - mean) / deviation
        x, n = scaled[:, fit], int(fit.sum())
        targets = x.transpose(0, 1).reshape(n, -1)  # [n, B·D]: every state at once
        truth = scaled[:, judge]
        for i in range(n_states):
            maps = torch.linalg.solve(x[i].T @ x[i] + RIDGE * n * torch.eye(width), x[i].T @ targets)
            guess = (truth[i] @ maps).reshape(-1, n_states, width).transpose(0, 1)
            left = (truth - guess).square().sum((1, 2)) / truth.square().sum((1, 2))
            total[i] += left.numpy() / (n / (n - width - 1)) / 2
    return total
