"""What a dump layout offers: which folders it fits, how many states a token it holds, and its samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class StoredSample:
    """One sample as its file holds it; `states` are the columns asked for, in the order asked for."""

    name: str
    token_ids: Int[Tensor, " T"]
    loss_mask: Bool[Tensor, " T"]
    n_states: int
    states: tuple[Float[Tensor, "R H"], ...]
    logprobs: Float[Tensor, " T"] | None = None  # the target's own, of each token given those before it


class Layout(Protocol):
    """One way in which a trainer or engine writes hidden states to disk."""

    name: str
    label: str

    def fits(self, folder: Path) -> bool:
        """Whether the folder's file names are of this layout; no file is opened."""

    def items(self, folder: Path) -> list[Path]:
        """The sample files, in order."""

    def n_states(self, folder: Path) -> int:
        """How many states a token the first sample holds."""

    def load(self, item: Path, columns: list[int]) -> StoredSample:
        """One sample; of its states only the given columns are read."""
