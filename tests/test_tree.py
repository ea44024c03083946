"""Trees of all starts at once, against the plain rule in speculators' own layers, and against the chain."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
import toys
import trees
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle3lib import draft_head, tree
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.forest import Forest
from eagle3lib.rollout import chain_states, rollout
from eagle3lib.sample import Sample
from eagle3lib.starts import starts_of
from eagle3lib.tree import tree_rollout
from eagle3lib.tree_shapes import TreeShape

WIRING = Wiring(toys.SLOTS)
LogitsOf = Callable[[Sample], list[Tensor]]
#: Log-probabilities of a branch, summed: float32, four levels.
TOLERANCE = {"rel": 1e-4, "abs": 1e-4}
SHAPES = [
    TreeShape.sglang(4, 3, 8),
    TreeShape.sglang(3, 4, 16),
    TreeShape.sglang(1, 4, 4),
    TreeShape.sglang(4, 1, 5),
    TreeShape.eagle(8, 3, 3),
    TreeShape.eagle(20, 2, 4),
    TreeShape.chain(3),
]


def follow(draft: Draft, sample: Sample, shape: TreeShape) -> Sample:
    """The sample with tokens such that recorded paths lie in trees: down a deepest branch, then the next start."""
    tokens = sample.token_ids.clone()
    for turn in sample.turns:
        t = turn.begin - 1
        while t + 2 < turn.end:
            found = tree_rollout(draft, replace(sample, token_ids=tokens), WIRING, shape)
            branch = max(trees.paths(found, found.starts.tolist().index(t)), key=len)[: turn.end - t - 2]
            tokens[t + 2 : t + 2 + len(branch)] = torch.tensor(branch)
            t += len(branch) + 1
    return replace(sample, token_ids=tokens)


def compare(found: tree.TreeRollout, round_at: Callable[[int], trees.Round], every: int = 1) -> None:
    """Nodes, scores and accepted drafts of the starts against the plain rule, of every start or fewer."""
    assert len(found.starts) == 20
    for row, start in list(enumerate(found.starts.tolist()))[::every]:
        expected = trees.grow(round_at(start), found.shape)
        drafted = trees.paths(found, row)
        assert drafted.keys() == expected.keys(), f"start {start}"
        assert drafted == pytest.approx(expected, **TOLERANCE)
        recorded = found.recorded[row][found.valid[row]].tolist()
        assert found.accepted[row] == trees.accepted(expected, recorded)
    assert found.ties.tolist() == [0] * len(found.starts)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
@pytest.mark.parametrize(("residual", "output"), [(False, False), (True, True)])
def test_trees_equal_the_plain_rule_in_the_library_s_layers(shape, residual, output, target_folder, tmp_path, sample):
    """The same nodes from every start, scores to 1e-4, the same drafts accepted, to the last level of some trees."""
    library = pytest.importorskip("library", reason="the reference implementation is not installed")
    model = library.new_draft(target_folder, norm_before_residual=residual, norm_output=output)
    model.save_pretrained(tmp_path)
    draft = load_draft(tmp_path, device="cpu")
    sample = follow(draft, sample, shape)
    aux = torch.cat([sample.state(b) for b in toys.SLOTS], dim=-1)

    def round_at(t: int) -> trees.Round:
        tokens = sample.token_ids[1 : t + 2].tolist()
        return trees.LibraryRound(model, aux[: t + 1], tokens, shape.own_keys)

    found = tree_rollout(draft, sample, WIRING, shape)
    compare(found, round_at)
    assert found.accepted[0] == found.depths[0].max() > 1 or shape.levels == 1
    assert found.accepted.min() == 0


class ForcedRound:
    """The passes of a round as a chain's, each branch in the recorded tokens' place: for keys of ancestors only.

    `logits_of` gives a sample's logits of every step and pair, teacher-forced.
    """

    def __init__(self, logits_of: LogitsOf, target_ids: Tensor, sample: Sample, start: int) -> None:
        self.logits_of, self.target_ids, self.sample, self.start = logits_of, target_ids, sample, start

    def _after(self, path: Sequence[int]) -> Tensor:
        tokens = self.sample.token_ids.clone()
        tokens[self.start + 2 : self.start + 2 + len(path)] = torch.tensor(path, dtype=torch.long)
        return self.logits_of(replace(self.sample, token_ids=tokens))[len(path)][self.start].log_softmax(-1)

    def root(self) -> Tensor:
        """[Vd] at the start."""
        return self._after(())

    def expand(self, beam: Sequence[trees.Node]) -> Tensor:
        """[k, Vd] after each branch."""
        return torch.stack([self._after(node.path) for node in beam])


def manual(draft: Draft, sample: Sample) -> list[Tensor]:
    """Logits of three steps by the chain's own pass, which other tests hold against other implementations."""
    return [draft_head.logits(draft, u) for u in chain_states(draft, sample, WIRING, 3)]


