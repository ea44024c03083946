"""Which wiring and which truth give a trainer's number: planted ones are found, and a state that is not the last one is
not taken for the target's teacher."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from bundled import CASE
from cells import run_cells
from told import TRUE, confident_draft, random_samples, told_by

from eagle3lib import load_case
from eagle3lib.battery import battery
from eagle3lib.boundaries import FINAL_NORMED, Wiring
from eagle3lib.checks.training import check_truth
from eagle3lib.findings import Severity
from eagle3lib.investigation import Investigation
from eagle3lib.own_layout import write_sample
from eagle3lib.recorded_evidence import RecordedTokens
from eagle3lib.training import (
    RECORDED,
    StepCounts,
    Teacher,
    counts_by_wiring,
    step_counts,
    teacher_choices,
    teacher_head,
    truth_name,
)
from eagle3lib.truths import Claim, every_truth, other_wirings, reproductions, search_truth, teachable

OWN, LAST = Wiring(TRUE), toys.N_LAYERS


def taught(draft, target, boundary: int):
    """Samples of the plain kind in which a boundary's state makes a teacher say the next token but one time in five."""
    samples = []
    for i, sample in enumerate(random_samples(draft)):
        told = told_by(draft, sample, OWN)
        wrong = torch.rand(len(told.token_ids), generator=toys.generator(i)) < 0.2
        says = torch.where(wrong, sample.token_ids, told.token_ids).roll(-1)
        state = target.head_rows(says) / target.norm_weight  # the norm gives it back, but for its length
        samples.append(replace(told, states={**told.states, boundary: state}))
    return samples


def test_the_truth_behind_a_number_is_found_with_the_wiring(tmp_path, target):
    """A wrong wiring and a wrong teacher: the battery names the wiring, and under it the teacher gives the number."""
    draft = confident_draft(tmp_path)
    samples = taught(draft, target, 3)
    claim = Claim(step_counts(draft, samples, OWN, 1, [3], target)[3].full_acc(0).value)
    outcome = battery(draft, Wiring((4, 2, 1)), RecordedTokens(samples), target=target)
    assert outcome.ground.wiring.slots == TRUE
    wirings = [Wiring((4, 2, 1)), outcome.ground.wiring]
    truths = every_truth([3, 5], full=False)
    found = reproductions(counts_by_wiring(draft, samples, wirings, 1, truths, target), claim)
    assert (found[0].wiring.slots, truth_name(found[0].truth), found[0].apart) == (TRUE, "teacher B(3)", 0)
    finding = check_truth(found, Wiring((4, 2, 1)), 5, LAST, claim)
    assert finding.code == "training.other_truth" and "B(3)" in finding.title
    assert finding.severity == (Severity.FAULT if sum(r.inside for r in found) == 1 else Severity.RISK)
    assert check_truth(found, OWN, 3, LAST, claim).code == "training.truth_confirmed"
    far = Claim(0.123)
    none = check_truth(reproductions(counts_by_wiring(draft, samples, wirings, 1, [RECORDED]), far), OWN, 3, LAST, far)
    assert (none.code, none.severity) == ("training.no_truth", Severity.RISK)


def test_counts_of_several_wirings_are_those_of_each(draft, target, sample):
    wirings, truths = [Wiring((0, 2, 3)), Wiring((3, 2, 0))], [RECORDED, 2, Teacher(4, False, True)]
    both = counts_by_wiring(draft, [sample], wirings, 3, truths, target)
    for wiring in wirings:
        alone = step_counts(draft, [sample], wiring, 3, truths, target)
        for truth in truths:
            for name, values in both[wiring][truth].by_name().items():
                assert (values == alone[truth].by_name()[name]).all()


def one(right: int, of: int, samples: int = 4) -> StepCounts:
    """Counts of one step, the same in every sample."""
    full = [[right]] * samples
    return StepCounts(*(torch.tensor(v).numpy() for v in (full, [[of]] * samples, [[of]] * samples)))


@pytest.mark.parametrize(
    ("truth", "teacher", "code", "severity"),
    [
        (Teacher(4), 4, "training.truth_confirmed", Severity.OK),  # the stated teacher, early or not
        (RECORDED, None, "training.truth_confirmed", Severity.OK),
        (RECORDED, 4, "training.truth_confirmed", Severity.NOTE),  # the files name another, which does not give it
        (Teacher(LAST, full=True), None, "training.truth_confirmed", Severity.OK),
        (Teacher(FINAL_NORMED, normed=False), 4, "training.truth_confirmed", Severity.NOTE),
        (Teacher(LAST, normed=False), LAST, "training.other_truth", Severity.FAULT),  # a norm was forgotten
        (Teacher(FINAL_NORMED, normed=True), None, "training.other_truth", Severity.FAULT),  # or applied twice
        (Teacher(3), LAST, "training.other_truth", Severity.FAULT),
    ],
    ids=lambda value: str(value),
)
def test_what_is_said_of_the_truth_that_gives_the_number(truth, teacher, code, severity):
    counted = {OWN: {RECORDED: one(2, 9), Teacher(4): one(3, 9), Teacher(LAST): one(4, 9)} | {truth: one(7, 9)}}
    claim = Claim(7 / 9)
    finding = check_truth(reproductions(counted, claim), OWN, teacher, LAST, claim)
    assert (finding.code, finding.severity) == (code, severity)
    assert truth_name(truth) in finding.title


def test_counts_decide_where_the_trainer_gives_them():
    """Two truths of one accuracy: only one has the trainer's totals."""
    claimed = {"full_acc_sum": [28], "full_acc_total": [36], "cond_acc_sum": [28], "cond_acc_total": [36]}
    claim = Claim(28 / 36, claimed)
    assert claim.comes_back(one(7, 9)) and not claim.comes_back(one(14, 18))
    assert Claim(28 / 36).comes_back(one(14, 18))


