"""The rehearsal: from dumps whose first state nobody took for the embedding to the repaired checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from cells import run_cells
from confusion import SILENCE, confusion_table, off_diagonal
from safetensors.torch import load_file
from story import COST_SECTION, IDS, N_LAYERS, SERVED, STORED, TEACHER, TRAINED, restated, write_story
from typer.testing import CliRunner

from eagle3lib import acceptance, rollout
from eagle3lib.__main__ import app
from eagle3lib.acceptance import length_difference
from eagle3lib.battery import battery
from eagle3lib.boundaries import Wiring
from eagle3lib.case import load_case
from eagle3lib.checkpoint import load_draft
from eagle3lib.dialects import read_checkpoint
from eagle3lib.ecosystems import TargetShape
from eagle3lib.investigation import Investigation
from eagle3lib.ledger import flag_ledger
from eagle3lib.recorded_evidence import RecordedTokens
from eagle3lib.verdict import patches

STEPS = 2
#: Every notebook but the first, and the settings that keep them short.
NOTEBOOKS = {
    "02_layer_norms": {},
    "03_manual_forward": {"steps": STEPS},
    "04_concat_order": {"steps": STEPS, "write_rewired": True},
    "05_acceptance_length": {"max_steps": STEPS, "tree_samples": 0},
    "06_serving_cost": {},
    "07_verdict": {},
}


@pytest.fixture(scope="module")
def first_case(tmp_path_factory) -> Path:
    """What the engineer has; no boundary is stated."""
    return write_story(tmp_path_factory.mktemp("story"))


@pytest.fixture(scope="module")
def case(first_case) -> Path:
    """With the boundaries of the dump stated, as its first state was found to be the embedding."""
    return restated(first_case, "stated", dump_boundaries=list(STORED))


@pytest.fixture(scope="module")
def out(case, tmp_path_factory) -> Path:
    """The report's folder, after every notebook."""
    return report(case, tmp_path_factory.mktemp("out"), *NOTEBOOKS)


def report(case: Path, out: Path, *names: str) -> Path:
    for name in names:
        run_cells(name, case, out, **NOTEBOOKS[name])
    return out


def results(out: Path, name: str) -> dict:
    return json.loads((out / "results" / f"{name}.json").read_text())


def findings(out: Path, name: str = "verdict") -> dict[str, dict]:
    """By code; every code once."""
    found = results(out, name)["findings"]
    assert len({f["code"] for f in found}) == len(found)
    return {f["code"]: f for f in found}


def test_the_target_is_as_people_have_it(first_case):
    """Links into blobs, two of 64 shards, numbers in `text_config`; nothing of a block is there to be loaded."""
    inv = Investigation(load_case(first_case), "cpu")
    folder = inv.case.target.path
    assert all(file.is_symlink() for file in folder.iterdir())
    assert len(list(folder.glob("*.safetensors"))) == 2
    assert inv.shape == TargetShape(N_LAYERS, "KimiK25ForConditionalGeneration")
    assert inv.draft.config.mla is not None
    assert "unknown" not in {entry.status for entry in flag_ledger(read_checkpoint(inv.case.draft.path))}


def test_the_first_state_is_found_to_be_the_embedding(first_case, tmp_path):
    """By the layout's own rule it would be B(3); that decides the verdict, and the last one is not B(n)."""
    found = findings(report(first_case, tmp_path, "02_layer_norms", "07_verdict"))
    inv = Investigation(load_case(first_case), "cpu")
    assert inv.stored_boundaries(inv.case.dumps[0]) == (3, 7, 10, N_LAYERS)
    assert results(tmp_path, "verdict")["code"] == "dump.hidden_embedding"
    assert "stated as B(3) is the embedding output B(0)" in found["dump.hidden_embedding"]["title"]
    assert "State boundary 0" in found["dump.hidden_embedding"]["remedy"]
    faults = {code for code, finding in found.items() if finding["severity"] == "fault"}
    assert faults == {"dump.hidden_embedding", "dump.last_state_wrong"}


def test_once_stated_the_dump_is_sound_as_far_as_it_goes(out):
    found = findings(out, "02_layer_norms")
    assert found["dump.embedding_proved"]["severity"] == found["dump.values_sound"]["severity"] == "ok"
    assert not {f["severity"] for f in found.values()} & {"fault", "risk"}


