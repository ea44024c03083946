"""Devices, targets and cases: each slip ends in an InputError that names the file and says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import toys
from complaints import LFS_POINTER, complaint
from safetensors.torch import save_file

from eagle3lib.case import load_case
from eagle3lib.device import resolve_device
from eagle3lib.target import load_target


def test_a_device_that_is_none():
    complaint(lambda: resolve_device("gpu0"), "'gpu0'", "cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_absent():
    complaint(lambda: resolve_device("cuda"), "'cuda'", "--device cpu")


def test_a_target_that_is_not_there(tmp_path):
    complaint(lambda: load_target(tmp_path / "nowhere"), str(tmp_path / "nowhere"), "found nothing")
    complaint(lambda: load_target(tmp_path / "model.gguf"), str(tmp_path / "model.gguf"), "found none")


@pytest.mark.parametrize("content", [b"", b"GGUF", LFS_POINTER, b"\x00" * 64], ids=["empty", "magic", "lfs", "noise"])
def test_a_file_that_is_no_gguf(content, tmp_path):
    (tmp_path / "model.gguf").write_bytes(content)
    complaint(lambda: load_target(tmp_path / "model.gguf"), str(tmp_path / "model.gguf"), "copy it again")


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight"])
def test_a_target_without_a_tensor(name, tmp_path):
    toys.change_tensors(toys.write_target(tmp_path), **{name.replace(".", "__"): None})
    complaint(lambda: load_target(tmp_path), str(tmp_path), name)


def test_a_target_without_a_head(tmp_path):
    toys.change_tensors(toys.write_target(tmp_path), lm_head__weight=None)
    complaint(lambda: load_target(tmp_path).head_rows(torch.tensor([0])), str(tmp_path), "lm_head.weight")


@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "rms_norm_eps"])
def test_a_target_s_config_without_a_number(name, tmp_path):
    toys.write_target(tmp_path)
    config = toys.layer_config()
    del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    complaint(lambda: load_target(tmp_path), str(tmp_path / "config.json"), name)


def test_only_the_needed_shards_of_a_target_must_be_present(tmp_path):
    """The blocks' shards may be absent; a shard that is needed is asked for by its tensor."""
    tensors = toys.target_tensors()
    toys.write_target(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    index = {name: "model-1.safetensors" for name in tensors} | {
        "model.layers.0.mlp.up_proj.weight": "model-2.safetensors"
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    complaint(lambda: load_target(tmp_path), str(tmp_path), "model.embed_tokens.weight", "shards that are present")
    save_file(tensors, tmp_path / "model-1.safetensors")
    assert torch.equal(load_target(tmp_path).norm_weight, tensors["model.norm.weight"])


@pytest.fixture
def case_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a case.toml beside a draft's folder."""
    (tmp_path / "draft").mkdir()
    (tmp_path / "dump").mkdir()

    def write(text: str) -> Path:
        (tmp_path / "case.toml").write_text(text)
        return tmp_path / "case.toml"

    return write


DRAFT = '[draft]\npath = "draft"\n'
DUMP = '[[dumps]]\nname = "five"\npath = "dump"\n'


def test_a_whole_case_is_read(case_file, tmp_path):
    """Paths come out absolute, and boundaries as the core speaks them."""
    case = load_case(case_file(f'{DRAFT}{DUMP}boundaries = [0, "3", "final_normed"]\n'))
    assert case.draft.path == tmp_path / "draft"
    assert case.dumps[0].boundaries == (0, 3, "final_normed")
    assert case.name == tmp_path.name


def test_a_case_that_is_not_there(tmp_path):
    complaint(lambda: load_case(tmp_path / "case.toml"), str(tmp_path / "case.toml"), "found none")
    complaint(lambda: load_case(tmp_path), str(tmp_path), "found a folder")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[draft", ("not TOML",)),
        ("", ("the field draft is missing",)),
        ('[draft]\ntrainer = "speculators"\n', ("the field draft.path is missing",)),
        (DRAFT + "treiner = 1\n", ("draft.treiner is no field", "spelling")),
        (DRAFT + "[serve]\nsteps = 3\n", ("serve is no field",)),
        ("path = 'x'\n" + DRAFT, ("the field path",)),
        ("[draft]\npath = 'nowhere'\n", ("draft.path = 'nowhere'", "does not exist")),
        (DRAFT + "[target]\npath = 'nowhere'\n", ("target.path", "does not exist", "run_all.sh")),
        (DRAFT + "[training]\nrecord = 'nowhere.json'\n", ("training.record", "does not exist")),
        (DRAFT + DUMP.replace('"dump"', '"nowhere"'), ("dumps[0].path", "does not exist")),
        (DRAFT + DUMP + DUMP, ("two dumps 'five'", "name of its own")),
        (DRAFT + DUMP + "temperature = -1\n", ("dumps.0.temperature", "greater than or equal to 0", "found -1")),
        (DRAFT + DUMP + 'temperature = "warm"\n', ("dumps.0.temperature", "valid number", "found 'warm'")),
        (DRAFT + DUMP + "boundaries = [-1, 3]\n", ("dumps.0.boundaries.0", "0 or more", "-1")),
        (DRAFT + DUMP + 'boundaries = ["last"]\n', ("dumps.0.boundaries.0", "'last'")),
        (DRAFT + DUMP + "boundaries = [0, 3.7]\n", ("dumps.0.boundaries.1", "3.7")),
        (DRAFT + DUMP + "boundaries = [true]\n", ("dumps.0.boundaries.0", "True")),
        (DRAFT + DUMP + "boundaries = [[0, 3]]\n", ("dumps.0.boundaries.0", "[0, 3]")),
        (DRAFT + DUMP + "boundaries = 3\n", ("dumps.0.boundaries", "found 3")),
        (DRAFT + DUMP.replace("[[dumps]]", "[dumps]"), ("dumps", "tuple")),
        (DRAFT + '[served]\nengine = "sglang"\nsteps = 0\n', ("served.steps", "greater than or equal to 1")),
        (DRAFT + '[served]\nengine = "sglang"\nacceptance_length = 0.9\n', ("served.acceptance_length", "0.9")),
        ('draft = "draft"\n', ("draft", "found 'draft'")),
    ],
)
def test_a_case_with_a_wrong_field(text, parts, case_file):
    file = case_file(text)
    complaint(lambda: load_case(file), str(file), *parts)
