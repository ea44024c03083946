"""`python -m eagle3lib check`: one screen or JSON, exit codes for CI."""

from __future__ import annotations

import json
import subprocess
import sys

import forms
import pytest
import torch
import toys
from typer.testing import CliRunner

from eagle3lib.__main__ import app
from eagle3lib.ecosystems import ENGINES
from eagle3lib.examination import parse_server_args

SOUND = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]}}


def check(*arguments: object):
    return CliRunner().invoke(app, ["check", *map(str, arguments)], env={"COLUMNS": "300"})


@pytest.fixture
def sound(tmp_path):
    """A draft in SpecForge's form that SGLang serves as it was trained."""
    tensors = forms.without(forms.midlayer(toys.draft_tensors()), "embed_tokens.weight")
    return forms.put(tmp_path / "draft", tensors, forms.flat_config(**SOUND))


@pytest.fixture
def deep(tmp_path):
    """The toy target, said to have 30 blocks."""
    return toys.write_target(tmp_path / "target", num_hidden_layers=30)


def test_no_fault_is_zero(sound, deep):
    found = check(sound, "--target", deep, "--engine", "sglang", "--engine-version", "0.5.23", "--values")
    assert found.exit_code == 0, found.output
    assert not any(line.startswith("fault") for line in found.output.splitlines())
    for words in (
        "SpecForge / SGLang flat", "midlayer.", "14 used, 1 unused, 1 missing", "read as offsets",
        "trained on B(2) B(15) B(27)", "SGLang 0.5.23", "[1, 14, 26]", "vLLM (V1 runner)", "llama.cpp",
    ):  # fmt: skip
        assert words in found.output, words


def test_every_engine_has_a_row(sound):
    data = json.loads(check(sound, "--target-layers", 30, "--json").output)
    assert len(data["ids"]) == len(ENGINES)
    by_name = {row["system"]: row for row in data["ids"]}
    assert by_name["SGLang"]["boundaries"] == [2, 15, 27]
    assert by_name["vLLM (V1 runner)"]["boundaries"] == [1, 14, 26]
    assert by_name["vLLM (V2 runner)"]["boundaries"] == [2, 15, 27]
    assert "passes over" in by_name["vLLM (V2 runner)"]["spelling"]


def test_a_fault_is_three(sound, deep):
    config = json.loads((sound / "config.json").read_text()) | {"norm_before_residual": True}
    (sound / "config.json").write_text(json.dumps(config))
    found = check(sound, "--target", deep, "--engine", "sglang")
    assert found.exit_code == 3
    assert "norm_before_residual" in found.output and "ignored by SGLang, TensorRT-LLM" in found.output
    assert check(sound, "--target", deep, "--engine", "llama.cpp").exit_code == 0


def test_a_fault_of_the_values_needs_the_values(sound, deep):
    toys.change_tensors(sound, midlayer__mlp__up_proj__weight=torch.full((48, 32), float("nan")))
    assert check(sound, "--target", deep).exit_code == 0
    assert check(sound, "--target", deep, "--values").exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["/nowhere"], "/nowhere"),
        (["DRAFT", "--engine", "sglnag"], "did you mean 'sglang'"),
        (["DRAFT", "--engine-version", "0.5.23"], "Expected --engine"),
        (["DRAFT", "--target", "/nowhere"], "/nowhere"),
        (["DRAFT", "--server-args", "--a 'b"], "cannot be split"),
        (["DRAFT", "--engine", "sglang", "--engine-version", "newest", "--target-layers", "30"], "looks like 0.5.23"),
    ],
)
def test_a_mistake_is_two(arguments, part, sound):
    found = check(*[sound if word == "DRAFT" else word for word in arguments])
    assert found.exit_code == 2, found.output
    assert part in found.stderr and "Traceback" not in found.output


def test_json_holds_all_that_the_screen_shows(sound, deep):
    data = json.loads(check(sound, "--target", deep, "--engine", "sglang", "--json").output)
    assert (data["form"], data["prefix"], data["trained"]) == ("SpecForge / SGLang flat", "", [2, 15, 27])
    assert {entry["status"] for entry in data["tensors"]} == {"used", "unused", "missing"}
    assert data["vocabulary"] == {"draft": 40, "target": 96, "reading": "offsets"}
    assert all(finding["severity"] in ("note", "ok", "risk") for finding in data["findings"])


def test_a_tensor_of_the_pass_that_is_missing_still_gives_the_ledger(sound):
    toys.change_tensors(sound, midlayer__mlp__up_proj__weight=None)
    found = check(sound, "--json")
    assert found.exit_code == 3
    codes = [finding["code"] for finding in json.loads(found.output)["findings"]]
    assert "checkpoint.tensor_missing" in codes


def test_config_json_of_the_target_is_enough(sound, deep):
    (deep / "model.safetensors").unlink()
    found = check(sound, "--target", deep, "--engine", "sglang")
    assert found.exit_code == 0
    assert "only config.json was used" in found.output and "trained on B(2) B(15) B(27)" in found.output


def test_the_architecture_named_decides(sound):
    """One SGLang list, two rules: deepseek's takes [2, ...] as boundaries."""
    config = forms.flat_config(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 14, 26]})
    (sound / "config.json").write_text(json.dumps(config))

    def served(*arguments):
        data = json.loads(check(sound, "--target-layers", 30, "--json", *arguments).output)
        return next(row["boundaries"] for row in data["ids"] if row["system"].startswith("SGLang"))

    assert served() == [3, 15, 27]
    assert served("--target-arch", "DeepseekV3ForCausalLM") == [2, 14, 26]


def test_server_args_are_split():
    text = "python -m sglang.launch_server --model x --speculative-num-steps=3 --speculative-eagle-topk 1 --trust"
    assert parse_server_args(text) == {
        "model": "x", "speculative-num-steps": "3", "speculative-eagle-topk": "1", "trust": True,
    }  # fmt: skip


def test_the_server_s_speculative_flags_are_shown(sound):
    found = check(sound, "--server-args", "--model-path x --speculative-num-steps 1")
    assert "Server: --speculative-num-steps 1" in found.output and "model-path" not in found.output


def test_as_a_module(sound):
    """As the README has it, in a process of its own."""
    command = [sys.executable, "-m", "eagle3lib", "check", str(sound), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["draft"] == str(sound)
