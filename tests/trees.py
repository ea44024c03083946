"""Draft trees one start at a time: grown by the plain rule, computed by speculators' own layers, every row again.

Independent of `eagle3lib.tree`: nodes are Python objects, the mask is written cell by cell, nothing is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from eagle3lib.tree import TreeRollout
from eagle3lib.tree_shapes import TreeShape

Path = tuple[int, ...]


@dataclass
class Node:
    """A drafted token: the tokens from the root to it, its score, and the rows of its ancestors' passes."""

    path: Path
    score: float
    parent_row: int
    rows: list[int] = field(default_factory=list)


class Round(Protocol):
    """The draft's passes of one round: log-probabilities over draft ids, at the root and at every beam."""

    target_ids: Tensor

    def root(self) -> Tensor:
        """[Vd] at the round's start."""

    def expand(self, beam: Sequence[Node]) -> Tensor:
        """[k, Vd] at each node of a beam, best first."""


class LibraryRound:
    """The passes of a round in the layers of a speculators draft.

    `aux` holds the target's states of the pairs up to the start, `tokens` the token after each.
    """

    def __init__(self, model, aux: Tensor, tokens: Sequence[int], own_keys: str) -> None:
        self.model, self.own_keys = model, own_keys
        self.ids, self.hidden = list(tokens), model.fc(aux)  # one token, one row of [n, H]
        n = len(self.ids)
        self.positions = list(range(n))
        self.sees = [set(range(i + 1)) for i in range(n)]
        self.prefix = n
        self.at_place: list[list[int]] = []  # rows of each step, by place
        self.target_ids = model.d2t + torch.arange(len(model.d2t))

    def root(self) -> Tensor:
        """[Vd] at the last pair."""
        return self.run(self.prefix - 1)[0]

    def expand(self, beam: Sequence[Node]) -> Tensor:
        """[k, Vd]: a row is added for each node, fed with what its parent's row gave."""
        first = len(self.ids)
        for place, node in enumerate(beam):
            row = first + place
            earlier = node.rows if self.own_keys == "ancestors" else [rows[place] for rows in self.at_place]
            self.sees.append(set(range(self.prefix)) | set(earlier) | {row})
            self.ids.append(node.path[-1])
            self.positions.append(self.prefix - 1 + len(node.path))
            self.hidden = torch.cat([self.hidden, self.fed_back[node.parent_row][None]])
            node.rows = [*node.rows, row]
        self.at_place.append(list(range(first, first + len(beam))))
        return self.run(first)

    def run(self, first: int) -> Tensor:
        """[rows, Vd] of every row from `first` on; what each row would be fed back as is kept."""
        model, n = self.model, len(self.ids)
        mask = torch.full((n, n), -torch.inf)
        for i, seen in enumerate(self.sees):
            mask[i, sorted(seen)] = 0
        positions = torch.tensor([self.positions])
        x = torch.cat([model.embed_tokens(torch.tensor([self.ids])), self.hidden[None]], dim=-1)
        turns = model.rotary_emb(x, positions)
        u = model.layers[0](x, attention_mask=mask[None, None], position_ids=positions, position_embeddings=turns)[0]
        normed = model.norm(u)
        self.fed_back = normed if model.config.norm_output else u
        return model.lm_head(normed[first:]).log_softmax(-1)


def children(node: Node, logprobs: Tensor, k: int, target_ids: Tensor) -> list[Node]:
    """The k likeliest continuations, likeliest first."""
    values = logprobs.tolist()
    ids = sorted(range(len(values)), key=lambda i: -values[i])[:k]
    row = node.rows[-1] if node.rows else -1
    return [Node((*node.path, int(target_ids[i])), node.score + values[i], row, node.rows) for i in ids]


@torch.inference_mode()
def grow(round_: Round, shape: TreeShape) -> dict[Path, float]:
    """The tree's nodes by their tokens from the root, with their scores."""
    candidates = beam = children(Node((), 0.0, -1), round_.root(), shape.topk, round_.target_ids)
    for _ in range(1, shape.levels):
        logprobs = round_.expand(beam)
        offered = [
            child
            for node, row in zip(beam, logprobs, strict=True)
            for child in children(node, row, shape.topk, round_.target_ids)
        ]
        candidates = candidates + offered
        beam = sorted(offered, key=lambda node: -node.score)[: shape.topk]
    return {node.path: node.score for node in sorted(candidates, key=lambda node: -node.score)[: shape.nodes]}


def accepted(tree: dict[Path, float], recorded: Sequence[int]) -> int:
    """How many recorded tokens in a row lie in the tree."""
    n = 0
    while n < len(recorded) and tuple(recorded[: n + 1]) in tree:
        n += 1
    return n


def paths(found: TreeRollout, row: int) -> dict[Path, float]:
    """The drafted tree of one start in the same form."""
    by_node: list[Path] = []
    for token, parent in zip(found.tokens[row].tolist(), found.parents[row].tolist(), strict=True):
        by_node.append((*(by_node[parent] if parent >= 0 else ()), token))
    return dict(zip(by_node, found.scores[row].tolist(), strict=True))
