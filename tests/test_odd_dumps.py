"""Values that a file may hold and no writer means: refused in a sentence, never read as something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import toys
import written
from complaints import complaint
from safetensors.torch import load_file, save_file

from eagle3lib.axes import Known
from eagle3lib.boundaries import FINAL_NORMED
from eagle3lib.dumps import open_dump

(SAMPLE,) = written.samples(1)
N = len(SAMPLE.token_ids)


def read(folder: Path, **known: object) -> list:
    return list(open_dump(folder, **known))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"loss_mask": torch.full((N,), -100)}, "zeros and ones"),
        ({"loss_mask": torch.full((N,), torch.nan)}, "zeros and ones"),
        ({"hidden_states_prenorm": "False"}, "hidden_states_prenorm as True or False"),
        ({"hidden_states_prenorm": torch.tensor([True, False])}, "hidden_states_prenorm as True or False"),
        ({"input_ids": torch.ones(N, dtype=torch.bool)}, "whole token ids"),
    ],
)
def test_odd_entries_of_a_dictionary_are_refused(more, said, tmp_path):
    written.modelopt(tmp_path / "dump", [SAMPLE], **more)
    known = {"boundaries": (*toys.SLOTS, FINAL_NORMED), "known": Known(toys.HIDDEN)}
    assert said in complaint(lambda: read(tmp_path / "dump", **known))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t: t.update(input_ids=t["input_ids"] - 50), "whole token ids"),
        (lambda t: t.update(input_ids=t["input_ids"].float()), "whole token ids"),
        (lambda t: t.update(loss_mask=t["loss_mask"] * -100), "zeros and ones"),
        (lambda t: t.update(aux_hidden_states=t["aux_hidden_states"].long()), "numbers with a fraction"),
    ],
)
def test_odd_tensors_of_a_shard_are_refused(edit: Callable, said, tmp_path):
    written.nemo(tmp_path / "dump", [SAMPLE])
    file = tmp_path / "dump" / "shard-000000.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)
    assert said in complaint(lambda: read(tmp_path / "dump"))


def test_a_manifest_that_lists_another_number_of_states_is_refused(tmp_path):
    """Three states of 32 are also two of 48: the target's hidden size tells."""
    written.nemo(tmp_path / "dump", [SAMPLE])
    manifest = tmp_path / "dump" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"aux_layer_ids": [1, 2]}))
    assert "2 states of size 32" in complaint(lambda: read(tmp_path / "dump", known=Known(toys.HIDDEN)))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"aux_layer_ids": [' + "9" * 5000 + "]}"], ids=["deep", "long number"]
)
def test_json_that_the_parser_gives_up_on_is_refused(text, tmp_path):
    written.nemo(tmp_path / "dump", [SAMPLE])
    (tmp_path / "dump" / "manifest.json").write_text(text)
    assert "is not JSON" in complaint(lambda: read(tmp_path / "dump"))


@pytest.mark.parametrize("name", ["boundary.03", "boundary.-1", "boundary.x"])
def test_a_state_whose_name_is_no_boundary_is_refused(name, tmp_path):
    written.own(tmp_path / "dump", [SAMPLE])
    file = tmp_path / "dump" / "sample_000000.safetensors"
    save_file(load_file(file) | {name: SAMPLE.states[2]}, file, metadata={"format": "eagle3lib", "version": "1"})
    assert name in complaint(lambda: read(tmp_path / "dump"))


def test_states_of_two_sizes_are_refused(tmp_path):
    """Where no target says which is right."""
    (tmp_path / "dump").mkdir()
    states = [SAMPLE.states[0], SAMPLE.states[2][:, :16]]
    data = {"input_ids": SAMPLE.token_ids, "hidden_states": states, "loss_mask": SAMPLE.loss_mask}
    torch.save(data, tmp_path / "dump" / "prompt_0.pt")
    assert "one hidden size" in complaint(lambda: read(tmp_path / "dump", boundaries=(0, 2)))
