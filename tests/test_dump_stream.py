"""Which samples a dump gives: choices that repeat, windows, files passed over, and arrangements of axes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import toys
import written
from complaints import complaint
from torch import Tensor

from eagle3lib.axes import AXES, HIDDEN, STATES, TOKENS, Known, split_states
from eagle3lib.checks.files import check_files
from eagle3lib.dumps import Choice, open_dump
from eagle3lib.own_layout import write_sample
from eagle3lib.sample import TeacherProbs
from eagle3lib.windows import windows

N_FILES = 12


@pytest.fixture(params=["eagle3lib", "vllm"])
def many(request, tmp_path):
    """A dump of files with numbers, and one of files without."""
    folder = tmp_path / "dump"
    boundaries = written.WRITERS[request.param](folder, written.samples(N_FILES))
    return lambda **choice: [len(s.token_ids) - 20 for s in open_dump(
        folder, boundaries, choice=Choice(**choice), known=Known(toys.HIDDEN), turns=written.RULE
    )]  # fmt: skip


def test_choices_are_the_same_every_time(many):
    """The first, every third, and some drawn by a seed, in order."""
    assert many() == list(range(N_FILES))
    assert many(limit=5) == [0, 1, 2, 3, 4]
    assert many(stride=5) == [0, 5, 10]
    assert many(stride=5, limit=2) == [0, 5]
    drawn = many(seed=1, limit=4)
    assert drawn == many(seed=1, limit=4) == sorted(drawn)
    assert len(set(drawn)) == 4
    assert any(many(seed=seed, limit=4) != drawn for seed in range(2, 6))


def test_numbers_with_gaps_stay_in_order(tmp_path):
    """3, then 7 and 12, where 0 to 2 are missing; what has no number comes last, as a bad file."""
    given = written.samples(13)
    for i in (12, 3, 7):
        write_sample(tmp_path, i, given[i].token_ids, given[i].loss_mask, {0: given[i].states[0]})
    (tmp_path / "sample_last.safetensors").write_bytes(b"")
    dump = open_dump(tmp_path)
    assert [len(s.token_ids) - 20 for s in dump] == [3, 7, 12]
    assert list(dump.reading.problems) == ["sample_last.safetensors"]


def test_one_bad_file_is_a_finding_and_all_bad_an_error(tmp_path):
    written.own(tmp_path, written.samples(3))
    bad = tmp_path / "sample_000001.safetensors"
    bad.write_bytes(bad.read_bytes()[:100])
    dump = open_dump(tmp_path)
    assert [s.name for s in dump] == ["sample_000000.safetensors", "sample_000002.safetensors"]
    for _ in range(2):
        list(dump)
    (finding,) = check_files("mine", dump.reading)
    assert finding.code == "dump.bad_files"
    assert finding.evidence["bad_files"] == 1
    assert bad.name in finding.title
    assert "not a whole safetensors file" in finding.meaning
    for file in tmp_path.iterdir():
        file.write_bytes(b"")
    complaint(lambda: list(dump), "No file of", "sample_000000.safetensors")


def test_a_healthy_dump_gives_no_finding_on_its_files(tmp_path):
    written.own(tmp_path, written.samples(3))
    dump = open_dump(tmp_path)
    list(dump)
    assert check_files("mine", dump.reading) == []


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("longest", [8, 10, 35, 36])
def test_windows_hold_every_supervised_token_once(rows, longest):
    """With their own states, positions and probabilities, and context before them."""
    sample = toys.make_sample(rows=toys.LENGTH - rows, boundaries=(0, 3))
    probs = TeacherProbs(torch.rand(toys.LENGTH, 4), torch.arange(4).expand(toys.LENGTH, 4))
    sample = replace(sample, logprobs=torch.rand(toys.LENGTH), teacher=probs, first_position=5)
    seen = torch.zeros(toys.LENGTH, dtype=torch.int)
    for window in windows(sample, longest):
        begin = window.first_position - 5
        end = begin + len(window.token_ids)
        assert len(window.token_ids) <= longest
        assert window.loss_mask.any()
        assert begin == 0 or not window.loss_mask[: longest // 2].any()
        assert torch.equal(window.token_ids, sample.token_ids[begin:end])
        assert torch.equal(window.logprobs, sample.logprobs[begin:end])
        assert torch.equal(window.teacher.probs, probs.probs[begin:end])
        assert torch.equal(window.state(3), sample.state(3)[begin:end])
        seen[begin:end] += window.loss_mask.int()
    assert torch.equal(seen.bool(), sample.loss_mask)
    assert seen.max() == 1


def test_a_window_is_exact_for_a_draft_whose_own_window_fits_in_its_context(draft):
    """The same predictions as over the whole sequence, for a sliding window of the context's length."""
    from eagle3lib import Wiring, rollout

    sample = toys.make_sample(length=64, turns=((20, 60),))
    sliding = replace(draft, config=replace(draft.config, windows=(8,)))
    whole = rollout(sliding, sample, Wiring(toys.SLOTS), 1)
    choice = dict(zip(whole.starts.tolist(), whole.predicted[:, 0].tolist(), strict=True))
    checked = 0
    for window in windows(sample, 32):
        found = rollout(sliding, window, Wiring(toys.SLOTS), 1)
        for start, predicted in zip(found.starts.tolist(), found.predicted[:, 0].tolist(), strict=True):
            assert choice[start + window.first_position] == predicted
            checked += 1
    assert checked > 30


