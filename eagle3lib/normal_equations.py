"""Ridge regression of `fc` from streamed rows: their sums in float64, and the columns that a penalty gives.

    W = argmin Σ_t ω_t² ‖g_t - W x_t‖²  +  λ Σ_t ω_t² Σ_c s_c² ‖W_c - W0_c‖²,     s_c² = Σ ω² x_c² / Σ ω²

that is ridge in channels of one size, shrunk towards W0 instead of zero (Hoerl and Kennard 1970). With D = W - W0 in
channels scaled by s, and the residual r = g - W0 x, the normal equations are (X̃ᵀX̃ / Σω² + λ) D̃ = X̃ᵀR / Σω².
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eagle3lib.errors import InputError

#: Rows that are held in float64 at a time.
ROW_BLOCK = 1024
#: Steps of the power iterations behind a condition number.
POWER_STEPS = 60

Rows = tuple[Float[Tensor, "P D"], Float[Tensor, "P H"], Float[Tensor, " P"]]  # x, g, ω


@dataclass(eq=False)
class NormalEquations:
    """Sums over all rows, scaled: a D x D and a D x H matrix whatever the number of rows.

    Attributes:
        gram: [D, D] X̃ᵀX̃ / Σω², whose diagonal is one, or zero where a channel always is.
        cross: [D, H] X̃ᵀR / Σω².
        scale: [D] each channel's rms s; one where a channel is always zero, whose columns stay as they were.
        rows: how many, of which `bounded` have ω < 1.
    """

    start: Float[Tensor, "H D"]
    gram: Float[Tensor, "D D"]
    cross: Float[Tensor, "D H"]
    scale: Float[Tensor, " D"]
    rows: int
    bounded: int

    def solve(self, penalty: float) -> Float[Tensor, "H D"]:
        """W for one λ, float64.

        Raises:
            InputError: if the matrix is not positive definite, as with a penalty near zero and a repeated slot.
        """
        moved = torch.cholesky_solve(self.cross, self._factor(penalty)).div_(self.scale[:, None])  # [D, H]
        return moved.T.add_(self.start)

    def condition(self, penalty: float) -> float:
        """λ_max / λ_min of the matrix that is solved, by power iterations: right to a few per cent."""
        factor = self._factor(penalty)
        smallest = 1 / self._top(lambda v: torch.cholesky_solve(v[:, None], factor)[:, 0])
        return self._top(lambda v: self.gram @ v + penalty * v) / smallest

    def _factor(self, penalty: float) -> Float[Tensor, "D D"]:
        """The Cholesky factor with the penalty on the diagonal, which is put back after."""
        diagonal = self.gram.diagonal().clone()
        self.gram.diagonal().add_(penalty)
        factor, failed = torch.linalg.cholesky_ex(self.gram)
        self.gram.diagonal().copy_(diagonal)
        if int(failed):
            raise InputError(f"The served states leave fc undetermined at the penalty {penalty:g}; name a larger one.")
        return factor

    def _top(self, times: Callable[[Tensor], Tensor]) -> float:
        """The largest eigenvalue of a symmetric positive map."""
        v = torch.randn(len(self.gram), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        v = v.to(self.gram.device)
        for _ in range(POWER_STEPS):
            v = times(v / v.norm())
        return float(v.norm())


def bytes_needed(inputs: int, outputs: int) -> int:
    """Memory of a fit: the normal matrix and its factor, three blocks of D x H, in float64."""
    return 8 * (2 * inputs**2 + 3 * inputs * outputs)


@torch.no_grad()
def collect(rows: Iterable[Rows], start: Float[Tensor, "H D"]) -> NormalEquations:
    """The normal equations of streamed rows, W0 being `start`.

    Raises:
        InputError: if there is no row, or a value is not finite.
    """
    outputs, inputs = start.shape
    wide = {"dtype": torch.float64, "device": start.device}
    gram, cross = torch.zeros(inputs, inputs, **wide), torch.zeros(inputs, outputs, **wide)
    first, weight, count, bounded = start.double().T, 0.0, 0, 0
    for x, g, share in rows:
        for own_x, own_g, own_share in zip(*(part.split(ROW_BLOCK) for part in (x, g, share)), strict=True):
            omega = own_share.double()[:, None]
            scaled = omega * own_x.double()
            gram.addmm_(scaled.T, scaled)
            cross.addmm_(scaled.T, omega * own_g.double() - scaled @ first)
            weight += float(omega.square().sum())
        count, bounded = count + len(x), bounded + int((share < 1).sum())
    if not count or not bool(cross.isfinite().all()):
        found = "a value that is not finite; notebook 02 names where" if count else "none"
        raise InputError(f"Expected states to fit fc from, found {found}.")
    scale = (gram.diagonal() / weight).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    gram.div_(weight).div_(scale[:, None]).div_(scale)
    cross.div_(weight).div_(scale[:, None])
    return NormalEquations(start, gram, cross, scale, count, bounded)
