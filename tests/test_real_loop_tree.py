"""Trees of a dump against a real greedy loop: the whole target, and trees drafted in the library's own layers.

Every round drafts a tree, the target verifies all its nodes in one forward under a tree mask, and the path that its
own choices take through the tree is kept. Then the kept tokens are read again in a row, for the states that the next
round drafts from, rounded to the dump's dtype.
"""

from __future__ import annotations

import pytest
import torch
import trees
from bundled import CASE, library_draft
from test_real_loop import LoopTarget

from eagle3lib import load_case
from eagle3lib.investigation import Investigation
from eagle3lib.tree import TreeRollout, tree_rollout
from eagle3lib.tree_shapes import TreeShape

pytestmark = pytest.mark.slow

PROMPTS = 3
SHAPES = [TreeShape.sglang(num_steps=4, topk=4, draft_tokens=8), TreeShape.eagle(total_token=16, depth=3, top_k=5)]


class TreeTarget(LoopTarget):
    """The target, which can also answer every node of a tree at once."""

    def verify(self, last: int, tree: list[trees.Path]) -> dict[trees.Path, int]:
        """Its greedy choice after the root and after each node; nothing of it stays in the cache."""
        nodes = [(), *tree]
        before, n = self.cache.get_seq_length(), len(nodes)
        mask = torch.full((n, before + n), -torch.inf)
        mask[:, :before] = 0
        for i, node in enumerate(nodes):
            for j, other in enumerate(nodes):
                if node[: len(other)] == other:  # an ancestor, or itself
                    mask[i, before + j] = 0
        positions = torch.tensor([[before + len(node) for node in nodes]])
        ids = torch.tensor([[last, *(node[-1] for node in tree)]])
        output = self.living.model(
            input_ids=ids, attention_mask=mask[None, None], position_ids=positions, past_key_values=self.cache
        )
        self.forget_after(before)
        return dict(zip(nodes, output.logits[0].argmax(-1).tolist(), strict=True))


@torch.inference_mode()
def tree_loop(
    prompt: list[int], slots: tuple[int, ...], limit: int, shape: TreeShape
) -> tuple[list[int], list[tuple[int, int]]]:
    """Tokens, and the start and length of each round, until the end token or `limit` new tokens."""
    model, target, end = library_draft(), TreeTarget(slots, rounded=True), 2
    choices, aux = target.read(prompt)
    tokens, rounds = [*prompt, choices[-1]], []
    while len(tokens) - len(prompt) < limit and end not in tokens[len(prompt) :]:
        tree = trees.grow(trees.LibraryRound(model, aux, tokens[1:], shape.own_keys), shape)
        answers = target.verify(tokens[-1], list(tree))
        path: trees.Path = ()
        while (*path, answers[path]) in tree:
            path = (*path, answers[path])
        choices, states = target.read([tokens[-1], *path])
        assert choices == [*path, answers[path]], "the tree mask and the plain reading disagree"
        rounds.append((len(tokens) - 2, len(path) + 1))
        tokens += choices
        aux = torch.cat([aux, states])
    return tokens, rounds


def walk(found: TreeRollout) -> list[tuple[int, int]]:
    """Start and length of each round of a sample of one turn, the last left out."""
    starts, lengths = found.starts.tolist(), (found.accepted + 1).tolist()
    rounds, row = [], 0
    while row + lengths[row] < len(starts):
        rounds.append((starts[row], lengths[row]))
        row += lengths[row]
    return rounds


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
def test_the_walk_over_trees_equals_the_real_loop_round_by_round(shape: TreeShape, capsys) -> None:
    """The same tokens and the same round lengths on every prompt; each last round is cut by the recording."""
    investigation = Investigation(load_case(CASE), "cpu")
    wiring = investigation.trained.wiring
    samples = investigation.samples(wiring.slots)[:PROMPTS]
    differing = rounds = other_tokens = 0
    for sample in samples:
        begin, recorded = sample.turns[0].begin, sample.token_ids.tolist()
        walked = walk(tree_rollout(investigation.draft, sample, wiring, shape))
        tokens, served = tree_loop(recorded[:begin], wiring.slots, len(recorded) - begin, shape)
        other_tokens += tokens[: len(recorded)] != recorded
        differing += sum(a != b for a, b in zip(walked, served[: len(walked)], strict=True))
        rounds += len(walked)
    with capsys.disabled():
        print(f"\n{shape.label}: {differing} of {rounds} rounds differ")
    assert rounds > 150
    assert (differing, other_tokens) == (0, 0)
