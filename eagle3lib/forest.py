"""The candidates of draft trees: which of them go into the beam, which into the tree, and where scores are equal.

Candidates lie in slots, in the engines' order: the root's children, then `topk` slots for each place of the beam,
level by level. Engines cut by `torch.topk`, which promises no order among equals; here the earlier slot goes first:
the lower level, then the better parent, then the likelier child, then the lower draft id. So a parent goes before
a child that is certain (q = 1) and scores the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eagle3lib.tree_shapes import TreeShape

#: Scores nearer than this, in nats, are equal: a float32 pass is right to about so much.
TIE = 1e-5


@dataclass
class Forest:
    """Every candidate of a block of B rounds, in slots, level by level; a candidate without a score is not in.

    Attributes:
        parents: [B, C] the parent's slot, -1 for the root's children.
        levels: [C] of each slot.
        near: rounds at which neighbours were equal where their order mattered, and their score.
    """

    shape: TreeShape
    scores: Float[Tensor, "B C"]
    tokens: Int[Tensor, "B C"]
    parents: Int[Tensor, "B C"]
    levels: Int[Tensor, " C"]
    near: list[tuple[Int[Tensor, " m"], Float[Tensor, " m"]]] = field(default_factory=list)

    @classmethod
    def empty(cls, shape: TreeShape, rounds: int, device: torch.device) -> Forest:
        """No candidate yet."""
        size, k = (rounds, shape.candidates), shape.topk
        widths = torch.tensor([k] + [k * k] * (shape.levels - 1))
        levels = torch.arange(1, shape.levels + 1).repeat_interleave(widths).to(device)
        scores = torch.full(size, -torch.inf, device=device)
        parents = torch.full(size, -1, device=device)
        return cls(shape, scores, torch.zeros_like(parents), parents, levels)

    def offer(
        self,
        owners: Int[Tensor, " R"],
        parents: Int[Tensor, " R"],
        first: Int[Tensor, " R"],
        tokens: Int[Tensor, "R k+1"],
        logprobs: Float[Tensor, "R k+1"],
    ) -> None:
        """Put the `topk` likeliest children of R nodes into the slots from `first` on; one more tells ties."""
        k = self.shape.topk
        above = self.scores[owners, parents].where(parents >= 0, 0.0)
        scores = above[:, None] + logprobs
        slots = first[:, None] + torch.arange(k, device=first.device)
        self.scores[owners[:, None], slots] = scores[:, :k]
        self.tokens[owners[:, None], slots] = tokens[:, :k]
        self.parents[owners[:, None], slots] = parents[:, None].expand(-1, k)
        self._note(owners, scores[:, k - 1 :])

    def beam(self, level: int) -> Int[Tensor, "B k"]:
        """The slots of the level's best nodes, best first."""
        k, first = self.shape.topk, self.shape.first_slot(level)
        sorted_, order = self.scores[:, self.levels == level].sort(dim=1, descending=True, stable=True)
        every = torch.arange(len(order), device=order.device)
        # Where a place decides which keys a node sees, the order within the beam matters too.
        self._note(every, sorted_[:, (0 if self.shape.own_keys == "places" else k - 1) : k + 1])
        return first + order[:, :k]

    def bar(self) -> Float[Tensor, " B"]:
        """The score of the last candidate that is in the tree so far, -inf while there is room."""
        return self.scores.topk(self.shape.nodes, dim=1).values[:, -1]

    def chosen(self) -> Int[Tensor, "B N"]:
        """The slots of the tree's nodes, in order."""
        sorted_, order = self.scores.sort(dim=1, descending=True, stable=True)
        n = self.shape.nodes
        self._note(torch.arange(len(order), device=order.device), sorted_[:, n - 1 : n + 1])
        return order[:, :n].sort(1).values

    def parent_places(self, chosen: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """Where among the chosen each one's parent is, -1 for the root."""
        parents = self.parents.gather(1, chosen)
        return torch.searchsorted(chosen, parents).where(parents >= 0, -1)

    def ties(self) -> Int[Tensor, " B"]:
        """Equal neighbours that could have changed the tree: those that score high enough to be in it.

        Where a place decides which keys are seen, any change of the beam's order can reach the tree.
        """
        counts = torch.zeros(len(self.scores), dtype=torch.long, device=self.scores.device)
        bar = self.bar()
        for owners, scores in self.near:
            reach = scores >= bar[owners] - TIE if self.shape.own_keys == "ancestors" else scores.isfinite()
            counts.index_add_(0, owners[reach], torch.ones_like(owners[reach]))
        return counts

    def _note(self, owners: Int[Tensor, " R"], sorted_: Float[Tensor, "R m"]) -> None:
        """Keep neighbours of a descending row that are equal within rounding."""
        rows, at = (sorted_[:, :-1] - sorted_[:, 1:] <= TIE).nonzero(as_tuple=True)  # -inf less -inf is not
        self.near.append((owners[rows], sorted_[rows, at]))