def test_windows_are_told(tmp_path):
    written.own(tmp_path, written.samples(2))
    dump = open_dump(tmp_path, choice=Choice(longest=20))
    assert len(list(dump)) == 3  # the first sample has 20 tokens, the second 21
    (finding,) = check_files("mine", dump.reading, 20)
    assert finding.code == "dump.windows"
    assert finding.evidence == {"dump": "mine", "sequences": 1, "longest": 20}


def state_tensor(order: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """[5 tokens, 3 states, 7 wide] in some order of axes, and in the documented one."""
    plain = torch.rand(5, 3, 7)
    return plain.permute([AXES.index(axis) for axis in order]), plain


@pytest.mark.parametrize("order", list(itertools.permutations(AXES)), ids="-".join)
def test_axes_are_told_by_their_sizes(order):
    """Any order, by the hidden size or by the number of states; what comes out are views."""
    tensor, plain = state_tensor(order)
    for known in (Known(hidden_size=7), Known(n_states=3)):
        for batched in (tensor, tensor.unsqueeze(0)):
            states = split_states(batched, 5, known, "x")
            assert torch.equal(torch.stack(states, 1), plain)
            assert states[0].untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def test_axes_that_sizes_do_not_tell_are_asked_about():
    """States as many as the hidden size is wide; stated, they are taken, and a wrong statement is refused."""
    tensor = torch.rand(5, 7, 7)
    complaint(lambda: split_states(tensor, 5, Known(7), "x"), "Cannot tell", "[5, 7, 7]", "axes = ['tokens',")
    stated = split_states(tensor, 5, Known(7, axes=(TOKENS, HIDDEN, STATES)), "x")
    assert torch.equal(stated[1], tensor[:, :, 1])
    complaint(lambda: split_states(tensor, 5, Known(7, axes=(STATES, TOKENS, HIDDEN)), "x"), "do not fit", "x")
    complaint(lambda: split_states(torch.rand(4, 3, 7), 9, Known(7), "x"), "9 tokens", "[4, 3, 7]")


def test_states_beside_each_other_are_cut_and_never_guessed():
    rows = torch.rand(5, 21)
    for known, count in ((Known(7), None), (Known(), 3), (Known(n_states=3), None)):
        assert torch.equal(torch.cat(split_states(rows, 5, known, "x", count=count), 1), rows)
    assert torch.equal(torch.cat(split_states(rows.T, 5, Known(7), "x"), 1), rows)
    complaint(lambda: split_states(rows, 5, Known(), "x"), "name the target")
    complaint(lambda: split_states(rows, 5, Known(8), "x"), "hidden size 8", "[5, 21]")
