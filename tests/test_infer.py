"""A draft's config: tensors first, config.json second, and what the second says against the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import toys
from complaints import complaint

from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import load_draft
from eagle3lib.config import DraftConfig


def config_of(folder: Path, tensors: dict | None = None, layer: dict | None = None, **flags: object) -> DraftConfig:
    """What is read of a toy draft whose config.json says something else."""
    toys.write_draft(folder, tensors, **flags)
    config = json.loads((folder / "config.json").read_text())
    config["transformer_layer_config"] |= layer or {}
    (folder / "config.json").write_text(json.dumps(config))
    return load_draft(folder, device="cpu").config


def test_a_config_that_agrees_has_no_mismatch(tmp_path):
    assert config_of(tmp_path).mismatches == ()


@pytest.mark.parametrize(
    ("layer", "flags", "field", "value"),
    [
        ({"hidden_size": 64}, {}, "hidden_size", toys.HIDDEN),
        ({"intermediate_size": 7}, {}, "intermediate_size", toys.INTERMEDIATE),
        ({"num_key_value_heads": 4}, {}, "n_kv_heads", toys.KV_HEADS),
        ({"num_hidden_layers": 2}, {}, "n_layers", 1),
        ({}, {"draft_vocab_size": 41}, "draft_vocab_size", toys.DRAFT_VOCABULARY),
        ({}, {"norm_before_fc": True}, "input_norm", "none"),
        ({}, {"fc_norm": True}, "input_norm", "none"),
        ({}, {"use_aux_hidden_state": False}, "uses_fc", True),
    ],
    ids=str,
)
def test_the_tensors_win_and_one_sentence_says_so(layer, flags, field, value, tmp_path):
    config = config_of(tmp_path, layer=layer, **flags)
    assert getattr(config, field) == value
    (sentence,) = config.mismatches
    assert sentence.startswith("config.json says ") and str(next(iter({**layer, **flags}))) in sentence


def test_a_norm_in_the_file_is_used_though_the_config_denies_it(tmp_path):
    config = config_of(tmp_path, toys.draft_tensors("slots"), fc_norm=False, norm_before_fc=False)
    assert config.input_norm == "slots"
    assert config.mismatches == ("config.json says fc_norm = False, the tensors say True",)


def test_the_norms_tell_a_slot_s_width(tmp_path):
    """`target_hidden_size` may be absent where fc_norm's weights have it."""
    tensors = toys.draft_tensors()
    width = 3 * toys.HIDDEN // 4
    tensors |= {f"fc_norm.{i}.weight": torch.ones(width) for i in range(4)}
    config = config_of(tmp_path, tensors)
    assert (config.n_slots, config.target_hidden_size) == (4, width)


def test_a_head_norm_tells_the_heads(tmp_path):
    """With q_norm the head size is stored; a config without head_dim and with other heads is overruled."""
    tensors = toys.draft_tensors(heads=4, head_dim=16) | {
        f"layers.0.self_attn.{x}_norm.weight": torch.ones(16) for x in "qk"
    }
    config = config_of(tmp_path, tensors, {"head_dim": None, "num_attention_heads": 8})
    assert (config.n_heads, config.head_dim, config.n_kv_heads) == (4, 16, 2)
    assert config.mismatches == ("config.json says num_attention_heads = 8, the tensors say 4",)


def test_a_file_without_fc_needs_a_config_that_says_so(tmp_path):
    tensors = {name: t for name, t in toys.draft_tensors().items() if name != "fc.weight"}
    complaint(lambda: config_of(tmp_path, tensors), str(tmp_path), "fc.weight", "EAGLE-3")


def test_a_wiring_s_flags_override_the_config(draft):
    """Every flag that is set, and no other."""
    flags = {"input_norm": "slots", "norm_output": True, "norm_head": False, "window_from": "start"}
    config = draft.config.under(Wiring(toys.SLOTS, **flags, rope_theta=3.0, position_offset=1))
    assert {name: getattr(config, name) for name in flags} == flags
    assert (config.rope.theta, config.position_offset) == (3.0, 1)
    assert config.norm_before_residual == draft.config.norm_before_residual
    assert draft.config.under(Wiring(toys.SLOTS)) == draft.config
