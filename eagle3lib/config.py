"""What a draft's pass does, in the field's names. Filled from tensor shapes first and config.json second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from eagle3lib.boundaries import Wiring

InputNorm = Literal["none", "concat", "slots"]


@dataclass(frozen=True)
class DraftConfig:
    """Every number and switch that the pass depends on. Symbols as in the equations of `forward`."""

    hidden_size: int  # H
    target_hidden_size: int  # Ht, the width of one slot
    n_slots: int  # A
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int  # V, of the target
    draft_vocab_size: int  # Vd
    norm_eps: float
    rope_theta: float
    max_positions: int | None
    input_norm: InputNorm = "none"  # norm_before_fc: one norm over the concat; fc_norm: one a slot
    norm_before_residual: bool = False  # the residual source is rms(g) instead of g
    norm_output: bool = False  # feed back rms(u) instead of u

    def under(self, wiring: Wiring) -> DraftConfig:
        """This config with the flags that `wiring` sets."""
        names = ("input_norm", "norm_before_residual", "norm_output", "rope_theta")
        overrides = {name: getattr(wiring, name) for name in names if getattr(wiring, name) is not None}
        return replace(self, **overrides)
