"""Boundaries of the residual stream, and the wiring that says which of them feed a draft.

B(k) is the residual stream after k decoder blocks, that is the input of block k: B(0) is the embedding
output and B(n) the state after the last block, before the final norm. `FINAL_NORMED` is norm(B(n)), which
several dumps carry instead of B(n); it is a name of its own and never called B(n).

Layer ids of trainers and engines are translated to boundaries in `eagle3lib.ecosystems`, once; everything
else speaks boundaries only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

FINAL_NORMED = "final_normed"

Boundary = int | Literal["final_normed"]


def boundary_name(boundary: Boundary) -> str:
    """`B(3)` for 3, `final_normed` for the normed last state."""
    return boundary if boundary == FINAL_NORMED else f"B({boundary})"


def parse_boundary(text: str | int) -> Boundary:
    """The inverse of what a config file may hold: 3, "3" or "final_normed".

    Raises:
        ValueError: for anything else.
    """
    if text == FINAL_NORMED:
        return FINAL_NORMED
    boundary = int(str(text))  # by way of text, so that 3.7 and true are refused
    if boundary < 0:
        raise ValueError(f"a boundary is 0 or more, or {FINAL_NORMED!r}; found {text!r}")
    return boundary


def in_depth_order(boundaries: Iterable[Boundary]) -> tuple[Boundary, ...]:
    """From the embedding down; `final_normed`, behind the last of all, comes last."""
    return tuple(sorted(boundaries, key=lambda b: (b == FINAL_NORMED, b)))


@dataclass(frozen=True)
class Wiring:
    """Which boundary feeds each slot of `fc`, in order, and the flags that change the pass.

    A flag that is None stands for what the draft's own config says; a set flag overrides it, as an engine
    does that ignores the config or reads it differently.
    """

    slots: tuple[Boundary, ...]
    input_norm: Literal["none", "concat", "slots"] | None = None  # norm_before_fc is concat, fc_norm is slots
    norm_before_residual: bool | None = None
    residual_embedding: bool | None = None
    norm_output: bool | None = None
    norm_head: bool | None = None
    hidden_first: bool | None = None
    token_shift: int | None = None  # 1: beside h[i] the pass reads one token more than x[i + 1]; -1: one less
    rope_theta: float | None = None
    rope_kind: Literal["default"] | None = None  # the stretching that the config asks for is left out
    rope_fraction: float | None = None
    rope_interleaved: bool | None = None
    window: int | Literal["off"] | None = None  # positions that a query sees, in every layer
    window_from: Literal["query", "start"] | None = None
    position_offset: int | None = None
    position_advance: int | None = None

    def __str__(self) -> str:
        slots = ", ".join(str(s) for s in self.slots)
        names = [field.name for field in fields(self) if field.name != "slots"]
        flags = [f"{name}={value}" for name in names if (value := getattr(self, name)) is not None]
        return f"[{slots}]" + (f" with {', '.join(flags)}" if flags else "")
