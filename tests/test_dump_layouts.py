"""Every layout, written as its writer writes it, comes back bit for bit under the right boundaries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
import written
from complaints import complaint
from safetensors.torch import load_file, save_file
from written import SLOTS, WRITERS, N

from eagle3lib.axes import Known
from eagle3lib.boundaries import FINAL_NORMED
from eagle3lib.dumps import layout_boundaries, open_dump, recognise_layout
from eagle3lib.ecosystems import LayerIds, Origin, TargetShape, trainer
from eagle3lib.own_layout import write_sample
from eagle3lib.turns import TurnRule

KNOWN = Known(hidden_size=toys.HIDDEN)
ORIGIN = Origin(trainer("speculators"), LayerIds(SLOTS, "stated"), TargetShape(N), SLOTS)
#: Layouts without a loss mask.
MASKLESS = ("vllm", "tensorrt_llm")


@pytest.fixture(params=WRITERS)
def dump(request, tmp_path: Path):
    """The layout's name, its folder, its boundaries and what was written."""
    given = written.samples()
    folder = tmp_path / "dump"
    boundaries = WRITERS[request.param](folder, given)
    return request.param.split()[0], folder, boundaries, given


def opened(folder: Path, boundaries=None, **more):
    return open_dump(folder, boundaries, known=KNOWN, turns=written.RULE, **more)


def test_a_layout_comes_back_as_it_was_written(dump):
    """Tokens, masks, states, twice over; NeMo's ids begin with the second, SGLang's rows end before the last."""
    layout, folder, boundaries, given = dump
    assert recognise_layout(folder).name == layout
    first = int(layout == "nemo")
    stream = opened(folder, boundaries)
    for _ in range(2):
        for found, expected in zip(stream, given, strict=True):
            assert torch.equal(found.token_ids, expected.token_ids[first:])
            mask = expected.loss_mask.clone()
            mask[-1] &= layout != "specforge"
            assert torch.equal(found.loss_mask, mask[first:])
            assert found.first_position == first
            assert tuple(found.states) == boundaries
            for boundary in boundaries:
                rows = slice(first, -1 if layout == "sglang" else None)
                assert torch.equal(found.state(boundary), expected.state(boundary)[rows].to(found.state(boundary)))
    assert not stream.reading.problems


def test_only_wanted_boundaries_are_carried(dump):
    """The last stored one, and none."""
    _, folder, boundaries, _ = dump
    for read in (boundaries[-1:], ()):
        assert [tuple(s.states) for s in opened(folder, boundaries, read=read)] == [read] * 3


def test_a_layout_knows_its_boundaries(dump):
    """By its own rule, from the draft's slots and the target's depth; the list layout stores outputs of blocks."""
    layout, folder, boundaries, _ = dump
    expected = (1, 3, 4) if layout == "speculators-list" else boundaries
    assert layout_boundaries(folder, KNOWN, ORIGIN) == expected


@pytest.mark.parametrize("layout", ["vllm", "specforge", "modelopt", "tensorrt_llm", "speculators"])
def test_a_rule_that_needs_what_is_not_there_says_so(layout, tmp_path):
    """Without target and slots the layouts that depend on them ask."""
    WRITERS[layout](tmp_path / "dump", written.samples())
    origin = replace(ORIGIN, target=None, slots=None)
    complaint(lambda: layout_boundaries(tmp_path / "dump", KNOWN, origin), "State the boundaries of the 4", "target")


@pytest.mark.parametrize("layout", MASKLESS)
def test_a_missing_mask_is_asked_for_and_never_guessed(layout, tmp_path):
    folder = tmp_path / "dump"
    boundaries = WRITERS[layout](folder, written.samples())
    complaint(lambda: list(open_dump(folder, boundaries)), "no loss mask", "prompt_length", "turn_begins")


def test_turns_are_found_by_their_markers():
    """Two turns between the markers; the mark of the end is the target's own, and a turn without one goes on."""
    ids = torch.tensor([1, 7, 8, 5, 5, 2, 3, 7, 8, 4, 4])
    mask = TurnRule(begins=(7, 8), ends=(2,)).mask(ids, "x")
    assert mask.nonzero().flatten().tolist() == [3, 4, 5, 9, 10]


