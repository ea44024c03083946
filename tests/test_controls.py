"""Controls: a draft that copies its target is always accepted, a random one is at chance; and what must not matter."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from safetensors.torch import save_file
from torch import Tensor

from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import load_draft
from eagle3lib.norm import rms_norm
from eagle3lib.rollout import Rollout, rollout
from eagle3lib.sample import Sample

K = 5
#: The copying draft's one head is wide enough that its content lies in pairs which hardly turn.
COPY_HEAD, UNTURNED = 3 * toys.HIDDEN, toys.HIDDEN // 2


def next_token(target: dict[str, Tensor], token: Tensor) -> Tensor:
    """The choice of a target without blocks: argmax head(norm(embedding))."""
    state = rms_norm(target["model.embed_tokens.weight"][token], target["model.norm.weight"], toys.EPS)
    return (target["lm_head.weight"] @ state).argmax()


def own_sample(target: dict[str, Tensor], first: int, length: int = 30) -> Sample:
    """What that target says from a first token on, greedily; random states, which the copy does not read."""
    tokens = [torch.tensor(first)]
    while len(tokens) < length:
        tokens.append(next_token(target, tokens[-1]))
    states = {b: torch.randn(length, toys.HIDDEN, generator=toys.generator(first)) for b in toys.SLOTS}
    return Sample(f"from {first}", torch.stack(tokens), toys.turn_mask([(3, length)], length), states)


def copying_draft(folder: Path, target: dict[str, Tensor]) -> Path:
    """A draft whose u is the last token's normed embedding, and whose norm and head are the target's.

    Keys and queries are the embedding, so a query attends to its own token's values only; hidden_norm is 0, and
    with norm_before_residual so is the residual.
    """
    hidden, content = toys.HIDDEN, torch.zeros(COPY_HEAD, 2 * toys.HIDDEN)
    content[UNTURNED : UNTURNED + hidden, :hidden] = 10 * torch.eye(hidden)
    values = torch.zeros(COPY_HEAD, 2 * hidden)
    values[:hidden, :hidden] = torch.eye(hidden)
    tensors = toys.draft_tensors(heads=1, kv_heads=1, head_dim=COPY_HEAD) | {
        "embed_tokens.weight": target["model.embed_tokens.weight"],
        "layers.0.input_layernorm.weight": torch.ones(hidden),
        "layers.0.hidden_norm.weight": torch.zeros(hidden),
        "layers.0.self_attn.q_proj.weight": content,
        "layers.0.self_attn.k_proj.weight": content.clone(),
        "layers.0.self_attn.v_proj.weight": values,
        "layers.0.self_attn.o_proj.weight": values[:, :hidden].T.contiguous(),
        "layers.0.mlp.down_proj.weight": torch.zeros(hidden, toys.INTERMEDIATE),
        "norm.weight": target["model.norm.weight"],
        "lm_head.weight": target["lm_head.weight"],
    }
    del tensors["d2t"], tensors["t2d"]
    toys.write_draft(folder, tensors, norm_before_residual=True, draft_vocab_size=toys.VOCABULARY)
    config = json.loads((folder / "config.json").read_text())
    config["transformer_layer_config"] |= {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": COPY_HEAD}
    config["transformer_layer_config"]["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e30}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_draft_that_copies_its_target_is_always_accepted(tmp_path):
    """100 % at every one of five steps, from 24 different first tokens."""
    target = toys.target_tensors()
    draft = load_draft(copying_draft(tmp_path, target), device="cpu")
    samples = [own_sample(target, first) for first in range(0, toys.VOCABULARY, 4)]
    assert len({tuple(s.token_ids[3:9].tolist()) for s in samples}) > 3, "one cycle alone would be no control"
    for sample in samples:
        found = rollout(draft, sample, Wiring(toys.SLOTS), K)
        assert found.valid[:, K - 1].any()
        assert torch.equal(found.hit, found.valid)


def test_the_copy_of_another_target_is_not(tmp_path):
    """The control can fail: the same draft on another target's text."""
    draft = load_draft(copying_draft(tmp_path, toys.target_tensors()), device="cpu")
    found = rollout(draft, own_sample(toys.target_tensors(seed=2), 7), Wiring(toys.SLOTS), K)
    assert float(found.hit[found.valid].float().mean()) < 0.5


