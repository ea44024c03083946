"""Both dump layouts, as the libraries write them, come back as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys

from eagle3lib.boundaries import FINAL_NORMED
from eagle3lib.dumps import open_dump, recognise_layout
from eagle3lib.errors import InputError
from eagle3lib.sample import Sample

BOUNDARIES = (0, 2, 3, toys.N_LAYERS)
WRITERS = {"speculators": toys.write_current_dump, "speculators-list": toys.write_list_dump}


def recorded(n: int = 3) -> list[Sample]:
    """Samples of different lengths and turns, states in bfloat16 as trainers store them."""
    samples = [toys.make_sample(60 + i, length=20 + i, turns=((3, 8), (11, 20))) for i in range(n)]
    return [replace(s, states={b: h.bfloat16() for b, h in s.states.items()}) for s in samples]


@pytest.fixture(params=WRITERS)
def dump_folder(request, tmp_path: Path) -> tuple[str, Path, list[Sample]]:
    """A layout's name, a folder in it, and what was written."""
    samples = recorded()
    return request.param, WRITERS[request.param](tmp_path / "dump", samples, BOUNDARIES), samples


def test_a_dump_comes_back_as_it_was_written(dump_folder):
    """Tokens, masks and every state of every sample, bit for bit, in order; twice over."""
    layout, folder, samples = dump_folder
    assert recognise_layout(folder).name == layout
    dump = open_dump(folder, BOUNDARIES, temperature=0.8)
    for _ in range(2):
        for found, expected in zip(dump, samples, strict=True):
            assert torch.equal(found.token_ids, expected.token_ids)
            assert torch.equal(found.loss_mask, expected.loss_mask)
            assert found.turns == expected.turns
            assert tuple(found.states) == BOUNDARIES
            for boundary in BOUNDARIES:
                assert torch.equal(found.state(boundary), expected.state(boundary))
            assert found.temperature == 0.8


@pytest.mark.parametrize("read", [(3, 0), (toys.N_LAYERS,), ()], ids=str)
def test_only_the_wanted_boundaries_are_carried(dump_folder, read):
    """In the order asked for, each with its own states; a boundary left out is refused by name."""
    _, folder, samples = dump_folder
    for found, expected in zip(open_dump(folder, BOUNDARIES, read=read), samples, strict=True):
        assert tuple(found.states) == read
        for boundary in read:
            assert torch.equal(found.state(boundary), expected.state(boundary))
        with pytest.raises(InputError, match=r"not B\(2\)"):
            found.state(2)


def test_stated_boundaries_name_the_stored_order(dump_folder):
    """The same file read as [5, 3, 2, 0] gives the first stored state as B(5): the statement decides."""
    _, folder, samples = dump_folder
    found = next(iter(open_dump(folder, BOUNDARIES[::-1])))
    assert torch.equal(found.state(BOUNDARIES[-1]), samples[0].state(BOUNDARIES[0]))
    named = next(iter(open_dump(folder, (*BOUNDARIES[:-1], FINAL_NORMED), read=(FINAL_NORMED,))))
    assert torch.equal(named.state(FINAL_NORMED), samples[0].state(BOUNDARIES[-1]))


def test_a_limit_keeps_the_first_samples(dump_folder):
    """limit = 2 of 3."""
    _, folder, samples = dump_folder
    dump = open_dump(folder, BOUNDARIES, limit=2)
    assert [len(s.token_ids) for s in dump] == [len(s.token_ids) for s in samples[:2]]


@pytest.mark.parametrize("layout", WRITERS)
def test_samples_come_in_the_order_of_their_numbers(layout, tmp_path):
    """2 before 10, though a directory lists 10 first."""
    samples = recorded(11)
    dump = open_dump(WRITERS[layout](tmp_path / "dump", samples, BOUNDARIES), BOUNDARIES, read=(0,))
    assert [len(s.token_ids) for s in dump] == [len(s.token_ids) for s in samples]
    assert [s.name.split(".")[0].split("_")[1] for s in dump] == [str(i) for i in range(11)]


def test_rows_of_the_data_set_are_found_by_the_file_s_number(tmp_path):
    """A dump from which one file was removed: the others keep their own masks."""
    samples = recorded()
    folder = toys.write_current_dump(tmp_path / "dump", samples, BOUNDARIES)
    (folder / "hidden_states" / "hs_1.safetensors").unlink()
    found = list(open_dump(folder, BOUNDARIES))
    assert [len(s.token_ids) for s in found] == [len(samples[0].token_ids), len(samples[2].token_ids)]
    assert torch.equal(found[1].loss_mask, samples[2].loss_mask)


def test_a_folder_of_the_datasets_library_is_read(tmp_path):
    """As `save_to_disk` writes it, in two shards and with a column more."""
    datasets = pytest.importorskip("datasets")
    samples = recorded()
    folder = toys.write_current_dump(tmp_path / "dump", samples, BOUNDARIES)
    next(folder.glob("*.arrow")).unlink()
    rows = {
        "input_ids": [s.token_ids.tolist() for s in samples],
        "loss_mask": [s.loss_mask.long().tolist() for s in samples],
        "seq_len": [len(s.token_ids) for s in samples],
    }
    datasets.Dataset.from_dict(rows).save_to_disk(folder, num_shards=2)
    assert len(list(folder.glob("data-*.arrow"))) == 2
    for found, expected in zip(open_dump(folder, BOUNDARIES), samples, strict=True):
        assert torch.equal(found.loss_mask, expected.loss_mask)
        assert torch.equal(found.token_ids, expected.token_ids)


def test_recorded_log_probabilities_are_carried(tmp_path):
    """`token_logprobs` of a file; None where a file has none."""
    from safetensors.torch import load_file, save_file

    samples = recorded(2)
    folder = toys.write_current_dump(tmp_path / "dump", samples, BOUNDARIES)
    file = folder / "hidden_states" / "hs_1.safetensors"
    logprobs = -torch.rand(len(samples[1].token_ids), generator=toys.generator(0))
    save_file(load_file(file) | {"token_logprobs": logprobs}, file)
    first, second = open_dump(folder, BOUNDARIES)
    assert first.logprobs is None
    assert torch.equal(second.logprobs, logprobs)
