"""Dumps of hidden states: each slip ends in an InputError that names the file and says what to do."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
import torch
import toys
from complaints import LFS_POINTER, complaint
from safetensors.torch import save_file

from eagle3lib.dumps import open_dump
from eagle3lib.errors import InputError

BOUNDARIES = (0, 2, 3)


@pytest.fixture
def current(tmp_path: Path) -> Path:
    """A whole dump of two samples in the current layout."""
    return toys.write_current_dump(tmp_path / "dump", [toys.make_sample(1), toys.make_sample(2)], BOUNDARIES)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A whole dump of two samples in the list layout."""
    return toys.write_list_dump(tmp_path / "listed", [toys.make_sample(1), toys.make_sample(2)], BOUNDARIES)


def first_file(folder: Path) -> Path:
    """The first sample's file of a dump in the current layout."""
    return folder / "hidden_states" / "hs_0.safetensors"


def read_all(folder: Path) -> None:
    """Every sample of a dump; what a bad file's finding would say is raised."""
    dump = open_dump(folder, BOUNDARIES)
    for _ in dump:
        pass
    for problem in dump.reading.problems.values():
        raise InputError(problem)


def test_a_dump_that_is_not_there(tmp_path):
    complaint(lambda: open_dump(tmp_path / "nowhere", BOUNDARIES), str(tmp_path / "nowhere"), "found nothing")
    (tmp_path / "file").touch()
    complaint(lambda: open_dump(tmp_path / "file", BOUNDARIES), str(tmp_path / "file"), "found a file")


def test_a_folder_of_no_known_layout(tmp_path):
    (tmp_path / "notes.txt").touch()
    complaint(lambda: open_dump(tmp_path, BOUNDARIES), str(tmp_path), "notes.txt", "hs_0.safetensors", "data_0.pt")


@pytest.mark.parametrize("layout", ["current", "listed"])
def test_boundaries_not_stated(layout, request):
    folder = request.getfixturevalue(layout)
    complaint(lambda: open_dump(folder), str(folder), "holds 3 states", "boundaries = [")


@pytest.mark.parametrize("stated", [(0, 2), (0, 2, 3, 5)], ids=str)
@pytest.mark.parametrize("layout", ["current", "listed"])
def test_a_wrong_number_of_stated_boundaries(layout, stated, request):
    folder = request.getfixturevalue(layout)
    complaint(
        lambda: open_dump(folder, stated),
        f"Expected {len(stated)} states",
        str(folder),
        "found 3",
        "correct the boundaries",
    )


def test_a_boundary_stated_twice(current):
    complaint(lambda: open_dump(current, (0, 2, 2)), "[0, 2, 2]", str(current), "repeat")


def test_a_wanted_boundary_that_is_not_stored(current):
    complaint(lambda: open_dump(current, BOUNDARIES, read=(4,)), str(current), "B(0), B(2), B(3)", "not B(4)")


@pytest.mark.parametrize("layout", ["current", "listed"])
def test_a_later_sample_with_another_number_of_states(layout, request):
    folder = request.getfixturevalue(layout)
    other = [toys.make_sample(1), toys.make_sample(2)]
    writer = toys.write_current_dump if layout == "current" else toys.write_list_dump
    two = writer(folder.parent / "two", other, BOUNDARIES[:2])
    name = "hidden_states/hs_1.safetensors" if layout == "current" else "data_1.pt"
    (two / name).replace(folder / name)
    complaint(lambda: read_all(folder), Path(name).name, "Expected 3", "found 2")


def test_a_truncated_safetensors_file(current):
    file = first_file(current)
    file.write_bytes(file.read_bytes()[:-100])
    complaint(lambda: read_all(current), str(file), "not a whole safetensors file", "bytes on disk", "copy it again")


@pytest.mark.parametrize("content", [b"", b"\xff" * 64], ids=["empty", "noise"])
def test_a_file_that_is_no_safetensors(content, current):
    first_file(current).write_bytes(content)
    complaint(
        lambda: read_all(current), str(first_file(current)), "not a whole safetensors file", f"{len(content)} bytes"
    )


def test_a_git_lfs_pointer(current):
    first_file(current).write_bytes(LFS_POINTER)
    complaint(lambda: read_all(current), str(first_file(current)), "git-lfs pointer", "git lfs pull")


def test_a_sample_without_its_tensors(current):
    save_file({"hidden_states": torch.zeros(4, 3, 8)}, first_file(current))
    complaint(lambda: read_all(current), str(first_file(current)), "token_ids", "found hidden_states")


def test_states_without_a_states_axis(current):
    save_file({"hidden_states": torch.zeros(5, 4, 3, 8), "token_ids": torch.zeros(4).long()}, first_file(current))
    complaint(lambda: read_all(current), str(first_file(current)), "[tokens, states, hidden size]", "[5, 4, 3, 8]")


