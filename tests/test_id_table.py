"""One draft's ids as every system reads them, and the traps that a served config can fall into."""

from __future__ import annotations

import json
from pathlib import Path

import forms
import pytest
import toys
from bundled import CASE
from complaints import complaint

from eagle3lib.case import load_case
from eagle3lib.checks.wiring import check_served_ids
from eagle3lib.ecosystems import ENGINES, TRAINERS, TargetShape
from eagle3lib.ecosystems._base import SAME_STATE
from eagle3lib.findings import Severity
from eagle3lib.id_readings import over_releases
from eagle3lib.id_table import case_id_table
from eagle3lib.investigation import Investigation

KIMI = TargetShape(61, "KimiK25ForConditionalGeneration")
TRAINED = (0, 3, 16)


def case(folder: Path, served: str = "", trainer: str | None = None, **config) -> Investigation:
    toys.write_draft(folder / "draft", **config)
    toys.write_target(folder / "target")
    named = f'trainer = "{trainer}"\n' if trainer else ""
    (folder / "case.toml").write_text(f'[draft]\npath = "draft"\n{named}[target]\npath = "target"\n{served}')
    return Investigation(load_case(folder / "case.toml"), "cpu")


def serving(engine: str, ids: list | None, nested: bool = False, folder: Path | None = None) -> str:
    """A [served] section, and the config that the engine was given."""
    key = "eagle_aux_hidden_state_layer_ids"
    config = {} if ids is None else {"eagle_config": {key: ids}} if nested else {key: ids}
    (folder / "served.json").write_text(json.dumps(config))
    return f'[served]\nengine = "{engine}"\nconfig = "served.json"\n'


def test_the_bundled_draft_as_every_system_reads_it():
    """Trained on [0, 3, 16] by speculators; of the engines vLLM and llama.cpp read its ids as they were meant."""
    table = case_id_table(Investigation(load_case(CASE), "cpu"), TRAINED)
    assert list(table.columns) == ["system", "version", "role", "ids", "feeds fc", "as trained", "reads at"]
    assert table["as trained"].dtype == bool
    assert all(isinstance(cell, str) for name in table.columns.drop("as trained") for cell in table[name])
    first = table.iloc[0]
    assert (first["system"], first["version"], first["role"]) == ("SGLang", "0.5.23", "serves this case")
    assert (first["ids"], first["feeds fc"], first["as trained"]) == ("[2, 15, 27]", "B(3), B(16), B(28)", False)
    right = table[table["as trained"]]
    assert set(right["system"]) == {"speculators", "vLLM (V2 runner)", "vLLM (V1 runner)", "llama.cpp"}
    assert list(table[table["role"] == "trainer of this draft"]["system"]) == ["speculators"]
    own = table[(table["system"] == "SGLang") & (table["role"] == "engine")]
    assert list(own["feeds fc"]) == ["B(2), B(15), B(27)"], "the top-level list is passed over, in every release"
    assert "passes over eagle_aux_hidden_state_layer_ids" in own["reads at"].iloc[0]


def test_every_system_has_a_row_and_no_wiring_no_verdict(tmp_path):
    table = case_id_table(case(tmp_path), None)
    assert {s.label for s in (*ENGINES.values(), *TRAINERS.values())} == set(table["system"])
    assert "as trained" not in table.columns


def test_without_a_depth_there_is_no_table(tmp_path):
    toys.write_draft(tmp_path / "draft")
    (tmp_path / "case.toml").write_text('[draft]\npath = "draft"\n')
    complaint(lambda: case_id_table(Investigation(load_case(tmp_path / "case.toml"), "cpu"), None), "target's depth")


def test_releases_that_agree_are_one_row():
    """Kimi-K2.5's story: [2, 30, 58] is B(3), B(31), B(59) before 0.5.13 and B(2), B(30), B(58) from then on."""
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}}
    found = [(r.version, r.boundaries) for r in over_releases(ENGINES["sglang"], config, KIMI)]
    assert found == [("0.5.12 to before 0.5.13", [3, 31, 59]), ("0.5.13 to 0.5.23", [2, 30, 58])]
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 3, 31]
    spans = [(r.version, r.boundaries, bool(r.problem)) for r in over_releases(ENGINES["sglang"], config, KIMI)]
    assert spans == [
        ("0.5.12 to before 0.5.13", [1, 4, 32], False),
        ("0.5.13 to before 0.5.14", None, True),
        ("0.5.14 to 0.5.23", [0, 3, 31], False),
    ]


def test_a_list_that_is_no_list_is_a_row_too(tmp_path):
    table = case_id_table(case(tmp_path, eagle_config={"eagle_aux_hidden_state_layer_ids": "2"}), toys.SLOTS)
    (row,) = table[(table["system"] == "SGLang")].to_dict("records")
    assert row["reads at"] == "unreadable" and "list of integers" in row["feeds fc"] and row["as trained"] is False