def change_layer(**changes: object) -> Callable[[dict], None]:
    """A change of the layer's part of config.json."""
    return lambda config: config["transformer_layer_config"].update(changes)


@pytest.mark.parametrize(
    "change",
    [
        change_layer(sliding_window=1, layer_types=["sliding_attention"]),
        change_layer(sliding_window=3, layer_types=["sliding_attention"]),
        change_layer(sliding_window=9, layer_types=["sliding_attention"]),
        change_layer(rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}),
        lambda config: config.update(norm_output=True),
    ],
    ids=["window 1", "window 3", "window 9", "rope", "norm_output"],
)
def test_windows_and_flags_reach_the_branches(change, tmp_path, sample):
    """Each branch as the chain computes it when its tokens are the recorded ones."""
    folder = toys.write_draft(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    draft = load_draft(folder, device="cpu")
    found = tree_rollout(draft, sample, WIRING, TreeShape.eagle(10, 2, 3))
    compare(found, lambda t: ForcedRound(partial(manual, draft), draft.target_ids, sample, t))


@pytest.mark.parametrize(("kind", "n_layers"), [("llama", 2), ("qwen3", 1)])
def test_further_layers_and_normed_heads_as_the_library_has_them(kind, n_layers, tmp_path, sample):
    """Each branch in the recorded tokens' place in the library's own forward."""
    library = pytest.importorskip("library", reason="the reference implementation is not installed")
    layers = pytest.importorskip("test_agreement_layers")
    config = layers.layer(kind, num_hidden_layers=n_layers)
    model = library.new_draft(toys.write_target(tmp_path / "target"), layer=config)
    model.save_pretrained(tmp_path / "draft")
    draft = load_draft(tmp_path / "draft", device="cpu")
    assert draft.config.n_layers == n_layers

    def logits_of(forced: Sample) -> list[Tensor]:
        return library.run(model, forced, toys.N_LAYERS - 1)[1]

    found = tree_rollout(draft, sample, WIRING, TreeShape.eagle(10, 2, 3))
    compare(found, lambda t: ForcedRound(logits_of, draft.target_ids, sample, t), every=3)


@pytest.mark.parametrize("rope", ["default", "yarn"])
def test_latent_attention_as_deepseek_s_modules_have_it(rope, tmp_path, sample):
    """Each branch in the recorded tokens' place in transformers' DeepSeek-V3 modules."""
    latent = pytest.importorskip("test_mla", reason="the reference implementation is not installed")
    model = latent.LatentDraft(latent.latent_config(rope=latent.YARN if rope == "yarn" else None))
    draft = load_draft(model.save(tmp_path), device="cpu")
    found = tree_rollout(draft, sample, WIRING, TreeShape.eagle(10, 2, 3))
    compare(found, lambda t: ForcedRound(model, draft.target_ids, sample, t))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("input_norm", ["none", "concat", "slots"])
@pytest.mark.parametrize(("residual", "output"), [(False, False), (True, True)])
def test_a_chain_is_the_tree_of_width_one(dtype, input_norm, residual, output, tmp_path, sample):
    """The same tokens as `rollout` up to the first miss, and the same drafts accepted, by either system's counting."""
    folder = toys.write_draft(tmp_path, input_norm=input_norm, norm_before_residual=residual, norm_output=output)
    draft = load_draft(folder, device="cpu", dtype=dtype)
    sample = follow(draft, sample, TreeShape.chain(4))
    chain = rollout(draft, sample, WIRING, 4)
    hits = chain.hit.int().cumprod(1)
    reached = chain.valid & torch.cat([torch.ones_like(hits[:, :1]), hits[:, :-1]], dim=1).bool()
    assert hits.sum(1).max() == 4
    for shape in (TreeShape.chain(4), TreeShape.sglang(4, 1, 99), TreeShape.eagle(5, 3, 1)):
        found = tree_rollout(draft, sample, WIRING, shape)
        assert torch.equal(found.starts, chain.starts)
        assert torch.equal(found.turns, chain.turns)
        assert torch.equal(found.recorded, chain.recorded)
        assert torch.equal(found.valid, chain.valid)
        assert torch.equal(found.tokens[reached], chain.predicted[reached])
        assert torch.equal(found.accepted, hits.sum(1))


def test_starts_are_those_of_the_chain(draft, sample):
    """`starts_of` and `rollout` name the same ones, the same recorded tokens and the same ends."""
    chain, found = rollout(draft, sample, WIRING, 5), starts_of(sample, 5)
    for theirs, own in ((chain.starts, found.pairs), (chain.turns, found.turns), (chain.recorded, found.recorded)):
        assert torch.equal(theirs, own)
    assert torch.equal(chain.valid, found.valid)


def test_places_and_ancestors_are_told_apart(draft, sample):
    """A node whose branch changed its place sees other keys: the same candidates, but not the same scores."""
    places = TreeShape.sglang(4, 3, 13)
    ancestors = replace(places, own_keys="ancestors")
    found, other = (tree_rollout(draft, sample, WIRING, shape) for shape in (places, ancestors))
    deep = found.depths > 2  # the first step of a branch has no earlier key of its own
    assert torch.equal(found.scores[:, :3], other.scores[:, :3])
    assert deep.any()
    assert (found.scores - other.scores).abs().max() > 1e-3


shapes = st.builds(
    lambda topk, levels, share, own_keys: TreeShape(
        topk, levels, 1 + round(share * (topk + (levels - 1) * topk**2 - 1)), own_keys, "drawn"
    ),
    st.integers(1, 5),
    st.integers(1, 4),
    st.floats(0, 1),
    st.sampled_from(["ancestors", "places"]),
)


@pytest.fixture(scope="module")
def followed(draft) -> Sample:
    """A sample whose recorded paths lie in trees."""
    return follow(draft, toys.make_sample(), TreeShape.eagle(13, 3, 3))


@settings(max_examples=40, deadline=None)
@given(shape=shapes)
def test_what_holds_of_every_tree(shape, draft, followed):
    """As many nodes as asked for; parents before children, a level above, scoring no less; siblings differ."""
    found = tree_rollout(draft, followed, WIRING, shape)
    assert found.nodes.sum(1).tolist() == [shape.nodes] * len(found.starts)
    rows = torch.arange(len(found.starts))[:, None]
    inner = found.parents >= 0
    own = torch.arange(shape.nodes)
    assert (found.parents < own).all()
    assert torch.equal(found.depths == 1, ~inner)
    above_depth, above_score = found.depths[rows, found.parents], found.scores[rows, found.parents]
    assert (found.depths == above_depth + 1)[inner].all()
    assert (found.scores <= above_score)[inner].all()
    assert all(len(trees.paths(found, row)) == shape.nodes for row in range(len(rows)))
    assert (found.accepted <= found.valid.sum(1)).all()


@settings(max_examples=40, deadline=None)
@given(shape=shapes)
def test_more_nodes_accept_no_less(shape, draft, followed):
    """One more node is added and none is lost, so that what was accepted still is."""
    if shape.nodes == shape.candidates:
        return
    found = tree_rollout(draft, followed, WIRING, shape)
    larger = tree_rollout(draft, followed, WIRING, replace(shape, nodes=shape.nodes + 1))
    assert (larger.accepted >= found.accepted).all()
    for row in range(len(found.starts)):
        assert trees.paths(found, row).keys() < trees.paths(larger, row).keys()


@settings(max_examples=40, deadline=None)
@given(shape=shapes)
def test_a_tree_that_holds_the_chain_accepts_no_less(shape, draft, followed):
    """A beam may drop the greedy chain, even with room for it; where it holds the chain's hits, so does the tree."""
    chain = rollout(draft, followed, WIRING, shape.levels)
    hits = chain.hit.int().cumprod(1).sum(1)
    found = tree_rollout(draft, followed, WIRING, shape)
    for row in range(len(found.starts)):
        kept = trees.accepted(trees.paths(found, row), chain.predicted[row].tolist())
        assert found.accepted[row] >= min(kept, int(hits[row]))


@pytest.mark.parametrize("own_keys", ["ancestors", "places"])
def test_blocks_and_the_bar_change_nothing(own_keys, draft, followed, monkeypatch):
    """One start at a time, and every candidate expanded: the same trees."""
    shape = TreeShape(4, 4, 9, own_keys, "toy")
    found = tree_rollout(draft, followed, WIRING, shape)
    monkeypatch.setattr(tree, "STARTS_BLOCK", 1)
    single = tree_rollout(draft, followed, WIRING, shape)
    monkeypatch.setattr(Forest, "bar", lambda forest: torch.full_like(forest.scores[:, 0], -torch.inf))
    unbarred = tree_rollout(draft, followed, WIRING, shape)
    for other in (single, unbarred):
        for row in range(len(found.starts)):
            assert trees.paths(other, row) == pytest.approx(trees.paths(found, row), **TOLERANCE)
        assert torch.equal(other.accepted, found.accepted)


def test_equal_scores_at_a_cut_are_counted(tmp_path, sample):
    """A head whose rows come in equal pairs: an odd cut always parts a pair, and the lower draft id is kept."""
    tensors = toys.draft_tensors()
    tensors["lm_head.weight"][1::2] = tensors["lm_head.weight"][0::2]
    draft = load_draft(toys.write_draft(tmp_path, tensors), device="cpu")
    odd = tree_rollout(draft, sample, WIRING, TreeShape.sglang(1, 3, 4))
    even = tree_rollout(draft, sample, WIRING, replace(TreeShape.sglang(1, 4, 5), own_keys="ancestors"))
    single = tree_rollout(draft, sample, WIRING, TreeShape.chain(1))
    assert (odd.ties >= 1).all()
    assert (even.ties == 0).all()
    assert (draft.draft_ids[single.tokens] % 2 == 0).all()
    assert torch.equal(single.tokens, rollout(draft, sample, WIRING, 1).predicted)


def test_ties_below_the_tree_are_not_counted(tmp_path, sample):
    """The same head: two nodes of a pair are the tree, and the tie at the third place cannot change it."""
    tensors = toys.draft_tensors()
    tensors["lm_head.weight"][1::2] = tensors["lm_head.weight"][0::2]
    draft = load_draft(toys.write_draft(tmp_path, tensors), device="cpu")
    found = tree_rollout(draft, sample, WIRING, TreeShape(3, 1, 2, "ancestors", "a pair of three"))
    assert (found.ties == 0).all()


def test_a_sample_without_a_start_has_no_tree(draft):
    """Empty, not an error."""
    found = tree_rollout(draft, toys.make_sample(turns=()), WIRING, SHAPES[0])
    assert found.tokens.shape == (0, SHAPES[0].nodes)
    assert found.nodes.shape == (0, SHAPES[0].levels)


def test_a_topk_above_the_draft_vocabulary_is_refused(draft, sample):
    """With the number that it may not exceed; one below it is not."""
    with pytest.raises(ValueError, match="draft vocabulary of 40"):
        tree_rollout(draft, sample, WIRING, TreeShape.sglang(1, 41, 9))
    assert tree_rollout(draft, sample, WIRING, TreeShape.sglang(1, 40, 41)).nodes.sum(1).tolist() == [40] * 20
