"""Files on a mount that maps none: read, not mapped, and the same numbers."""

from __future__ import annotations

import errno

import forms
import pytest
import torch
import toys
from complaints import LFS_POINTER, complaint
from safetensors.torch import save_file

from eagle3lib import plain_file, tensors
from eagle3lib.checkpoint import load_draft
from eagle3lib.dialects import read_checkpoint
from eagle3lib.tensors import open_safetensors, read_rows, read_tensor


@pytest.fixture(params=["variable", "refused"])
def unmapped(request, monkeypatch):
    """Asked for by the environment, or found out: the map fails with errno 19."""
    if request.param == "variable":
        monkeypatch.setenv(plain_file.VARIABLE, "1")
        return

    def refuse(*arguments, **more):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(tensors, "safe_open", refuse)


def test_a_draft_is_the_same(unmapped, tmp_path):
    numbers = toys.draft_tensors()
    checkpoint = read_checkpoint(forms.tensorrt_llm(tmp_path, numbers))
    rows = torch.tensor([5, 0, 5])
    for name, expected in numbers.items():
        assert torch.equal(read_tensor(checkpoint.tensors[name]), expected), name
        assert torch.equal(read_rows(checkpoint.tensors[name], rows), expected[rows]), name
    assert torch.equal(load_draft(tmp_path, device="cpu").weights.fc, numbers["fc.weight"])


@pytest.mark.parametrize("dtype", plain_file.DTYPES.values())
def test_every_type(dtype, unmapped, tmp_path):
    stored = torch.arange(12).reshape(4, 3).to(dtype)
    save_file({"x": stored, "none": torch.zeros(0, 3)}, tmp_path / "x.safetensors", metadata={"format": "pt"})
    with open_safetensors(tmp_path / "x.safetensors") as handle:
        assert set(handle.keys()) == {"x", "none"} and handle.metadata() == {"format": "pt"}
        assert torch.equal(handle.get_tensor("x").float(), stored.float())
        assert handle.get_tensor("none").shape == (0, 3)


@pytest.mark.parametrize("cut", [0, 4, 40, -1])
def test_a_file_that_is_cut(cut, unmapped, tmp_path):
    file = toys.write_draft(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    complaint(lambda: read_checkpoint(tmp_path), str(file), "not a whole safetensors file", "copy it again")


def test_a_pointer_is_named(unmapped, tmp_path):
    (toys.write_draft(tmp_path) / "model.safetensors").write_bytes(LFS_POINTER)
    complaint(lambda: read_checkpoint(tmp_path), "git lfs pull")


def test_another_error_is_not_taken_for_that_one(monkeypatch, tmp_path):
    def refuse(*arguments, **more):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tensors, "safe_open", refuse)
    with pytest.raises(PermissionError):
        read_checkpoint(toys.write_draft(tmp_path))
