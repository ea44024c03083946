"""Drafts, and what they are run on: each slip ends in an InputError that names the file and says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import toys
from complaints import LFS_POINTER, complaint
from torch import Tensor

from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import load_draft
from eagle3lib.rollout import rollout


def changed(folder: Path, **changes: Tensor | None) -> Path:
    """A whole toy draft with some tensors changed."""
    return toys.change_tensors(toys.write_draft(folder), **changes)


def test_a_draft_that_is_not_there(tmp_path):
    complaint(lambda: load_draft(tmp_path / "nowhere"), str(tmp_path / "nowhere"), "found nothing")


def test_a_draft_without_weights(tmp_path):
    (toys.write_draft(tmp_path) / "model.safetensors").unlink()
    complaint(lambda: load_draft(tmp_path), str(tmp_path), ".safetensors", "found config.json")


def test_a_draft_without_a_config(tmp_path):
    (toys.write_draft(tmp_path) / "config.json").unlink()
    complaint(lambda: load_draft(tmp_path), str(tmp_path / "config.json"), "check the path")


@pytest.mark.parametrize(("text", "part"), [("{", "not JSON"), ("[1]", "found list"), ("\xff", "not JSON")])
def test_a_config_that_is_no_json_object(text, part, tmp_path):
    (toys.write_draft(tmp_path) / "config.json").write_bytes(text.encode("latin-1"))
    complaint(lambda: load_draft(tmp_path), str(tmp_path / "config.json"), part)


@pytest.mark.parametrize("name", ["num_attention_heads", "rms_norm_eps", "vocab_size"])
def test_a_config_without_a_number(name, tmp_path):
    config = toys.draft_config()
    del config["transformer_layer_config"][name]
    (toys.write_draft(tmp_path) / "config.json").write_text(json.dumps(config))
    complaint(lambda: load_draft(tmp_path), str(tmp_path / "config.json"), name)


def test_a_config_that_contradicts_the_shapes(tmp_path):
    config = toys.draft_config()
    config["transformer_layer_config"]["head_dim"] = 7
    (toys.write_draft(tmp_path) / "config.json").write_text(json.dumps(config))
    complaint(lambda: load_draft(tmp_path), str(tmp_path), "4 heads of 7", "32 rows", "correct")


def test_a_rope_that_is_not_computed(tmp_path):
    config = toys.draft_config()
    config["transformer_layer_config"]["rope_parameters"] = {"rope_type": "spiral", "rope_theta": 1e4}
    (toys.write_draft(tmp_path) / "config.json").write_text(json.dumps(config))
    complaint(lambda: load_draft(tmp_path), str(tmp_path), "'spiral'", "longrope")


@pytest.mark.parametrize("name", ["fc.weight", "layers.0.hidden_norm.weight", "norm.weight"])
def test_a_draft_without_a_tensor_of_the_pass(name, tmp_path):
    changed(tmp_path, **{name.replace(".", "__"): None})
    complaint(lambda: load_draft(tmp_path), str(tmp_path), name, "EAGLE-3")


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_a_tensor_that_only_a_target_could_give(name, tmp_path):
    changed(tmp_path, **{name.replace(".", "__"): None})
    complaint(lambda: load_draft(tmp_path), str(tmp_path), name, "name the target")


def test_a_layer_of_the_first_eagle(tmp_path):
    changed(tmp_path, layers__0__self_attn__q_proj__weight=torch.zeros(32, 32))
    complaint(lambda: load_draft(tmp_path), str(tmp_path), "2 x 32", "found 32", "EAGLE-1")


def test_an_fc_that_is_no_multiple_of_the_target_s_width(tmp_path):
    changed(tmp_path, fc__weight=torch.zeros(32, 90))
    complaint(lambda: load_draft(tmp_path), str(tmp_path), "90 inputs", "32")


def test_d2t_stored_as_absolute_ids(draft, tmp_path):
    """Told by t2d, and loaded as what it is; that engines read it otherwise is a finding."""
    d2t, _ = toys.vocabulary_maps()
    changed(tmp_path, d2t=d2t + torch.arange(len(d2t)))
    assert torch.equal(load_draft(tmp_path, device="cpu").target_ids, draft.target_ids)


def test_d2t_of_another_vocabulary(tmp_path):
    d2t, _ = toys.vocabulary_maps()
    changed(tmp_path, d2t=d2t + 100)
    complaint(lambda: load_draft(tmp_path), str(tmp_path), "outside the vocabulary of 96", "absolute ids")


def test_d2t_below_the_vocabulary(tmp_path):
    d2t, _ = toys.vocabulary_maps()
    d2t[0] = -1
    changed(tmp_path, d2t=d2t)
    complaint(lambda: load_draft(tmp_path), str(tmp_path), "d2t", "-1 ..", "outside")


def test_d2t_that_names_a_token_twice(tmp_path):
    d2t, _ = toys.vocabulary_maps()
    d2t[1] = d2t[0] - 1
    changed(tmp_path, d2t=d2t)
    complaint(lambda: load_draft(tmp_path), str(tmp_path), "40 draft ids to 39 target ids", "repeat")


@pytest.mark.parametrize("shard", ["../other/model.safetensors", "/etc/model.safetensors"])
def test_an_index_that_leads_out_of_the_folder(shard, tmp_path):
    folder = toys.write_draft(tmp_path / "draft")
    toys.write_draft(tmp_path / "other")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"fc.weight": shard}}))
    complaint(lambda: load_draft(folder), str(index), shard, "outside the folder")


def test_an_index_that_names_a_missing_shard(tmp_path):
    folder = toys.write_draft(tmp_path)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"fc.weight": "model-2.safetensors"}})
    )
    complaint(lambda: load_draft(folder), str(folder / "model-2.safetensors"), "found none")


def test_a_draft_s_git_lfs_pointer(tmp_path):
    (toys.write_draft(tmp_path) / "model.safetensors").write_bytes(LFS_POINTER)
    complaint(lambda: load_draft(tmp_path), str(tmp_path / "model.safetensors"), "git lfs pull")


@pytest.mark.parametrize(
    ("name", "tensor", "parts"),
    [
        ("layers.0.self_attn.q_norm.weight", torch.ones(toys.HEAD_DIM), ["q_norm", "without the other"]),
        ("layers.1.mlp.up_proj.weight", torch.ones(toys.INTERMEDIATE, toys.HIDDEN), ["layers.1.", "found none"]),
        ("fc.bias", torch.ones(toys.HIDDEN + 1), ["fc.bias", "[33]", "[32]"]),
    ],
)
def test_half_of_what_changes_the_pass(name, tensor, parts, tmp_path):
    """A query norm without the key's, one tensor of a second layer, a bias of another size: no guess."""
    changed(tmp_path, **{name.replace(".", "__"): tensor})
    complaint(lambda: load_draft(tmp_path), str(tmp_path), *parts)


