"""What a case says of its dumps, and what is done where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import toys
import written
from complaints import complaint

from eagle3lib import investigation
from eagle3lib.boundaries import FINAL_NORMED
from eagle3lib.case import load_case
from eagle3lib.checks.files import check_files
from eagle3lib.investigation import Investigation
from eagle3lib.own_layout import write_sample


def opened(folder: Path, *lines: str) -> Investigation:
    """A case of the tiny draft and target, and of the dump in `folder / dump`."""
    toys.write_draft(folder / "draft")
    toys.write_target(folder / "target")
    text = ['[draft]\npath = "draft"', '[target]\npath = "target"', '[[dumps]]\nname = "d"\npath = "dump"', *lines]
    (folder / "case.toml").write_text("\n".join(text))
    return Investigation(load_case(folder / "case.toml"), "cpu")


def lengths(inv: Investigation) -> list[int]:
    """Which of `written.samples` are read, by their lengths."""
    return [len(s.token_ids) - 20 for s in inv.samples([0])]


def test_a_large_dump_is_read_in_part_and_said_so(tmp_path, monkeypatch):
    """10 files and room for 4: every third one, both numbers in the finding; a stated choice wins."""
    monkeypatch.setattr(investigation, "MANY", 4)
    written.own(tmp_path / "dump", written.samples(10))
    inv = opened(tmp_path)
    assert lengths(inv) == [0, 3, 6, 9]
    (finding,) = check_files("d", inv.readings["d"])
    assert finding.code == "dump.part_read"
    assert finding.evidence == {"dump": "d", "read": 4, "found": 10}
    for line, expected in (("stride = 1", list(range(10))), ("limit = 2", [0, 1]), ("stride = 5", [0, 5])):
        stated = opened(tmp_path, line)
        assert lengths(stated) == expected
        assert check_files("d", stated.readings["d"]) == []
    drawn = lengths(opened(tmp_path, "limit = 3", "seed = 7"))
    assert drawn == lengths(opened(tmp_path, "limit = 3", "seed = 7"))
    assert len(drawn) == 3


def test_a_small_dump_is_read_whole(tmp_path):
    written.own(tmp_path / "dump", written.samples(3))
    inv = opened(tmp_path)
    assert lengths(inv) == [0, 1, 2]
    assert check_files("d", inv.readings["d"]) == []


def test_a_dump_s_own_temperature_keeps_it_from_the_greedy_ones(tmp_path):
    (sample,) = written.samples(1)
    write_sample(
        tmp_path / "dump", 0, sample.token_ids, sample.loss_mask, {0: sample.states[0]}, metadata={"temperature": "0.8"}
    )
    inv = opened(tmp_path)
    assert inv.samples([0]) == []
    (found,) = inv.samples([0], greedy=False)
    assert found.temperature == 0.8
    assert len(opened(tmp_path, "temperature = 0.0").samples([0])) == 1


@pytest.mark.parametrize("layout", ["specforge", "modelopt", "tensorrt_llm"])
def test_boundaries_come_from_the_draft_s_ids_and_the_layout(layout, tmp_path):
    """The tiny draft's slots, and behind them the layout's kind of last state; what is stated wins."""
    written.WRITERS[layout](tmp_path / "dump", written.samples())
    inv = opened(tmp_path)
    assert inv.stored_boundaries(inv.case.dumps[0]) == (*toys.SLOTS, FINAL_NORMED)
    stated = opened(tmp_path, "boundaries = [1, 2, 4, 5]")
    assert stated.stored_boundaries(stated.case.dumps[0]) == (1, 2, 4, 5)


@pytest.mark.parametrize(
    ("line", "begin"), [("prompt_length = 6", 6), ("turn_begins = [{0}, {1}]", 4)], ids=["length", "markers"]
)
def test_turns_are_where_the_case_says(line, begin, tmp_path):
    """For vLLM's files, which hold no mask."""
    given = written.samples(1)
    given[0].token_ids[2:4] = given[0].token_ids.new_tensor([90, 91])
    written.vllm(tmp_path / "dump", given)
    (found,) = opened(tmp_path, line.format(90, 91)).samples([0])
    assert found.turns[0].begin == begin


def test_axes_are_as_the_case_says(tmp_path):
    """And words that are no axes are refused."""
    written.own(tmp_path / "dump", written.samples(1))
    complaint(lambda: opened(tmp_path, 'axes = ["rows", "hidden"]'), "axes", "rows")
    assert opened(tmp_path, 'axes = ["tokens", "hidden"]').case.dumps[0].axes == ("tokens", "hidden")


def test_long_sequences_come_in_windows_of_the_stated_length(tmp_path):
    sample = toys.make_sample(length=200, turns=((10, 190),))
    write_sample(tmp_path / "dump", 0, sample.token_ids, sample.loss_mask, sample.states)
    inv = opened(tmp_path, "longest = 64")
    found = inv.samples([0, 2, 3])
    assert [len(s.token_ids) for s in found] == [64] * 5  # a sixth would hold none of the turn
    assert sum(int(s.loss_mask.sum()) for s in found) == 180
    assert check_files("d", inv.readings["d"], 64)[0].code == "dump.windows"