def test_a_dump_without_its_arrow_data_set(current):
    next(current.glob("*.arrow")).unlink()
    complaint(lambda: read_all(current), str(current), "Arrow data set", "data-*.arrow", "found none")


def test_a_truncated_arrow_data_set(current):
    file = next(current.glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:40])
    complaint(lambda: read_all(current), str(current), "Arrow data set", "copy it again")


def test_an_arrow_data_set_without_masks(current):
    toys.write_arrow(current, pa.table({"input_ids": [[1, 2]]}))
    complaint(lambda: read_all(current), str(current), "loss_mask", "input_ids")


def test_an_arrow_data_set_with_too_few_rows(current):
    sample = toys.make_sample(1)
    rows = {"input_ids": [sample.token_ids.tolist()], "loss_mask": [sample.loss_mask.long().tolist()]}
    toys.write_arrow(current, pa.table(rows))
    complaint(lambda: read_all(current), "hs_1.safetensors", "no row 1", "has 1", "incomplete")


def test_states_of_another_sample(current):
    first, second = first_file(current), current / "hidden_states" / "hs_1.safetensors"
    first.write_bytes(second.read_bytes())
    complaint(lambda: read_all(current), str(first), "does not match", "another sample's")


def test_a_sample_file_without_a_number(current):
    first_file(current).rename(current / "hidden_states" / "hs_a.safetensors")
    complaint(lambda: read_all(current), "hs_a.safetensors", "Expected a number")


class Payload:
    """Runs when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_pickled_code_in_a_dump_never_runs(legacy, listed, tmp_path):
    """A `.pt` whose unpickling would write a file is refused, and no file appears."""
    file, marker = listed / "data_0.pt", tmp_path / "ran"
    data = torch.load(file, weights_only=True) | {"extra": Payload(marker)}
    torch.save(data, file, _use_new_zipfile_serialization=not legacy)
    complaint(lambda: read_all(listed), str(file), "tensors alone", "safetensors")
    assert not marker.exists()
    torch.load(file, weights_only=False)
    assert marker.exists(), "the payload must be one that would run"


def test_a_bare_pickle_never_runs(listed, tmp_path):
    marker = tmp_path / "ran"
    (listed / "data_0.pt").write_bytes(pickle.dumps(Payload(marker)))
    complaint(lambda: read_all(listed), str(listed / "data_0.pt"), "tensors alone")
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", LFS_POINTER, b"\x00" * 200], ids=["empty", "lfs", "noise"])
def test_a_broken_pt_file(content, listed):
    (listed / "data_0.pt").write_bytes(content)
    complaint(lambda: read_all(listed), str(listed / "data_0.pt"), "tensors alone")


def test_a_truncated_pt_file(listed):
    file = listed / "data_0.pt"
    file.write_bytes(file.read_bytes()[:-2000])
    complaint(lambda: read_all(listed), str(file), "tensors alone")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"loss_mask": None}, ("loss_mask", "Tensor", "NoneType")),
        ({"hidden_states": None}, ("hidden_states", "list", "found NoneType")),
        ({"input_ids": [1, 2]}, ("input_ids", "Tensor", "found list")),
        ({"hidden_states": [torch.zeros(9, 8)] * 3}, ("[36, hidden size]", "[9, 8]")),
        ({"hidden_states": [torch.zeros(36)] * 3}, ("[36, hidden size]", "[36]")),
    ],
    ids=["no mask", "no states", "list of ids", "rows", "one axis"],
)
def test_a_pt_file_with_the_wrong_entries(changes, parts, listed):
    file = listed / "data_0.pt"
    torch.save(torch.load(file, weights_only=True) | changes, file)
    complaint(lambda: read_all(listed), str(file), *parts)


def test_a_pt_file_whose_states_are_no_tensors(listed):
    file = listed / "data_0.pt"
    torch.save(torch.load(file, weights_only=True) | {"hidden_states": [[1.0]] * 3}, file)
    complaint(lambda: read_all(listed), str(file), "hidden size")


@pytest.mark.parametrize("layout", ["current", "listed"])
def test_a_mask_of_another_length_than_the_tokens(layout, request):
    folder = request.getfixturevalue(layout)
    if layout == "listed":
        file = folder / "data_0.pt"
        torch.save(torch.load(file, weights_only=True) | {"loss_mask": torch.ones(99)}, file)
    else:
        ids = [toys.make_sample(seed).token_ids.tolist() for seed in (1, 2)]
        toys.write_arrow(folder, pa.table({"input_ids": ids, "loss_mask": [[1] * 99] * 2}))
    complaint(lambda: read_all(folder), "loss mask of 99")
