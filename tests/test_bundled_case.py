"""The bundled case: the claim comes back, the search needs no hint, the repair works, the faults are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from bundled import CASE, library_draft
from safetensors.torch import load_file, save_file

from eagle3lib import InputError, Wiring, acceptance, load_case, load_draft, rollout
from eagle3lib.acceptance import length_difference
from eagle3lib.checks.checkpoint import check_map
from eagle3lib.dialects import read_checkpoint
from eagle3lib.investigation import Investigation
from eagle3lib.repaired_checkpoint import save_rewired
from eagle3lib.rewire import rewire
from eagle3lib.rollout import chain_states
from eagle3lib.search import without_hints
from eagle3lib.training import step_counts
from eagle3lib.vocabulary import read_vocabulary
from eagle3lib.wiring import Scorer, every_wiring

TRAINED, SERVED = (0, 3, 16), (3, 16, 28)


@pytest.fixture(scope="module")
def inv() -> Investigation:
    return Investigation(load_case(CASE), "cpu")


def test_saved_config_states_the_training() -> None:
    """The library's own config says what the issue of the case asked the trainer for."""
    config = json.loads((CASE.parent / "draft" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == list(TRAINED)
    assert config["draft_vocab_size"] == 4096
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "embed_requires_grad"):
        assert config[flag] is False
    layer = config["transformer_layer_config"]
    assert layer["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert layer["num_hidden_layers"] == 1
    assert "sliding_window" not in layer
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] >= 4


def test_committed_files_stay_small() -> None:
    """Draft, claim, tokens and dumps together are under the agreed 58 MB, the embedding is not among them."""
    folder = CASE.parent
    files = [f for name in ("draft", "dumps", "tokens", "served") for f in (folder / name).rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 58e6
    assert "embed_tokens.weight" not in load_file(folder / "draft" / "model.safetensors")


def test_wirings_are_derived_from_the_files(inv: Investigation) -> None:
    assert inv.trained.wiring.slots == TRAINED
    assert "config.json" in inv.trained.source
    assert inv.served.wiring.slots == SERVED
    assert "[2, 15, 27]" in inv.served.source


def test_library_counts_come_back_within_two(inv: Investigation) -> None:
    """full_acc_k and cond_acc_k, sums and totals, k = 0..3, in the library's truth and positions."""
    claimed = inv.claim["counts"]
    samples = inv.samples([*TRAINED, inv.teacher])
    ours = step_counts(inv.draft, samples, Wiring(TRAINED), 4, [inv.teacher], inv.target)[inv.teacher]
    for name, mine in (
        ("full_acc_sum", ours.full_sum),
        ("full_acc_total", ours.full_total),
        ("cond_acc_sum", ours.full_sum),
        ("cond_acc_total", ours.cond_total),
    ):
        for k in range(4):
            assert abs(int(mine[:, k].sum()) - claimed[name][k]) <= 2, (name, k)


def test_wrong_wiring_does_not_give_the_librarys_counts(inv: Investigation) -> None:
    """The check above can fail: under the served wiring the counts are far off."""
    samples = inv.samples([*TRAINED, *SERVED, inv.teacher])
    ours = step_counts(inv.draft, samples, Wiring(SERVED), 1, [inv.teacher], inv.target)[inv.teacher]
    assert abs(int(ours.full_sum.sum()) - inv.claim["counts"]["full_acc_sum"][0]) > 20


def test_logits_match_the_library_on_shipped_samples(inv: Investigation) -> None:
    """Within 1e-4, float32, the same weights: every step of the test-time training, on two shipped samples."""
    pytest.importorskip("speculators")
    import prepare
    import train_draft

    from eagle3lib import draft_head

    model = library_draft()
    captured: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda _m, _i, output: captured.append(output[0]))
    try:
        for i, sequence in enumerate(prepare.dumped_sequences(CASE.parent / "dumps" / "five", prepare.FIVE)[:2]):
            captured.clear()
            with torch.inference_mode():
                model(**train_draft.batch_of([sequence]), **train_draft.loss_arguments())
            sample = inv.samples([*TRAINED])[i]
            for k, u in enumerate(chain_states(inv.draft, sample, Wiring(TRAINED), 4)):
                mine = draft_head.logits(inv.draft, u)
                torch.testing.assert_close(mine, captured[k][: len(mine)], rtol=0, atol=1e-4)
    finally:
        hook.remove()


def test_exhaustive_search_puts_the_trained_wiring_first(inv: Investigation) -> None:
    section = next(s for s in inv.case.dumps if s.name == "five")
    ranking = Scorer(inv.draft, inv.open(section)).rank(every_wiring(inv.stored_boundaries(section), 3))
    assert ranking.candidates == 125
    assert ranking.best.slots == TRAINED


def test_search_without_hints_puts_the_trained_wiring_first(inv: Investigation) -> None:
    """From the engines' default and from the served wiring, among 29,791 candidates, ties by all four steps."""
    found = without_hints(inv)
    ranking = found.ranking
    assert found.dump == "every"
    assert ranking.candidates == 31**3
    assert ranking.best.slots == TRAINED
    assert ranking.evaluated < 1000


def test_rewired_draft_recovers_the_served_loss(inv: Investigation, tmp_path: Path) -> None:
    """Moving columns helps by a paired interval, in memory and as a written checkpoint; the original stays."""
    samples = inv.samples([*TRAINED, *SERVED])
    trained, served = Wiring(TRAINED), Wiring(SERVED)
    before = (inv.case.draft.path / "model.safetensors").read_bytes()
    rewired = rewire(inv.draft, trained, served)
    assert rewired.lost == (0,)
    broken = [rollout(inv.draft, s, served, 4) for s in samples]
    mended = [rollout(rewired.draft, s, served, 4) for s in samples]
    assert length_difference(mended, broken, 4).low > 0
    folder = save_rewired(rewired, tmp_path / "rewired", inv.served_config)
    loaded = load_draft(folder, inv.target, "cpu")
    again = [rollout(loaded, s, served, 4) for s in samples]
    assert acceptance(again, 4).walk.length == acceptance(mended, 4).walk.length
    old, new = load_file(inv.case.draft.path / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {name for name in old if not torch.equal(old[name], new[name])} == {"fc.weight"}
    assert (inv.case.draft.path / "model.safetensors").read_bytes() == before
    with pytest.raises(InputError, match="new or empty folder"):
        save_rewired(rewired, folder, inv.served_config)


def case_copy(tmp_path: Path, old: str = "", new: str = "") -> Path:
    """The bundled case in a folder of its own, with one replacement in case.toml; data are links."""
    for entry in CASE.parent.iterdir():
        if entry.name != "case.toml":
            (tmp_path / entry.name).symlink_to(entry)
    text = CASE.read_text()
    assert old in text
    (tmp_path / "case.toml").write_text(text.replace(old, new))
    return tmp_path / "case.toml"


def test_dump_that_lacks_a_stated_boundary_is_refused(tmp_path: Path) -> None:
    case = case_copy(tmp_path, "boundaries = [0, 3, 16, 28, 30]", "boundaries = [0, 3, 16, 20, 28, 30]")
    inv = Investigation(load_case(case), "cpu")
    with pytest.raises(InputError, match=r"Expected 6 states a token in .*five.* found 5"):
        inv.open(inv.case.dumps[0])


def test_truncated_draft_is_refused(tmp_path: Path) -> None:
    case = case_copy(tmp_path)
    (tmp_path / "draft").unlink()
    shutil.copytree(CASE.parent / "draft", tmp_path / "draft")
    weights = tmp_path / "draft" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        _ = Investigation(load_case(case), "cpu").draft


def test_wrong_path_is_refused(tmp_path: Path) -> None:
    case = case_copy(tmp_path, 'path = "dumps/five"', 'path = "dumps/fvie"')
    with pytest.raises(InputError, match=r"dumps\[0\].path = 'dumps/fvie'"):
        load_case(case)


def draft_without_ids(tmp_path: Path) -> Path:
    """The case with a draft whose config.json no longer says what fed fc, and no dump whose layout would."""
    text = CASE.read_text()
    begin, end = text.index('[[dumps]]\nname = "listed"'), text.index('[[dumps]]\nname = "sampled"')
    case = case_copy(tmp_path, text[begin:end], "")
    (tmp_path / "draft").unlink()
    shutil.copytree(CASE.parent / "draft", tmp_path / "draft")
    file = tmp_path / "draft" / "config.json"
    config = json.loads(file.read_text())
    config["eagle_aux_hidden_state_layer_ids"] = None
    file.write_text(json.dumps(config))
    return case


def test_without_ids_the_training_wiring_is_unknown_not_guessed(tmp_path: Path) -> None:
    assert Investigation(load_case(draft_without_ids(tmp_path)), "cpu").trained is None


def test_without_ids_a_dump_of_slots_and_teacher_says_what_fed_fc(tmp_path: Path) -> None:
    """The list layout's own rule: all states but the last feed fc, the last teaches."""
    case = draft_without_ids(tmp_path)
    case.write_text(CASE.read_text().replace('record = "training.json"', ""))
    inv = Investigation(load_case(case), "cpu")
    assert (inv.trained.wiring.slots, inv.trained.source) == (TRAINED, "the dump layout's own rule")
    assert inv.teacher == 28


def test_planted_vocabulary_fault_is_named(inv: Investigation, tmp_path: Path) -> None:
    """A t2d of another corpus contradicts d2t; the shipped pair does not."""

    def found(path: Path) -> list[tuple[str, str]]:
        return [(f.code, str(f.severity)) for f in check_map(read_vocabulary(read_checkpoint(path)))]

    assert found(inv.case.draft.path) == [("checkpoint.vocabulary", "ok")]
    shutil.copytree(inv.case.draft.path, tmp_path / "draft")
    tensors = load_file(tmp_path / "draft" / "model.safetensors")
    tensors["t2d"] = tensors["t2d"].roll(1)
    save_file(tensors, tmp_path / "draft" / "model.safetensors")
    assert ("checkpoint.vocabulary_contradicts", "fault") in found(tmp_path / "draft")


def test_planted_embedding_faults_are_named(inv: Investigation) -> None:
    """A dump stated one boundary late hides the embedding; stated right, B(0) is proved and nothing else is."""
    from eagle3lib.anchors import embedding_matches
    from eagle3lib.checks.anchors import check_embedding
    from eagle3lib.dumps import open_dump

    def codes(boundaries: tuple[int, ...]) -> list[str]:
        samples = open_dump(CASE.parent / "dumps" / "five", boundaries, limit=2)
        return [f.code for f in check_embedding("five", embedding_matches(inv.target, samples, boundaries))]

    assert codes((0, 3, 16, 28, 30)) == ["dump.embedding_proved"]
    assert codes((1, 3, 16, 28, 30)) == ["dump.hidden_embedding"]
    assert codes((3, 0, 16, 28, 30)) == ["dump.hidden_embedding", "dump.not_embedding"]


def test_planted_activation_fault_is_named(inv: Investigation, tmp_path: Path) -> None:
    """A recording whose MLP lost its scale is named there; the pass's own recording agrees."""
    from eagle3lib import taps
    from eagle3lib.checks.served import check_activations

    samples, wiring = inv.samples(TRAINED), Wiring(TRAINED)
    sample = samples[3]
    mine = taps.record(inv.draft, sample, wiring)[0]

    def code(activations: dict) -> tuple[str, object]:
        file = taps.save_activations(tmp_path / "recorded.safetensors", activations, sample.token_ids[1:])
        recorded = taps.read_activations(file)
        found, rows = taps.recorded_sample(samples, recorded)
        assert found is sample
        table = taps.compare(taps.leading(mine, rows), taps.leading(recorded, rows))
        finding = check_activations(taps.first_mismatch(table), table.to_dict("records"))
        return finding.code, finding.evidence.get("tap")

    assert code(mine) == ("served.activations_agree", None)
    assert code({**mine, "mlp": mine["mlp"] * 2}) == ("served.activation_differs", "mlp")
