"""Cases with as little in them as people have: pages answer what they can, and say in a sentence what they cannot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest
import toys
import written
from complaints import complaint

from eagle3lib import taps
from eagle3lib.acceptance import Rates
from eagle3lib.bootstrap import Estimate
from eagle3lib.case import load_case
from eagle3lib.case_text import case_text
from eagle3lib.checks.compared import check_compared
from eagle3lib.checks.served import check_forecast
from eagle3lib.investigation import Investigation
from eagle3lib.run import NOTEBOOKS
from eagle3lib.sample import Sample
from eagle3lib.served_comparison import compare
from eagle3lib.served_numbers import of_length
from eagle3lib.side_table import read_side_table, slice_columns
from eagle3lib.tree_shapes import TreeShape

STORED = (0, 2, 3, 5)
TWO = (5, 6)


def page(name: str, folder: Path, lines: Sequence[str] = (), dump: bool = True, **parameters: object) -> dict:
    """The record of a notebook, run in this process on the tiny draft, the target and, if so, `folder / dump`."""
    toys.write_draft(folder / "draft")
    toys.write_target(folder / "target")
    text = ['[draft]\npath = "draft"\n[target]\npath = "target"', '[[dumps]]\nname = "d"\npath = "dump"'][: 1 + dump]
    text += lines
    (folder / "case.toml").write_text("\n".join(text))
    node = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    scope = {}
    for cell in (cell for cell in node.cells if cell.cell_type == "code"):
        exec(compile(cell.source, name, "exec"), scope)  # noqa: S102 the notebook is ours
        if "parameters" in cell.metadata.get("tags", []):
            scope |= {"case": str(folder / "case.toml"), "out": str(folder / "out"), "device": "cpu", **parameters}
    return json.loads((folder / "out" / "results" / f"{name}.json").read_text())


def lengths(folder: Path, samples: Sequence[Sample], *lines: str, **parameters: object) -> dict:
    """Notebook 05 on these samples."""
    toys.write_current_dump(folder / "dump", samples, STORED)
    stated = f"boundaries = {list(STORED)}"
    return page("05_acceptance_length", folder, [stated, *lines], **parameters)


def titles(record: dict) -> list[str]:
    return [f"{finding['code']}: {finding['title']}" for finding in record["findings"]]


@pytest.mark.parametrize("layout", ["specforge", "eagle3lib", "sglang"])
def test_norms_of_a_dump_with_the_normed_last_state_are_shown(layout, tmp_path):
    """Beside the boundaries, which are numbers, and alone."""
    stored = written.WRITERS[layout](tmp_path / "dump", written.samples())
    lines = ["prompt_length = 6"] if layout == "sglang" else []
    lines += [] if layout == "eagle3lib" else [f"boundaries = {json.dumps(list(stored))}"]
    record = page("02_layer_norms", tmp_path, lines)
    assert [row["boundary"] for row in record["numbers"]["norm_profile"]] == list(stored)


@pytest.mark.parametrize("turn", [(11, 12), (10, 12), None])
def test_responses_without_a_whole_round_leave_the_length_open(turn, tmp_path):
    """A turn's last round is left out, so one of a token or two has none to average."""
    record = lengths(tmp_path, [toys.make_sample(length=12, turns=(turn,) if turn else ())])
    assert "longer responses" in record["unanswered"][0]["needs"]
    assert record["answer"] == "No acceptance length can be replayed from these files; see what is missing above."


def test_one_response_has_a_length_and_no_interval(tmp_path):
    served = '[served]\nengine = "vllm"\nboundaries = [0, 2, 3]\nsteps = 4\nacceptance_length = 1.5'
    record = lengths(tmp_path, [toys.make_sample()], served)
    assert "1.00 (no interval: too few samples)" in record["answer"]
    found = [title.split(":")[0] for title in titles(record)]
    assert "served.too_few_samples" in found
    assert "recurrence.unknown" in found