def test_a_random_draft_is_at_chance(draft):
    """Random tokens: each step hits with probability 1/V, within four standard errors."""
    samples = [toys.make_sample(seed, length=400, turns=((5, 400),)) for seed in range(4)]
    found = [rollout(draft, sample, Wiring(toys.SLOTS), K) for sample in samples]
    chance = 1 / toys.VOCABULARY
    for k in range(K):
        hits = torch.cat([r.hit[r.valid[:, k], k] for r in found]).float()
        error = (chance * (1 - chance) / len(hits)) ** 0.5
        assert abs(float(hits.mean()) - chance) < 4 * error, f"step {k}"


hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st  # noqa: E402

SETTINGS = hypothesis.settings(max_examples=20, deadline=None, derandomize=True)


def rolled_out(tensors: dict[str, Tensor], shards: list[list[str]] | None = None, prefix: str = "") -> Rollout:
    """The rollout of a draft saved under a prefix, in one file or in shards with an index."""
    with tempfile.TemporaryDirectory() as name:
        folder = toys.write_draft(Path(name), tensors)
        if shards:
            (folder / "model.safetensors").unlink()
            weight_map = {prefix + t: f"model-{i}.safetensors" for i, names in enumerate(shards) for t in names}
            for i, names in enumerate(shards):
                if names:
                    save_file({prefix + t: tensors[t] for t in names}, folder / f"model-{i}.safetensors")
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return rollout(load_draft(folder, device="cpu"), toys.make_sample(), Wiring(toys.SLOTS), 3)


@SETTINGS
@hypothesis.given(st.permutations(range(toys.DRAFT_VOCABULARY)))
def test_the_order_of_the_draft_vocabulary_does_not_matter(order):
    """lm_head's rows and d2t permuted together: the same predictions, log-probabilities to 1e-5."""
    tensors, order = toys.draft_tensors(), torch.tensor(order)
    ids = tensors["d2t"] + torch.arange(toys.DRAFT_VOCABULARY)
    permuted = tensors | {
        "lm_head.weight": tensors["lm_head.weight"][order],
        "d2t": ids[order] - torch.arange(toys.DRAFT_VOCABULARY),
    }
    expected, found = rolled_out(tensors), rolled_out(permuted)
    assert torch.equal(found.predicted, expected.predicted)
    torch.testing.assert_close(found.logprob, expected.logprob, rtol=1e-5, atol=1e-5)


@SETTINGS
@hypothesis.given(st.data())
def test_prefixes_and_shards_do_not_matter(data):
    """Any prefix in use and any division into files: equal bit for bit."""
    tensors = toys.draft_tensors("slots")
    prefix = data.draw(st.sampled_from(["", "model.", "draft_model.", "eagle_module."]))
    places = data.draw(st.lists(st.integers(0, 2), min_size=len(tensors), max_size=len(tensors)))
    shards = [[name for name, place in zip(tensors, places, strict=True) if place == i] for i in range(3)]
    expected, found = rolled_out(tensors), rolled_out(tensors, shards, prefix)
    assert torch.equal(found.predicted, expected.predicted)
    assert torch.equal(found.logprob, expected.logprob)


def test_a_rollout_s_rows_do_not_depend_on_later_tokens(draft, sample):
    """What comes after a start's own K tokens may be anything: equal bit for bit."""
    changed = sample.token_ids.clone()
    changed[-3:] = (changed[-3:] + 1) % toys.VOCABULARY
    first, second = (
        rollout(draft, replace(sample, token_ids=t), Wiring(toys.SLOTS), 3) for t in (sample.token_ids, changed)
    )
    early = first.starts + 2 + 3 <= len(changed) - 3
    assert early.any()
    assert torch.equal(first.predicted[early], second.predicted[early])
