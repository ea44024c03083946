"""The documentation of dumps: its code writes a file that is read back, and its claims are those of the package."""

from __future__ import annotations

import re

import pytest
import torch
from bundled import ROOT
from tiny_models import COMMON, N_LAYERS, tiny_model

from eagle3lib import ecosystems, open_dump
from eagle3lib.capture import prefill, recognise
from eagle3lib.ecosystems import TargetShape

TEXT = (ROOT / "docs" / "obtaining_dumps.md").read_text(encoding="utf-8")
WRITER = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)[-1]
SEQUENCES = [([5, 9, 33, 8, 60, 41], 3), ([7, 12, 13, 80], 2)]


def test_twenty_lines_of_plain_torch_write_a_dump(tmp_path):
    model = tiny_model("LlamaConfig", COMMON)
    given = {"model": model, "blocks": model.model.layers, "norm": model.model.norm, "device": "cpu"}
    exec(WRITER, {**given, "BOUNDARIES": [0, 2, N_LAYERS], "sequences": SEQUENCES, "folder": tmp_path})
    whole = recognise(tiny_model("LlamaConfig", COMMON))
    for sample, (token_ids, prompt_length) in zip(open_dump(tmp_path), SEQUENCES, strict=True):
        ids = torch.tensor(token_ids)
        assert torch.equal(sample.token_ids, ids)
        assert sample.loss_mask.tolist() == [i >= prompt_length for i in range(len(ids))]
        assert sample.temperature == 0.0
        expected, _ = prefill(whole, ids, [0, 2, N_LAYERS], torch.bfloat16)
        assert list(sample.states) == [0, 2, N_LAYERS]
        for boundary, state in expected.items():
            assert torch.equal(sample.state(boundary), state)


def test_twenty_lines_need_nothing_of_this_package():
    assert "eagle3lib" not in WRITER.replace('"format": "eagle3lib"', "")
    assert len([line for line in WRITER.splitlines() if line.strip()]) <= 21


@pytest.mark.parametrize(
    ("architecture", "boundary", "version", "captured"),
    [
        ("LlamaForCausalLM", 0, "0.5.21", False),
        ("LlamaForCausalLM", 0, "0.5.22", True),
        ("DeepseekV3ForCausalLM", 0, "0.5.13", False),
        ("KimiK25ForConditionalGeneration", 0, "0.5.14", True),
        ("LlamaForCausalLM", 32, "0.5.23", False),
        ("LlamaForCausalLM", 31, "0.5.23", True),
        ("GptOssForCausalLM", 32, "0.5.16", False),
        ("GptOssForCausalLM", 32, "0.5.17", True),
        ("Gemma4ForCausalLM", 32, "0.5.23", True),
        ("MiniMaxM3SparseForCausalLM", 32, "0.5.22", False),
        ("MiniMaxM3SparseForCausalLM", 32, "0.5.23", True),
        ("Gemma3ForCausalLM", 16, "0.5.17", False),
    ],
)
def test_what_sglang_captures_is_as_its_rules_say(architecture, boundary, version, captured):
    problem = ecosystems.engine("sglang").problem((boundary,), TargetShape(32, architecture), version)
    assert (problem is None) == captured


def test_what_vllm_captures_is_as_its_rules_say():
    engine = ecosystems.engine("vllm")
    assert engine.verified in TEXT
    assert engine.problem((0, 2, 16, 29, 32), TargetShape(32, "LlamaForCausalLM")) is None
    assert engine.problem((0,), TargetShape(61, "DeepseekV3ForCausalLM"))
    assert engine.problem((61,), TargetShape(61, "KimiK25ForConditionalGeneration")) is None