def test_responses_too_short_for_a_stretch_show_none(tmp_path):
    """Turns of 11 tokens: the kinds of tokens are told, and no stretch of 16 is there to be shown."""
    toys.write_target(tmp_path / "target")
    vocabulary = {f"word{i}": i for i in range(toys.VOCABULARY)}
    (tmp_path / "target" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    record = lengths(tmp_path, [toys.make_sample(i) for i in TWO], tree_samples=0)
    assert record["numbers"]["token_kinds"]
    assert "tokens a round along the walk" in record["answer"]


def test_sampled_responses_alone_are_answered(tmp_path):
    record = lengths(tmp_path, [toys.make_sample(i) for i in TWO], "temperature = 0.8")
    assert len(record["numbers"]["sampled"]) > 1
    walked = record["numbers"]["sampled"][0]["walk"]
    assert f"d by one-hot draft {walked:.2f}" in record["answer"]
    assert [item["question"] for item in record["unanswered"]] == ["What acceptance length will the server show?"]


def test_the_wiring_that_is_held_is_replayed_without_the_other(tmp_path):
    served = '[served]\nengine = "vllm"\nboundaries = [0, 1, 4]\nsteps = 4\nacceptance_length = 1.5'
    record = lengths(tmp_path, [toys.make_sample(i) for i in TWO], served, tree_samples=0)
    assert {row["wiring"] for row in record["numbers"]["acceptance_length"]} == {"trained"}
    assert {"question": "What acceptance length does the served wiring yield?",
            "needs": "a greedy dump that holds B(0), B(1), B(4)"} in record["unanswered"]  # fmt: skip
    assert any(title.startswith("served.not_replayed") for title in titles(record))


@pytest.mark.parametrize("parameters", [{"max_steps": 0}, {"tree_samples": -1}])
def test_parameters_out_of_range_are_refused(parameters, tmp_path):
    said = complaint(lambda: lengths(tmp_path, [toys.make_sample()], **parameters))
    assert said.startswith("Expected max_steps of 1 or more and tree_samples of 0 or more")


def test_a_printed_number_is_explained_by_the_served_wiring_alone():
    """Neither the trained wiring's replay nor an interval that holds everything explains it."""
    told, endless = Estimate(1.52, 1.4, 1.6, 90), Estimate(1.52, -float("inf"), float("inf"), 90)
    for forecast, code in (
        ({"trained": told}, "served.not_replayed"),
        ({"served": endless}, "served.too_few_samples"),
        ({"served": told}, "served.explained"),
        ({"trained": Estimate(2, 1.9, 2.1, 90), "served": Estimate(1.1, 1.05, 1.2, 90)}, "served.unexplained"),
        ({"trained": told, "served": Estimate(1.1, 1.05, 1.2, 90)}, "served.other_wiring"),
    ):
        rates = {name: Rates((), (), length) for name, length in forecast.items()}
        believed = "served" if "served" in forecast else "trained"
        found = compare(of_length(1.5, "SGLang"), TreeShape.chain(4), rates, believed)
        assert check_compared(found).code == code


def test_without_a_server_s_number_a_forecast_is_given():
    told = {"trained": Estimate(1.52, 1.4, 1.6, 90), "served": Estimate(1.1, 1.05, 1.2, 90)}
    assert [f.code for f in check_forecast(told, 4, True, has_numbers=False)] == ["served.forecast"]
    assert [f.code for f in check_forecast(told, 4, False, has_numbers=True)] == ["served.no_forecast"]
    assert check_forecast(told, 4, True, has_numbers=True) == []


def test_an_estimate_s_text_follows_its_format():
    assert f"{Estimate(1.234, 1, 1.5, 3):.2f}" == "1.23 [1.00, 1.50]"
    assert str(Estimate(1.234, 1, 1.5, 3)) == "1.234 [1.000, 1.500]"


def test_a_recording_is_compared_beside_the_trainer_s_number(tmp_path):
    """The answer is the same with it as without it."""
    toys.write_current_dump(tmp_path / "dump", [toys.make_sample(i) for i in TWO], STORED)
    lines = [f"boundaries = {list(STORED)}"]
    alone = page("03_manual_forward", tmp_path, lines)
    inv = Investigation(load_case(tmp_path / "case.toml"))
    sample = inv.samples(toys.SLOTS)[1]
    (activations,) = taps.record(inv.draft, sample, inv.trained.wiring)
    file = taps.save_activations(tmp_path / "recorded.safetensors", activations, sample.token_ids[1:])
    record = page("03_manual_forward", tmp_path, lines, recorded_activations=str(file))
    assert "served.activations_agree" in [finding["code"] for finding in record["findings"]]
    assert record["answer"] == alone["answer"]


def test_lists_in_a_side_table_are_slices_like_any_value(tmp_path):
    file = tmp_path / "table.jsonl"
    file.write_text("".join(json.dumps({"kind": ["a", i % 2], "id": 0}) + "\n" for i in range(4)))
    assert slice_columns(read_side_table(file)) == ["kind"]


def test_two_drafts_of_one_name_and_an_endless_temperature_are_refused(tmp_path):
    """The draft itself goes by its folder's name in the table of drafts."""
    toys.write_draft(tmp_path / "draft")
    for text, said in (
        ('[[drafts]]\nname = "draft"\npath = "draft"', "names two drafts alike"),
        ('[[dumps]]\nname = "d"\npath = "draft"\ntemperature = inf', "temperature: Input should be a finite number"),
    ):
        (tmp_path / "case.toml").write_text(f'[draft]\npath = "draft"\n{text}')
        assert said in complaint(lambda: load_case(tmp_path / "case.toml"))


def test_two_dumps_that_repeat_each_other_are_refused(tmp_path):
    """Neither would be replayed."""
    toys.write_draft(tmp_path / "draft")
    dumps = [f'[[dumps]]\nname = "{a}"\npath = "draft"\nsame_tokens_as = "{b}"' for a, b in ("de", "ed")]
    (tmp_path / "case.toml").write_text("\n".join(['[draft]\npath = "draft"', *dumps]))
    assert "itself repeats another" in complaint(lambda: load_case(tmp_path / "case.toml"))


def test_a_server_s_request_without_a_dump_is_not_passed_over(tmp_path):
    (tmp_path / "ids").write_text("[1, 2]")
    record = page("02_layer_norms", tmp_path, dump=False, server_tokens=str(tmp_path / "ids"))
    assert "Does the server see the dump's tokens?" in [item["question"] for item in record["unanswered"]]


def test_a_written_case_keeps_its_other_drafts(tmp_path):
    toys.write_draft(tmp_path / "draft")
    (tmp_path / "case.toml").write_text('[draft]\npath = "draft"\n[[drafts]]\nname = "o"\npath = "draft"\nstep = 3')
    case = load_case(tmp_path / "case.toml")
    (tmp_path / "written.toml").write_text(case_text(case))
    assert load_case(tmp_path / "written.toml").drafts == case.drafts