@pytest.mark.parametrize(
    ("engine", "ids", "nested", "code", "words"),
    [
        ("llama.cpp", [2, 3, 5], False, "served_impossible", "zeros"),
        ("llama.cpp", [2, 3], False, "served_impossible", "exactly three"),
        ("llama.cpp", [0, 2, 3], True, "served_ids_passed_over", "says nothing"),
        ("sglang", [], True, "served_impossible", "captures nothing"),
        ("sglang", [1, 2, 4], True, "served_impossible", "cannot capture B(5)"),
        ("sglang", [0, 2, 3], False, "served_ids_passed_over", "says nothing"),
        ("vllm", [0, 2, 3], True, "served_ids_passed_over", "its default"),
        ("vllm", [-1, 2, 3], False, "served_impossible", "B(-1) is none"),
    ],
)
def test_traps_of_a_served_config(engine, ids, nested, code, words, tmp_path):
    """A target of 5 blocks. What an engine feeds silently, or stops on, is a finding and no crash. llama.cpp's default
    of so shallow a target, [2, 2, 2], is three states as it wants them."""
    inv = case(tmp_path, serving(engine, ids, nested, tmp_path))
    (found,) = check_served_ids(inv.engine, inv.served_ids, inv.served_trouble)
    assert found.code == f"wiring.{code}" and words in found.meaning
    if code == "served_impossible":
        assert inv.served is None and found.severity is Severity.FAULT
    else:
        assert "passing over" in inv.served.source and found.severity is Severity.RISK


@pytest.mark.parametrize(
    ("engine", "ids", "nested", "fed"),
    [
        ("llama.cpp", [0, 2, 3], False, (0, 2, 3)),
        ("sglang", [-1, 1, 2], True, (0, 2, 3)),
        ("vllm", [0, 2, 3], False, (0, 2, 3)),
        ("vllm", [5, 2, 3], False, (2, 3, 5)),
    ],
)
def test_a_served_config_without_a_trap(engine, ids, nested, fed, tmp_path):
    inv = case(tmp_path, serving(engine, ids, nested, tmp_path))
    assert check_served_ids(inv.engine, inv.served_ids, inv.served_trouble) == []
    assert inv.served.wiring.slots == fed


@pytest.mark.parametrize(
    ("trainer", "config", "fed", "source"),
    [
        (None, {}, toys.SLOTS, "as speculators reads them"),
        ("speculators_old", {}, (1, 3, 4), "as speculators, old data generation reads them"),
        ("eagle", {}, (2,), "official EAGLE's own, without ids"),
        ("modelopt", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 4]}}, (1, 2, 5), "as ModelOpt reads"),
        ("torchspec", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}, (1, 2, 4), "as TorchSpec"),
    ],
)
def test_a_case_s_trainer_reads_the_draft_s_ids(trainer, config, fed, source, tmp_path):
    """Stated, or told by the form; n = 5, where n // 2 = n - 3 = 2."""
    found = case(tmp_path, trainer=trainer, **config).trained
    assert found.wiring.slots == fed and source in found.source


def test_a_form_that_several_write_names_no_trainer(tmp_path):
    inv = case(tmp_path)
    (tmp_path / "draft" / "config.json").write_text(json.dumps(forms.flat_config(eagle_aux_hidden_state_layer_ids=[0])))
    assert not inv.trainer_is_told and inv.trainer is TRAINERS["speculators"]
    assert inv.trained.source.endswith(", which neither the case nor its form names as the trainer")
    roles = case_id_table(inv, toys.SLOTS).set_index("system")["role"]
    assert roles["speculators"] == "trainer, assumed of this draft"


def test_rows_tell_neighbours_apart():
    """What a patch says of verifying, on the dump of every boundary: from a boundary to the next a row moves by far
    more than 2⁻⁷ where its norm is ordinary, and by less where it runs away; stored in bfloat16 it moves by less."""
    inv = Investigation(load_case(CASE), "cpu")
    (section,) = (s for s in inv.case.dumps if s.name == "every")
    of_sinks = []
    for sample in inv.open(section):
        for k in range(1, inv.shape.n_layers - 1):
            row, following = sample.state(k).float(), sample.state(k + 1).float()
            size = row.norm(dim=1)
            moved, runs_away = (following - row).norm(dim=1) / size, size > 3 * size.median()
            of_sinks += moved[runs_away].tolist()
            assert moved[~runs_away].min() > 3 * SAME_STATE
            stored = (1.003 * row).bfloat16().float() / 1.003
            assert ((stored - row).norm(dim=1) / size).max() < SAME_STATE / 2
    assert min(of_sinks) < SAME_STATE


def test_the_bundled_served_config_falls_into_none():
    inv = Investigation(load_case(CASE), "cpu")
    assert check_served_ids(inv.engine, inv.served_ids, inv.served_trouble) == []
