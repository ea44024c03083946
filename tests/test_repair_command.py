"""`python -m eagle3lib repair`: the bundled draft mended, and what cannot be is said in a sentence."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import forms
import pytest
import torch
import toys
from bundled import CASE
from safetensors.torch import load_file
from typer.testing import CliRunner

from eagle3lib.__main__ import app
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import load_draft
from eagle3lib.own_layout import write_sample
from eagle3lib.rewire import rewire
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample
from eagle3lib.target import load_target

TRAINED = Wiring((0, 2, 3))


def repair(*arguments: object):
    return CliRunner().invoke(app, ["repair", *map(str, arguments)], env={"COLUMNS": "300"})


@pytest.fixture(scope="module")
def answered(tmp_path_factory) -> Path:
    """A toy draft trained on [0, 2, 3], whose config SGLang reads as [2, 3, 4], and prompts that it answered itself."""
    folder = tmp_path_factory.mktemp("answered")
    target = toys.write_target(folder / "target")
    tensors = forms.without(toys.draft_tensors(), "embed_tokens.weight")
    tensors["fc.weight"][:, : toys.HIDDEN] = 0
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}
    forms.put(folder / "draft", forms.midlayer(tensors), forms.flat_config(**ids))
    draft = load_draft(folder / "draft", load_target(target), "cpu")
    for i in range(12):
        sample = toys.make_sample(300 + i, length=32, turns=((4, 30),), name=str(i))
        sample = replace(sample, states={b: h / (1 + b) for b, h in sample.states.items()})
        told = told_by(draft, sample)
        write_sample(folder / "dump", i, told.token_ids, told.loss_mask, told.states, metadata={"temperature": "0.0"})
    (folder / "case.toml").write_text(
        'name = "toy"\n[draft]\npath = "draft"\n[target]\npath = "target"\n[training]\nboundaries = [0, 2, 3]\n'
        '[[dumps]]\nname = "all"\npath = "dump"\n[served]\nengine = "sglang"\nversion = "0.5.23"\nsteps = 2\n'
    )
    return folder


@pytest.fixture
def case(answered: Path, tmp_path: Path) -> Path:
    """A copy of it, to change."""
    shutil.copytree(answered, tmp_path, dirs_exist_ok=True)
    return tmp_path / "case.toml"


def told_by(draft, sample: Sample) -> Sample:
    while not bool((found := rollout(draft, sample, TRAINED, 1)).hit.all()):
        tokens = sample.token_ids.clone()
        tokens[found.starts + 2] = found.predicted[:, 0]
        sample = replace(sample, token_ids=tokens)
    return sample


def test_the_lowest_rung_that_suffices_is_written(case, tmp_path):
    """Rewired columns in the original's form; the ids stay, since they were served so; the table names the rungs."""
    found = repair("--case", case, "--engine", "sglang", "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output
    for words in ("Trained on [0, 2, 3]; SGLang feeds [2, 3, 4]", "rewire", "suffices", "true wiring", "Written to"):
        assert words in found.output, words
    draft = load_draft(tmp_path / "draft", load_target(tmp_path / "target"), "cpu")
    new = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(new["fc.weight"], rewire(draft, TRAINED, Wiring((2, 3, 4))).draft.weights.fc)
    notes = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert (notes["repair"], notes["engine"], notes["config_changed"]) == ("rewire", "sglang", {})


def test_ids_that_were_left_to_the_default_are_written(case, tmp_path):
    """A config without ids: SGLang's default of a target of 8 blocks, spelled out."""
    config = tmp_path / "draft" / "config.json"
    data = json.loads(config.read_text())
    config.write_text(json.dumps(data | {"eagle_config": {"use_aux_hidden_state": True}}))
    target = tmp_path / "target" / "config.json"
    target.write_text(json.dumps(json.loads(target.read_text()) | {"num_hidden_layers": 8}))
    found = repair("--case", case, "--out", tmp_path / "out", "--margin", "9")
    assert "SGLang feeds [2, 4, 5]" in found.output
    assert found.exit_code == 0, found.output
    notes = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert notes["config_changed"] == {"eagle_config.eagle_aux_hidden_state_layer_ids": [1, 3, 4]}


def test_without_a_dump_moved_columns_are_written_and_called_unjudged(case, tmp_path):
    text = case.read_text()
    case.write_text(text[: text.index("[[dumps]]")] + text[text.index("[served]") :])
    found = repair("--case", case, "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output
    assert "nothing could be fitted or judged" in found.output
    assert (tmp_path / "out" / "provenance.json").is_file()


def test_boundaries_that_hold_nothing_write_nothing(case, tmp_path):
    """Three copies of B(5): exit code 3, a sentence, no folder."""
    case.write_text(case.read_text() + "boundaries = [5, 5, 5]\n")
    found = repair("--case", case, "--out", tmp_path / "out")
    assert found.exit_code == 3, found.output
    assert "do not hold what fc needs" in found.output
    assert not (tmp_path / "out").exists()


def test_the_right_wiring_needs_no_repair(case, tmp_path):
    case.write_text(case.read_text() + "boundaries = [0, 2, 3]\n")
    found = repair("--case", case, "--out", tmp_path / "out")
    assert (found.exit_code, "nothing to repair" in found.output) == (0, True)
    assert not (tmp_path / "out").exists()


def test_ids_that_the_states_contradict_are_refused(case, tmp_path):
    """The config's ids say [1, 2, 3] by their trainer's rule, the prompts were answered under [0, 2, 3]: nothing is
    written until the case states which is right; then that is believed, with a warning where the states differ."""
    text = case.read_text()
    case.write_text(
        text.replace("[training]\nboundaries = [0, 2, 3]\n", "").replace(
            '"draft"\n', '"draft"\ntrainer = "specforge"\n'
        )
    )
    found = repair("--case", case, "--out", tmp_path / "out")
    assert found.exit_code == 2, found.output
    assert "The files say that fc was fed" in found.output and "2, 3] best" in found.output
    assert f"training.boundaries in {case}" in found.output
    assert not (tmp_path / "out").exists()
    case.write_text(text.replace("[0, 2, 3]", "[3, 2, 0]"))
    found = repair("--case", case, "--out", tmp_path / "out")
    assert "The case states that fc was fed [3, 2, 0] in training" in found.output and "It is believed" in found.output
    case.write_text(text)
    assert "believed" not in repair("--case", case, "--out", tmp_path / "other").output


def turned_stack(case: Path, folder: Path) -> None:
    """The same tokens from a target whose residual stream is turned by a rotation, as a second dump of the case."""
    turn = torch.linalg.qr(torch.randn(toys.HIDDEN, toys.HIDDEN, generator=toys.generator(1))).Q
    for i, file in enumerate(sorted((folder / "dump").iterdir())):
        held = load_file(file)
        states = {b: held[f"boundary.{b}"] @ turn for b in range(toys.N_LAYERS + 1)}
        mask = held["loss_mask"].bool()
        write_sample(folder / "turned", i, held["token_ids"], mask, states, metadata={"temperature": "0.0"})
    text = case.read_text()
    dump = '[[dumps]]\nname = "turned"\npath = "turned"\nsame_tokens_as = "all"\n'
    case.write_text(text.replace("[served]", dump + "[served]"))


def true_embeddings(folder: Path, dump: str = "dump") -> None:
    """B(0) as the target's embedding has it, in every sample."""
    target = load_target(folder / "target")
    for i, file in enumerate(sorted((folder / dump).iterdir())):
        held = load_file(file)
        states = {b: held[f"boundary.{b}"] for b in range(1, toys.N_LAYERS + 1)}
        states[0] = target.embed(held["token_ids"])
        mask = held["loss_mask"].bool()
        write_sample(folder / dump, i, held["token_ids"], mask, states, metadata={"temperature": "0.0"})


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_turned_target_needs_an_own_embedding(engine, case, tmp_path):
    """vLLM uses a draft's own embedding, so it is written; SGLang would not, and nothing is."""
    true_embeddings(tmp_path)
    turned_stack(case, tmp_path)
    config = tmp_path / "draft" / "config.json"
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]}
    config.write_text(json.dumps(json.loads(config.read_text()) | ids))
    found = repair("--case", case, "--engine", engine, "--out", tmp_path / "out", "--served-dump", "turned",
                   "--margin", "0.5")  # fmt: skip
    if engine == "sglang":
        assert found.exit_code == 2, found.output
        assert "would not use the draft's own" in found.output
        assert not (tmp_path / "out").exists()
    else:
        assert found.exit_code == 0, found.output
        table = load_file(tmp_path / "out" / "model.safetensors")["embed_tokens.weight"]
        assert torch.equal(table, load_target(tmp_path / "target").embed(torch.arange(toys.VOCABULARY)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "sgl"], "Unknown engine 'sgl'"),
        (["--fit-dump", "nothing"], "names no dump 'nothing'"),
        (["--served-dump", "all"], "does not say same_tokens_as"),
        (["--fit-dump", "all", "--served-dump", "all"], "do not go together"),
        (["--fit-dump", "all"], "found one only"),
    ],
)
def test_a_users_mistake_is_a_sentence(arguments, words, case, tmp_path):
    found = repair("--case", case, "--out", tmp_path / "out", *arguments)
    assert found.exit_code == 2
    assert words in found.output


def test_the_bundled_draft_is_rewired_in_seconds(tmp_path):
    """On the committed dumps: B(0) is worth less than the margin, and the moved columns suffice."""
    found = repair("--case", CASE, "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output
    notes = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert notes["repair"] == "rewire"
    assert notes["rungs"]["rewire"]["gain"]["low"] > 0
    assert notes["rungs"]["rewire"]["recovered"]["value"] > 0.95
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == json.loads(
        (CASE.parent / "served" / "config.json").read_text()
    )