def case_of(folder: Path, draft_folder: Path, target_folder: Path, samples: list, training: str) -> Investigation:
    """A case on disk whose dump is in our own layout."""
    (folder / "dump").mkdir()
    for i, sample in enumerate(samples):
        write_sample(folder / "dump", i, sample.token_ids, sample.loss_mask, sample.states)
    (folder / "case.toml").write_text(
        f'[draft]\npath = "{draft_folder}"\ntrainer = "speculators"\n[target]\npath = "{target_folder}"\n'
        f'[training]\n{training}\n[[dumps]]\nname = "d"\npath = "dump"\ntemperature = 0.0\n'
    )
    return Investigation(load_case(folder / "case.toml"), "cpu")


def test_the_search_widens_to_other_wirings_and_whole_vocabularies(tmp_path, target_folder, target):
    """The files name another wiring, or the teacher spoke over the whole vocabulary: tried only where it must be."""
    (tmp_path / "draft").mkdir()
    draft = confident_draft(tmp_path / "draft")
    samples = taught(draft, target, 3)
    inv = case_of(tmp_path, tmp_path / "draft", target_folder, samples, "boundaries = [2, 3, 5]\nteacher = 3")
    samples = inv.samples(inv.common_boundaries([2, 3, 5]))
    truths = every_truth(teachable(samples), full=False)

    def searched(believed: Wiring, claim: Claim) -> list:
        counted = step_counts(inv.draft, samples, believed, 1, truths, inv.target)
        return search_truth(inv, samples, believed, counted, claim)

    own = tuple(inv.trainer.trained(inv.draft_config, inv.shape))
    assert own in {w.slots for w in other_wirings(inv, Wiring((2, 3, 5)), samples)}
    right = Claim(step_counts(inv.draft, samples, Wiring(own), 1, [3], inv.target)[3].full_acc(0).value)
    assert {r.wiring for r in searched(Wiring(own), right)} == {Wiring(own)}, "the believed wiring gave it already"
    wide = searched(Wiring((2, 3, 5)), right)
    assert Wiring(own) in {r.wiring for r in wide if r.inside}
    whole = Claim(0.999)
    tried = searched(Wiring(own), whole)
    assert any(isinstance(r.truth, Teacher) and r.truth.full for r in tried)
    assert len(tried) > len(truths)


def test_teachers_over_the_whole_vocabulary_and_without_the_norm(draft, target, sample):
    """Against the whole head's logits written out; a bare boundary is the usual teacher."""
    head = teacher_head(draft, target)
    whole = target.head_rows(torch.arange(toys.VOCABULARY))
    state = sample.state(2).float()
    for normed in (True, False):
        expected = ((target.final_norm(state) if normed else state) @ whole.T).argmax(-1)
        assert torch.equal(teacher_choices(draft, target, head, sample, Teacher(2, normed, True)), expected)
        among = (target.final_norm(state) if normed else state) @ whole[draft.target_ids].T
        found = teacher_choices(draft, target, head, sample, Teacher(2, normed))
        assert torch.equal(found, draft.target_ids[among.argmax(-1)])
    assert torch.equal(
        teacher_choices(draft, target, head, sample, 2), teacher_choices(draft, target, head, sample, Teacher(2))
    )
    assert Teacher.of(FINAL_NORMED) == Teacher(FINAL_NORMED, normed=False)
    names = [truth_name(truth) for truth in every_truth([2, FINAL_NORMED])]
    assert len(set(names)) == len(names) == 9
    assert names[:2] == ["recorded token", "teacher B(2)"]
    assert "teacher final_normed, normed again, whole vocabulary" in names


def test_a_teacher_that_is_not_the_last_state_is_not_called_so(tmp_path):
    """The dump's last two states change places: what is stated as B(30) taught, and is B(28). Notebook 03 alone
    believes the name; after notebook 02 it does not."""
    inv = Investigation(load_case(CASE), "cpu")
    swapped = [0, 3, 16, 30, 28]
    lines = [
        f'[draft]\npath = "{CASE.parent / "draft"}"\ntrainer = "speculators"',
        f'[target]\npath = "{CASE.parent / "target" / "SmolLM2-135M-Instruct.Q4_1.gguf"}"',
        f'[[dumps]]\nname = "five"\npath = "{CASE.parent / "dumps" / "five"}"\ntemperature = 0.0\nlimit = 3',
        f"boundaries = {swapped}",
    ]
    section = next(s for s in inv.case.dumps if s.name == "five")
    samples = [replace(s, name=f"five/{s.name}") for s in list(inv.open(section, [0, 3, 16, 28]))[:3]]
    claimed = step_counts(inv.draft, samples, inv.trained.wiring, 1, [28], inv.target)[28].full_acc(0).value
    lines.insert(2, f"[training]\nteacher = 30\nfull_acc = [{claimed}]")
    (tmp_path / "case.toml").write_text("\n".join(lines))

    def teacher_finding() -> dict:
        run_cells("03_manual_forward", tmp_path / "case.toml", tmp_path / "out")
        record = json.loads((tmp_path / "out" / "results" / "03_manual_forward.json").read_text())
        codes = {finding["code"]: finding for finding in record["findings"]}
        assert codes["training.truth_confirmed"]["severity"] == "ok"
        return next(f for code, f in codes.items() if code.startswith("training.teacher"))

    assert teacher_finding()["code"] == "training.teacher"
    run_cells("02_layer_norms", tmp_path / "case.toml", tmp_path / "out")
    found = teacher_finding()
    assert (found["code"], found["severity"]) == ("training.teacher_unsound", "fault")
    assert "the claimed number is accuracy against it" in found["meaning"]
