"""How each system's numbers become one shape."""

from __future__ import annotations

import pytest

from eagle3lib.tree_shapes import TreeShape


def test_sglang_counts_the_root():
    """Steps are levels; 8 draft tokens are 7 drafted nodes and the round's first token."""
    shape = TreeShape.sglang(num_steps=5, topk=4, draft_tokens=8)
    assert (shape.topk, shape.levels, shape.nodes, shape.verified, shape.own_keys) == (4, 5, 7, 8, "places")
    assert shape.candidates == 4 + 4 * 16


@pytest.mark.parametrize("draft_tokens", [1, 4, 16])
def test_sglang_sets_the_draft_tokens_of_a_chain_itself(draft_tokens):
    """With topk = 1 it serves steps + 1, whatever was asked for: 16 asked for at one step is 2."""
    shape = TreeShape.sglang(num_steps=1, topk=1, draft_tokens=draft_tokens)
    assert (shape.levels, shape.nodes, shape.verified) == (1, 1, 2)
    assert "draft tokens 2" in shape.label


def test_eagle_counts_the_root_and_loops_once_more():
    """`Model.__init__` takes one from total_token, and depth counts the loop, after the root's own children."""
    shape = TreeShape.eagle(total_token=60, depth=7, top_k=10)
    assert (shape.topk, shape.levels, shape.nodes, shape.verified, shape.own_keys) == (10, 8, 59, 60, "ancestors")
    assert shape.candidates == 10 + 7 * 100


def test_a_chain_is_a_tree_of_width_one():
    shape = TreeShape.chain(4)
    assert (shape.topk, shape.levels, shape.nodes, shape.candidates) == (1, 4, 4, 4)


def test_slots_follow_each_other():
    """Level by level, without a gap."""
    shape = TreeShape.sglang(4, 3, 8)
    assert [shape.first_slot(level) for level in (1, 2, 3, 4)] == [0, 3, 12, 21]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TreeShape.sglang(2, 3, 14), "13 drafted nodes are asked for, topk 3 over 2 levels offers 12"),
        (lambda: TreeShape.sglang(2, 3, 1), "a drafted node at least"),
        (lambda: TreeShape.sglang(0, 3, 2), "a level"),
        (lambda: TreeShape.eagle(1, 7, 10), "a drafted node at least"),
        (lambda: TreeShape.chain(0), "a level"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(make, words):
    """With the system's own numbers in the sentence."""
    with pytest.raises(ValueError, match=words):
        make()
