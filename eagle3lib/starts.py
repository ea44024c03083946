"""Where rounds may start in a sample, and the tokens recorded after each start."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from eagle3lib.sample import Sample


@dataclass(frozen=True)
class Starts:
    """Every start of a sample, in order: a round from pair t drafts x[t + 2], x[t + 3], ...

    Attributes:
        pairs: [n] the pair at which each round starts.
        turns: [n] which assistant turn it lies in.
        recorded: [n, K] the tokens x[t + 2 ..], -1 where not valid.
        valid: [n, K] whether that token lies in the start's turn.
    """

    pairs: Int[Tensor, " n"]
    turns: Int[Tensor, " n"]
    recorded: Int[Tensor, "n K"]
    valid: Bool[Tensor, "n K"]


def starts_of(sample: Sample, steps: int) -> Starts:
    """The sample's starts, with the `steps` tokens recorded after each."""
    n = sample.n_pairs
    found = [(t, i) for i, turn in enumerate(sample.turns) for t in turn.starts if t < n]
    pairs, turns = torch.tensor(found, dtype=torch.long).reshape(-1, 2).unbind(1)
    ends = torch.tensor([turn.end for turn in sample.turns], dtype=torch.long)[turns]
    at = pairs[:, None] + 2 + torch.arange(steps)  # [n, K]
    valid = at < ends[:, None]
    recorded = torch.where(valid, sample.token_ids[at.clamp_max(len(sample.token_ids) - 1)], -1)
    return Starts(pairs, turns, recorded, valid)