def test_modelopt_s_flag_decides_and_its_absence_is_noted(tmp_path):
    for name, more, last, noted in (
        ("absent", {}, FINAL_NORMED, True),
        ("set", {"hidden_states_prenorm": True}, N, False),
        ("unset", {"hidden_states_prenorm": False}, FINAL_NORMED, False),
    ):
        written.modelopt(tmp_path / name, written.samples(), **more)
        assert layout_boundaries(tmp_path / name, KNOWN, ORIGIN) == (*SLOTS, last)
        stream = opened(tmp_path / name, (*SLOTS, last))
        list(stream)
        assert any("hidden_states_prenorm" in note for note in stream.reading.notes) == noted


def test_modelopt_without_aux_states_holds_the_last_one(tmp_path):
    """As its script with vLLM leaves an empty tensor in their place."""
    written.modelopt(tmp_path / "dump", written.samples(), aux_hidden_states=torch.empty(0))
    assert [tuple(s.states) for s in opened(tmp_path / "dump", (FINAL_NORMED,))] == [(FINAL_NORMED,)] * 3


@pytest.mark.parametrize("key", ["aux_hidden_states", "hidden_state_features"])
def test_tensorrt_s_list_may_end_with_the_last_state(key, tmp_path):
    """The user listed -1, or the version always adds it: it is told by its values and given once."""
    given = written.samples()
    boundaries = written.tensorrt_llm(tmp_path / "dump", given, key, with_last=True)
    for found, expected in zip(opened(tmp_path / "dump", boundaries), given, strict=True):
        for boundary in boundaries:
            assert torch.equal(found.state(boundary), expected.state(boundary))


@pytest.mark.parametrize("topk", [0, 5])
def test_nemo_s_probabilities_are_of_the_token_after(topk, tmp_path):
    """Row t of the teacher is what the target said after x[t], by target ids."""
    given = written.samples(dtype=torch.float32)
    written.nemo(tmp_path / "dump", given, topk)
    ids = json.loads((tmp_path / "dump" / "manifest.json").read_text())["selected_token_ids"]
    for found, expected in zip(opened(tmp_path / "dump"), given, strict=True):
        full = torch.zeros(len(found.token_ids), toys.VOCABULARY)
        full.scatter_(1, found.teacher.ids, found.teacher.probs)
        said = written.full_probs(expected, len(ids))[1:]
        values, places = said.topk(topk or len(ids), dim=-1)
        same = torch.zeros_like(full).scatter_(1, torch.tensor(ids)[places], values)
        assert torch.equal(full, same)


def test_sglang_s_aux_states_are_those_of_the_slots(tmp_path):
    given = written.samples()
    written.sglang(tmp_path / "dump", given, SLOTS)
    assert layout_boundaries(tmp_path / "dump", KNOWN, ORIGIN) == SLOTS
    found = next(iter(opened(tmp_path / "dump", SLOTS)))
    assert torch.equal(found.state(2), given[0].state(2)[:-1].float())


def test_sglang_s_ids_may_come_from_the_logprobs(tmp_path):
    """And a prompt whose ids are not all there is refused."""
    folder = tmp_path / "dump"
    written.sglang(folder, written.samples(1))
    response = json.loads((folder / "responses.jsonl").read_text())
    ids = {name: response.pop(f"{name}_ids") for name in ("input", "output")}
    for name, listed in ids.items():
        response["meta_info"][f"{name}_token_logprobs"] = [[-0.1, i, None] for i in listed]
    (folder / "responses.jsonl").write_text(json.dumps(response))
    (found,) = opened(folder, (FINAL_NORMED,))
    assert found.token_ids.tolist() == ids["input"] + ids["output"]
    response["meta_info"]["input_token_logprobs"].pop()
    (folder / "responses.jsonl").write_text(json.dumps(response))
    complaint(lambda: list(opened(folder, (FINAL_NORMED,))), "Expected the prompt's 6 token ids", "found 5")


