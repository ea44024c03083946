"""Acceptance lengths of shapes, side by side."""

from __future__ import annotations

import numpy as np
import pytest
import toys

from eagle3lib import verify_cost
from eagle3lib.acceptance import acceptance
from eagle3lib.boundaries import Wiring
from eagle3lib.rollout import rollout
from eagle3lib.tree import tree_rollout
from eagle3lib.tree_shapes import TreeShape
from eagle3lib.verify_cost import shape_lengths

WIRING = Wiring(toys.SLOTS)


def samples_of(draft) -> list:
    """Samples whose recorded paths lie in trees, so that lengths differ from 1."""
    from test_tree import follow

    return [follow(draft, toys.make_sample(seed), TreeShape.chain(3)) for seed in (5, 6, 7)]


def test_a_chain_s_length_is_that_of_acceptance(draft):
    """Along the walk and over all starts, with the same intervals' trials."""
    samples = samples_of(draft)
    (found,) = shape_lengths(draft, samples, WIRING, [TreeShape.chain(3)])
    expected = acceptance([rollout(draft, sample, WIRING, 3) for sample in samples], 3)
    assert found.walk.value == pytest.approx(expected.walk.length.value)
    assert (found.walk.low, found.walk.high) == pytest.approx((expected.walk.length.low, expected.walk.length.high))
    assert found.walk.count == expected.walk.length.count
    assert found.walk.value > 2
    assert (found.gain.value, found.ties, found.starts) == (0, 0, 60)


def test_all_starts_and_gain_are_those_of_the_trees(draft):
    """Mean accepted and one over every start; the gain is held against the first shape."""
    samples = samples_of(draft)
    shapes = [TreeShape.chain(7), TreeShape.sglang(3, 4, 8)]
    chain, tree = shape_lengths(draft, samples, WIRING, shapes)
    accepted = [tree_rollout(draft, sample, WIRING, shapes[1]).accepted.numpy() for sample in samples]
    assert tree.all_starts.value == pytest.approx(np.concatenate(accepted).mean() + 1)
    assert tree.gain.value == pytest.approx(tree.walk.value - chain.walk.value)
    assert chain.row()["verified nodes"] == tree.row()["verified nodes"] == 8
    assert chain.seconds > 0


def test_ties_are_told(draft, monkeypatch):
    """Starts with a tie, not ties: each may accept other drafts once."""
    monkeypatch.setattr("eagle3lib.forest.TIE", 100.0)
    (found,) = shape_lengths(draft, [toys.make_sample()], WIRING, [TreeShape.sglang(2, 3, 5)])
    assert found.ties == found.starts == 20


def test_nothing_to_compare_is_refused(draft):
    for samples, shapes in (([], [TreeShape.chain(1)]), ([toys.make_sample()], [])):
        with pytest.raises(ValueError, match="a sample and a shape"):
            verify_cost.shape_lengths(draft, samples, WIRING, shapes)