def test_an_activation_that_is_not_computed(tmp_path):
    config = toys.draft_config()
    config["transformer_layer_config"]["hidden_act"] = "gelu"
    (toys.write_draft(tmp_path) / "config.json").write_text(json.dumps(config))
    complaint(lambda: load_draft(tmp_path), str(tmp_path), "'gelu'", "silu")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("d2t", (38,)),
        ("norm.weight", (16,)),
        ("layers.0.mlp.down_proj.weight", (32, 40)),
        ("embed_tokens.weight", (50, 32)),
        ("input_norm.weight", (32,)),
    ],
)
def test_shapes_that_contradict_each_other_are_seen_on_loading(name, shape, tmp_path):
    """Each contradicts the head, the hidden size or the vocabulary; the pass would fail later, or silently not."""
    d2t, _ = toys.vocabulary_maps()
    changed(tmp_path, **{name.replace(".", "__"): d2t[:38] if name == "d2t" else torch.ones(shape)})
    complaint(lambda: load_draft(tmp_path), str(tmp_path), name)


def test_tokens_of_another_model(draft):
    """An id beyond the draft's embedding is another model's."""
    sample = toys.make_sample()
    sample.token_ids[4] = toys.VOCABULARY + 3
    complaint(lambda: rollout(draft, sample, Wiring(toys.SLOTS), 1), "vocabulary of 96")


def test_states_of_another_target(draft):
    sample = toys.make_sample()
    wide = {b: torch.cat([h, h], dim=1) for b, h in sample.states.items()}
    other = type(sample)("wide", sample.token_ids, sample.loss_mask, wide)
    complaint(
        lambda: rollout(draft, other, Wiring(toys.SLOTS), 1), "wide", "width 64", "slots of 32", "another target's"
    )


def test_a_wiring_with_a_slot_too_few(draft):
    complaint(lambda: rollout(draft, toys.make_sample(), Wiring((0, 2)), 1), "3 slots", "names 2")


@pytest.mark.parametrize("norm", ["concat", "slots"])
def test_a_wiring_with_a_norm_that_the_draft_lacks(norm, draft):
    wiring = Wiring(toys.SLOTS, input_norm=norm)
    complaint(lambda: rollout(draft, toys.make_sample(), wiring, 1), "input norm", str(draft.path), "holds 0")