def test_the_wiring_is_named_without_a_hint(case, out):
    """Training by the layout's rule and by the search over every stored boundary, serving by the release's rule."""
    inv = Investigation(load_case(case), "cpu")
    assert (inv.trained.wiring, inv.trained.source) == (Wiring(TRAINED), "the dump layout's own rule")
    assert inv.served.wiring == Wiring(SERVED)
    assert str(IDS) in inv.served.source
    found = findings(out, "04_concat_order")
    assert found["wiring.search_confirms"]["evidence"]["best"] == [list(TRAINED)]
    differs = found["wiring.served_differs"]
    assert differs["severity"] == "fault"
    assert (differs["evidence"]["trained"], differs["evidence"]["served"]) == (list(TRAINED), list(SERVED))
    assert differs["evidence"]["lost"][1] > 0.2


def test_the_teacher_is_named(out):
    """B(10), two blocks before the end; the claimed number is accuracy against it, and far from the recorded token's.
    Without B(n) it stays a risk."""
    found = findings(out, "03_manual_forward")
    early = found["training.teacher_early"]
    assert early["severity"] == "risk"
    assert early["evidence"]["teacher"] == TEACHER
    gives = early["evidence"]["claim_reproduced_under"]
    assert "teacher B(10)" in gives and all(name.startswith("teacher B(10)") for name in gives)
    assert found["training.truth_confirmed"]["severity"] == "ok"
    assert "B(10) taught, 2 blocks before the end" in early["title"]
    assert "without B(n)" in early["meaning"]
    rows = results(out, "03_manual_forward")["numbers"]["accuracy_by_truth"]
    at = {row["truth"]: row["full_acc"] for row in rows if row["step"] == 0}
    assert at["teacher B(10)"] > at["recorded token"] + 0.1


def test_no_forecast_is_made_without_the_last_state(out):
    found = findings(out)
    assert found["dump.no_last_state"]["severity"] == found["served.no_forecast"]["severity"] == "note"
    assert "B(n)" in found["served.no_forecast"]["title"]
    assert not {"served.forecast", "served.explained", "served.unexplained"} & found.keys()


def test_the_verdict_names_the_wiring(out):
    verdict = results(out, "verdict")
    assert verdict["code"] == "wiring.served_differs"
    assert [f["code"] for f in verdict["findings"] if f["severity"] == "fault"] == ["wiring.served_differs"]
    assert "trained on B(0), B(3) and B(7) and is served B(3), B(7) and B(10)" in verdict["sentence"]
    assert "SGLang 0.5.12 cannot capture these boundaries" in verdict["sentence"]
    rewired = next(item for item in verdict["numbers"]["headline"] if item["label"] == "served, columns moved")
    assert f"moving fc's columns alone, without new data, brings back {rewired['value']:.2f}" in verdict["sentence"]