@pytest.mark.parametrize("form", ["states first", "tokens first", "beside", "numbered", "batch"])
def test_hugging_face_states_in_any_arrangement(form, tmp_path):
    """Stacked on either axis, concatenated, one tensor a state, behind a batch axis; in safetensors."""
    (sample,) = written.samples(1)
    states = {
        "states first": {"hidden_states": written.stack(sample, written.HF, 0)},
        "tokens first": {"hidden_states": written.stack(sample, written.HF, 1)},
        "beside": {"hidden_states": written.beside(sample, written.HF)},
        "numbered": {f"hidden_states.{i}": sample.states[b] for i, b in enumerate(written.HF)},
        "batch": {"hidden_states": written.stack(sample, written.HF, 0).unsqueeze(0)},
    }[form]
    (tmp_path / "dump").mkdir()
    save_file(
        states | {"input_ids": sample.token_ids, "loss_mask": sample.loss_mask}, tmp_path / "dump" / "a.safetensors"
    )
    assert layout_boundaries(tmp_path / "dump", KNOWN, ORIGIN) == written.HF
    (found,) = opened(tmp_path / "dump", written.HF)
    for boundary in written.HF:
        assert torch.equal(found.state(boundary), sample.state(boundary))


def test_bare_states_without_tokens_are_refused(tmp_path):
    (tmp_path / "dump").mkdir()
    torch.save(tuple(torch.zeros(1, 5, 8) for _ in range(3)), tmp_path / "dump" / "a.pt")
    complaint(lambda: opened(tmp_path / "dump"), "a.pt", "without their tokens", "input_ids")


def test_our_own_files_say_what_they_hold(tmp_path):
    """Boundaries, temperature and log-probabilities, with nothing stated."""
    (sample,) = written.samples(1)
    logprobs = -torch.rand(len(sample.token_ids))
    states = {b: sample.states[b][:-1] for b in (3, FINAL_NORMED, 0)}
    file = write_sample(
        tmp_path, 7, sample.token_ids, sample.loss_mask, states, logprobs=logprobs, metadata={"temperature": "0.7"}
    )
    assert [f.name for f in tmp_path.iterdir()] == [file.name] == ["sample_000007.safetensors"]
    (found,) = open_dump(tmp_path)
    assert tuple(found.states) == (0, 3, FINAL_NORMED)
    assert found.temperature == 0.7
    assert torch.equal(found.logprobs, logprobs)
    assert torch.equal(found.state(3), sample.state(3)[:-1])


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"loss_mask": torch.ones(4)}, ("a mask",)),
        ({"states": {0: torch.zeros(18, 4)}}, ("[20 or 19, H]",)),
        ({"states": {0: torch.zeros(20, 4), 1: torch.zeros(19, 4)}}, ("[20 or 19, H]",)),
        ({"states": {}}, ("[20 or 19, H]",)),
    ],
    ids=["mask", "rows", "two sizes", "none"],
)
def test_our_writer_refuses_what_its_reader_would(change, parts, tmp_path):
    given = {"token_ids": torch.arange(20), "loss_mask": torch.ones(20), "states": {0: torch.zeros(20, 4)}} | change
    complaint(lambda: write_sample(tmp_path, 0, **given), "Sample 0", *parts)
    assert not list(tmp_path.iterdir())


def test_a_later_file_with_other_boundaries_is_a_bad_file(tmp_path):
    folder = tmp_path / "dump"
    written.own(folder, written.samples())
    file = folder / "sample_000001.safetensors"
    tensors = load_file(file)
    tensors["boundary.1"] = tensors.pop("boundary.2")
    save_file(tensors, file, metadata={"format": "eagle3lib", "version": "1"})
    stream = opened(folder)
    assert [s.name for s in stream] == ["sample_000000.safetensors", "sample_000002.safetensors"]
    assert "B(0), B(1), B(3)" in stream.reading.problems["sample_000001.safetensors"]


def test_rows_short_of_the_tokens_name_prefix_caching(tmp_path):
    """vLLM with its cache on leaves out the rows of a shared beginning."""
    folder = tmp_path / "dump"
    folder.mkdir()
    (sample,) = written.samples(1)
    save_file(
        {"hidden_states": written.stack(sample, SLOTS)[16:], "token_ids": sample.token_ids}, folder / "a.safetensors"
    )
    complaint(lambda: opened(folder, SLOTS), "a.safetensors", "20 tokens", "prefix caching")
