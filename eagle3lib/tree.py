"""Dynamic draft trees (EAGLE-2, arXiv 2406.16858) from every start of a sample, against the recorded tokens.

    level 1    the root's `topk` likeliest children
    level l    of the `topk` best nodes of level l - 1, the beam, the `topk` likeliest children each
    score      Σ log q of a node and its ancestors
    tree       the `nodes` best of all these candidates; a node's ancestors score as high, so they are in it

A greedy verifier accepts the recorded path as far as it lies in the tree. Nodes beside the path matter, since they
take places in the beam and in the tree, so the whole tree is drafted. A node of level l of a round from pair t is
computed at step l, at rope position t + l: it sees the step-0 keys j <= t and earlier keys of its own branch, which
`tree_shapes` tells apart by system.

A candidate that scores below the best `nodes` so far is not expanded where its keys are not needed: neither it nor
its children can come into the tree.

SGLang multiplies probabilities where the sum of logarithms stands here, and EAGLE sums them in its model's own
dtype: the order is the same but for rounding. Candidates that rounding could swap are ties, counted for each start.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eagle3lib import draft_head, forward, fusion
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.config import DraftConfig
from eagle3lib.forest import Forest
from eagle3lib.forward import Keys, Prefix
from eagle3lib.sample import Sample
from eagle3lib.starts import starts_of
from eagle3lib.tree_shapes import TreeShape

#: Starts whose trees are held at a time.
STARTS_BLOCK = 64


@dataclass(frozen=True)
class TreeRollout:
    """The tree that each start drafts. Nodes are listed level by level, so a parent comes before its children.

    Attributes:
        sample: the sample's name.
        shape: how the trees grew.
        starts: [n] every pair at which a round may start, in order.
        turns: [n] which assistant turn each start lies in.
        recorded: [n, L] the recorded tokens of each level, -1 where not valid.
        valid: [n, L] whether the recorded token lies in the start's turn.
        accepted: [n] how many drafts of the recorded path lie in the tree: what a greedy verifier keeps.
        tokens: [n, N] target ids of the drafted nodes.
        parents: [n, N] index of each node's parent in its row, -1 for the root's children.
        depths: [n, N] level of each node, from 1.
        scores: [n, N] Σ log q from the root, natural.
        ties: [n] cuts at which equal scores could have gone the other way, and changed the tree.
    """

    sample: str
    shape: TreeShape
    starts: Int[Tensor, " n"]
    turns: Int[Tensor, " n"]
    recorded: Int[Tensor, "n L"]
    valid: Bool[Tensor, "n L"]
    accepted: Int[Tensor, " n"]
    tokens: Int[Tensor, "n N"]
    parents: Int[Tensor, "n N"]
    depths: Int[Tensor, "n N"]
    scores: Float[Tensor, "n N"]
    ties: Int[Tensor, " n"]

    @property
    def nodes(self) -> Int[Tensor, "n L"]:
        """How many nodes each tree holds at each level."""
        levels = torch.arange(1, self.shape.levels + 1)
        return (self.depths[..., None] == levels).sum(1)


@torch.inference_mode()
def tree_rollout(draft: Draft, sample: Sample, wiring: Wiring, shape: TreeShape) -> TreeRollout:
    """Draft the tree of the given shape from every start of the sample.

    Raises:
        InputError: as `fusion.fuse`.
        ValueError: if `topk` is more than the draft vocabulary.
    """
    if shape.topk > draft.config.draft_vocab_size:
        raise ValueError(f"{shape.label}: topk is above the draft vocabulary of {draft.config.draft_vocab_size}")
    found = starts_of(sample, shape.levels)
    n = len(found.pairs)
    tokens = torch.zeros(n, shape.nodes, dtype=torch.long)
    parents, depths, scores = tokens.clone(), tokens.clone(), torch.zeros(n, shape.nodes)
    accepted, ties = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long)
    if n:
        config = draft.config.under(wiring)
        g = fusion.fuse(draft, sample, wiring)
        u, prefix = forward.first_step(draft, config, g, draft.embed(sample.token_ids)[1 : 1 + len(g)])
        for block in torch.arange(n).split(STARTS_BLOCK):
            pairs = found.pairs[block].to(draft.device)
            forest = _grow(draft, config, shape, prefix, u[pairs], pairs)
            chosen = forest.chosen()
            tokens[block] = forest.tokens.gather(1, chosen).cpu()
            parents[block] = forest.parent_places(chosen).cpu()
            depths[block] = forest.levels[chosen].cpu()
            scores[block] = forest.scores.gather(1, chosen).cpu()
            ties[block] = forest.ties().cpu()
            accepted[block] = _inside(tokens[block], parents[block], found.recorded[block])
    return TreeRollout(
        sample.name,
        shape,
        found.pairs,
        found.turns,
        found.recorded,
        found.valid,
        accepted,
        tokens,
        parents,
        depths,
        scores,
        ties,
    )


def _grow(
    draft: Draft,
    config: DraftConfig,
    shape: TreeShape,
    prefix: Prefix,
    u: Float[Tensor, "B H"],
    pairs: Int[Tensor, " B"],
) -> Forest:
    """The candidates of a block of rounds, from step 0's u at their starts."""
    k, device = shape.topk, u.device
    forest = Forest.empty(shape, len(pairs), device)
    own = Prefix([Keys(keys.k, keys.v) for keys in prefix.layers], prefix.length)
    owners = torch.arange(len(pairs), device=device)
    root = torch.full_like(owners, -1)
    forest.offer(owners, root, root + 1, *draft_head.best(draft, u, k + 1, config))
    computed = torch.full_like(forest.tokens, -1)  # [B, C] the row of a slot's own step
    at_place = torch.full((len(pairs), k), -1, device=device)  # [B, k] the row of the last step at each place
    for level in range(1, shape.levels):
        beam = forest.beam(level)
        wanted = forest.scores.gather(1, beam)
        wanted = (wanted >= forest.bar()[:, None]) & wanted.isfinite()
        if shape.own_keys == "places" and level < shape.levels - 1:
            wanted = wanted.any(1, keepdim=True).expand(-1, k)  # any place's keys may be read later
        owners, places = wanted.nonzero(as_tuple=True)
        if not len(owners):
            break
        slots = beam[owners, places]
        parents = forest.parents[owners, slots]
        above = computed[owners, parents].where(parents >= 0, owners)  # step 0 has one row a round
        if level > 1:  # step 0's keys are the prefix's
            own.keep(at_place[owners, places] if shape.own_keys == "places" else above)
        g = forward.feedback(draft, config, u[above])
        embedding = draft.embed(forest.tokens[owners, slots])
        u = forward.packed_next_step(draft, config, g, embedding, [own], [pairs[owners]])
        computed[owners, slots] = at_place[owners, places] = torch.arange(len(owners), device=device)
        forest.offer(owners, slots, shape.first_slot(level + 1) + places * k, *draft_head.best(draft, u, k + 1, config))
    return forest


def _inside(tokens: Int[Tensor, "B N"], parents: Int[Tensor, "B N"], recorded: Int[Tensor, "B L"]) -> Int[Tensor, " B"]:
    """How far the recorded path goes inside each tree."""
    at, depth = torch.full((len(tokens),), -1), torch.zeros(len(tokens), dtype=torch.long)
    alive = torch.ones(len(tokens), dtype=torch.bool)
    for token in recorded.unbind(1):
        on_path = (parents == at[:, None]) & (tokens == token[:, None])  # -1 is no token
        alive = alive & on_path.any(1)
        depth += alive
        at = on_path.int().argmax(1).where(alive, len(parents[0]))  # no node has that parent
    return depth