def test_the_patches_say_what_the_engine_needs(case, out):
    """The release that serves cannot capture B(0); what can be done is said, and a later one is told by ids alone."""
    first = results(out, "verdict")["numbers"]["patches"][0]
    assert (first["engine"], first["version"], first["ids"]) == ("SGLang", "0.5.12", None)
    for words in ("deepseek_v2.py", "B(0) needs 0.5.14 or later", "B(7) (the input of block 7", "rewired checkpoint"):
        assert words in first["note"], words
    assert "the row equals the target's embedding row" in first["verify"]
    later = Investigation(load_case(restated(case, "later", served_version="0.5.23")), "cpu")
    newer = patches(later, TRAINED)[0]
    assert (newer["version"], newer["ids"]) == ("0.5.23", TRAINED)
    assert json.loads(f"{{{newer['text']}}}")["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(TRAINED)
    assert "one is added to ids if the first id is 1" in newer["note"]


def test_the_rewired_checkpoint_differs_in_fc_alone_and_restores_the_rounds(case, out):
    """Read back from its folder and fed what is served: nine tenths of the lost length and more come back."""
    inv = Investigation(load_case(case), "cpu")
    old, new = (load_file(folder / "model.safetensors") for folder in (inv.case.draft.path, out / "rewired"))
    assert old.keys() == new.keys()
    assert [name for name in old if not torch.equal(old[name], new[name])] == ["fc.weight"]
    assert json.loads((out / "rewired" / "config.json").read_text()) == inv.draft_config
    samples = inv.samples(STORED)
    repaired = load_draft(out / "rewired", inv.target, "cpu")
    runs = {
        "trained": [rollout(inv.draft, s, Wiring(TRAINED), STEPS) for s in samples],
        "served": [rollout(inv.draft, s, Wiring(SERVED), STEPS) for s in samples],
        "rewired": [rollout(repaired, s, Wiring(SERVED), STEPS) for s in samples],
    }
    lengths = {name: acceptance(run, STEPS).walk.length.value for name, run in runs.items()}
    recovered = (lengths["rewired"] - lengths["served"]) / (lengths["trained"] - lengths["served"])
    assert recovered > 0.9
    assert length_difference(runs["rewired"], runs["served"], STEPS).low > 0.2


def test_the_command_mends_it_by_moved_columns(case, out, tmp_path):
    """The same checkpoint from the command line."""
    arguments = ["repair", "--case", str(case), "--engine", "sglang", "--out", str(tmp_path / "mended")]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    assert "suffices" in done.output
    assert json.loads((tmp_path / "mended" / "provenance.json").read_text())["repair"] == "rewire"
    mended, rewired = (load_file(folder / "model.safetensors") for folder in (tmp_path / "mended", out / "rewired"))
    assert all(torch.equal(mended[name], rewired[name]) for name in rewired)


def test_the_wiring_is_one_fault_and_the_round_s_fixed_cost_the_other(case, out, tmp_path):
    """The speeds of the case that was met in the field, beside the toy's replay: mending the wiring is not enough."""
    timed = case.with_name("timed.toml")
    timed.write_text(case.read_text() + COST_SECTION)
    shutil.copytree(out / "results", tmp_path / "results")
    report(timed, tmp_path, "06_serving_cost", "07_verdict")
    verdict, found = results(tmp_path, "verdict"), findings(tmp_path)
    assert verdict["code"] == "wiring.served_differs"
    faults = {code for code, finding in found.items() if finding["severity"] == "fault"}
    assert faults == {"wiring.served_differs", "cost.fixed_cost"}
    assert found["cost.fixed_cost"]["evidence"]["wiring"] == "trained"
    main, other = verdict["sentence"].split("; besides, ")
    assert main.startswith("The wiring is at fault")
    assert len(main.split()) <= 60
    assert other.startswith("the fixed cost of a round is too high, 27.3 of its 29.1 ms: at K = 2 it costs 2.62")


def test_served_as_trained_no_fault_is_found(case, tmp_path):
    """The same files with the right capture: the wiring is equal, and what is left is the teacher."""
    right = restated(case, "right", served_boundaries=list(TRAINED))
    found = findings(report(right, tmp_path, *NOTEBOOKS))
    assert found["wiring.equal"]["severity"] == "ok"
    assert "fault" not in {f["severity"] for f in found.values()}
    assert found["training.teacher_early"]["severity"] == "risk"


def test_ids_that_never_fed_the_training_are_not_believed(first_case, tmp_path):
    """The ids at the top level too, where speculators reads them: by its files the draft is served as trained. The
    states say otherwise, and the loss, the repair and the lines for each engine are those of what they say."""
    shutil.copytree(first_case.parent, tmp_path / "case", symlinks=True)
    config = tmp_path / "case" / "draft" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eagle_aux_hidden_state_layer_ids": IDS}))
    case = restated(tmp_path / "case" / first_case.name, "ids", dump_boundaries=list(STORED), served_version="0.5.12")
    assert Investigation(load_case(case), "cpu").trained.wiring == Wiring(SERVED)
    out = report(case, tmp_path / "out", "04_concat_order", "05_acceptance_length", "07_verdict")
    verdict, found = results(out, "verdict"), findings(out)
    faults = {code for code, finding in found.items() if finding["severity"] == "fault"}
    assert faults == {"wiring.search_contradicts", "wiring.served_differs"}
    assert "trained on B(0), B(3) and B(7), as the states say against its files, and is served" in verdict["sentence"]
    assert verdict["numbers"]["training_wiring"] == list(TRAINED)
    assert verdict["numbers"]["patches"][0]["ids"] is None
    assert json.loads((out / "rewired" / "provenance.json").read_text())["trained"] == list(TRAINED)
    rows = results(out, "05_acceptance_length")["numbers"]["acceptance_length"]
    assert {row["wiring"] for row in rows} == {"trained", "served", "rewired"}


#: What is believed of the latent draft, by the family that undoes it.
BELIEVED = {
    SILENCE: Wiring(TRAINED),
    "embedding slot": Wiring(SERVED),
    "slot order": Wiring((7, 3, 0)),
    "token shift": Wiring(TRAINED, token_shift=-1),
    "concat order": Wiring(TRAINED, hidden_first=True),
    "head norm": Wiring(TRAINED, norm_head=False),
    "residual": Wiring(TRAINED, norm_before_residual=True),
    "residual source": Wiring(TRAINED, residual_embedding=True),
}


def test_the_confusion_table_of_a_latent_draft_is_diagonal(case):
    """Rows planted, columns named first."""
    inv = Investigation(load_case(case), "cpu")
    samples = inv.samples(STORED)

    def first_family(believed: Wiring) -> str:
        changes = battery(inv.draft, believed, RecordedTokens(samples), target=inv.target).changes
        return changes[0].hypothesis.family if changes else SILENCE

    table = confusion_table({name: lambda w=wiring: first_family(w) for name, wiring in BELIEVED.items()})
    assert off_diagonal(table) == []
