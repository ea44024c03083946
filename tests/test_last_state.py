"""The last state against the recorded tokens: every planted fault is named, and healthy dumps are left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import toys
from bundled import CASE
from torch.testing import assert_close

from eagle3lib import load_case, readings, reconstruction
from eagle3lib.anchors import embedding_matches
from eagle3lib.boundaries import FINAL_NORMED
from eagle3lib.checks.last_state import check_last_state, check_on_policy
from eagle3lib.checks.teacher import check_teacher, check_teacher_probabilities
from eagle3lib.investigation import Investigation
from eagle3lib.reconstruction import Reconstruction, by_depth, reconstruct
from eagle3lib.results import plain
from eagle3lib.sample import Sample, TeacherProbs
from eagle3lib.target import Target
from eagle3lib.teacher import audit_teacher
from eagle3lib.training import RECORDED, step_counts
from eagle3lib.truths import Claim

LAST = 30
#: A boundary before the last that each dump holds.
EARLY = {"five": 28, "sampled": 16}
Change = Callable[[Sample], Sample]


@pytest.fixture(scope="module")
def inv() -> Investigation:
    return Investigation(load_case(CASE), "cpu")


@pytest.fixture(scope="module")
def bundled(inv: Investigation) -> dict[str, list[Sample]]:
    """Two samples of a kind, with and without the dump's log-probabilities."""
    found = {}
    for name in ("five", "sampled"):
        section = next(s for s in inv.case.dumps if s.name == name)
        samples = list(inv.open(section, [0, EARLY[name], LAST]))[:2]
        found[name] = samples
        found[f"{name}, no log-probabilities"] = [replace(sample, logprobs=None) for sample in samples]
    return found


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as a planted fault needs, so that the head's pass is short."""
    monkeypatch.setattr(reconstruction, "ROWS_A_SAMPLE", 80)
    monkeypatch.setattr(reconstruction, "ROWS_READ_OTHERWISE", 100)


def normed(target: Target, state: torch.Tensor, times: int = 1) -> torch.Tensor:
    """As a writer of bfloat16 stores a state with so many norms behind it."""
    for _ in range(times):
        state = target.final_norm(state)
    return state.bfloat16()


def shifted(sample: Sample, by: int) -> Sample:
    """Ids and all that belongs to them moved against the rows."""
    logprobs = None if sample.logprobs is None else sample.logprobs.roll(by)
    return replace(sample, token_ids=sample.token_ids.roll(by), loss_mask=sample.loss_mask.roll(by), logprobs=logprobs)


def state_of(change: Callable[[Sample], torch.Tensor], boundary: int | str = LAST) -> Change:
    return lambda sample: replace(sample, states={boundary: change(sample)})


def plants(target: Target) -> dict[str, tuple[int | str, Change, str]]:
    """Fault by name: the boundary as stated, how it is planted, the finding that names it."""
    size = target.vocab_size
    return {
        "one state early": (LAST, state_of(lambda s: s.states[28 if 28 in s.states else 16]), "dump.last_state_wrong"),
        "normed, said not to be": (
            LAST,
            state_of(lambda s: normed(target, s.states[LAST])),
            "dump.last_state_normed",
        ),
        "said to be normed": (
            FINAL_NORMED,
            state_of(lambda s: s.states[LAST], FINAL_NORMED),
            "dump.last_state_unnormed",
        ),
        "normed twice": (
            FINAL_NORMED,
            state_of(lambda s: normed(target, s.states[LAST], 2), FINAL_NORMED),
            "dump.last_state_normed_twice",
        ),
        "ids one ahead": (LAST, lambda s: shifted(s, -1), "dump.ids_shifted"),
        "ids one behind": (LAST, lambda s: shifted(s, 1), "dump.ids_shifted"),
        "rows of another order": (LAST, state_of(lambda s: s.states[LAST].flip(0)), "dump.rows_foreign"),
        "tokens of another tokenizer": (
            LAST,
            lambda s: replace(s, token_ids=(s.token_ids * 7919 + 13) % size),
            "dump.rows_foreign",
        ),
    }


@pytest.mark.parametrize("kind", ["five", "five, no log-probabilities", "sampled, no log-probabilities"])
@pytest.mark.parametrize("fault", [
    "one state early", "normed, said not to be", "said to be normed", "normed twice", "ids one ahead",
    "ids one behind", "rows of another order", "tokens of another tokenizer",
])  # fmt: skip
def test_planted_fault_is_named(fault: str, kind: str, inv: Investigation, bundled) -> None:
    boundary, change, code = plants(inv.target)[fault]
    found = reconstruct(inv.target, map(change, bundled[kind]), boundary)
    finding = check_last_state(found)
    assert (finding.code, str(finding.severity)) == (code, "fault")
    assert check_on_policy(found).code == "dump.on_policy_unknown"


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("five", {"dump.last_state", "dump.on_policy"}),
        ("five, no log-probabilities", {"dump.last_state", "dump.on_policy"}),
        ("sampled", {"dump.last_state", "dump.on_policy_sampled"}),
        ("sampled, no log-probabilities", {"dump.last_state_unproved", "dump.on_policy_unknown"}),
    ],
)
def test_healthy_states_are_left_alone(kind: str, codes: set[str], inv: Investigation, bundled) -> None:
    """As B(n) and as `final_normed`, from a stream that can be read once."""
    as_normed = state_of(lambda s: normed(inv.target, s.states[LAST]), FINAL_NORMED)
    for boundary, change in ((LAST, lambda s: s), (FINAL_NORMED, as_normed)):
        found = reconstruct(inv.target, iter([change(s) for s in bundled[kind]]), boundary)
        assert {check_last_state(found).code, check_on_policy(found).code} == codes
        assert Reconstruction.from_json(plain(found.to_json())) == found


def test_whole_bundled_dumps_are_healthy(inv: Investigation) -> None:
    """Every greedy sample: bounded rows, argmax and log-probability as a float32 run stored in bfloat16 gives them."""
    found = reconstruct(inv.target, inv.samples([LAST]), LAST)
    assert found.count == 80 * 16 <= reconstruction.ROWS
    assert found.on_policy >= 0.995
    assert found.logprob_error < 0.01
    assert 0 < found.outside < 0.6  # prompts are not the target's own
    assert [check_last_state(found).code, check_on_policy(found).code] == ["dump.last_state", "dump.on_policy"]


def test_a_wrong_scale_keeps_every_argmax_and_is_told_by_log_probability(inv, bundled, monkeypatch) -> None:
    right = Target.final_norm
    monkeypatch.setattr(Target, "final_norm", lambda self, last: 1.3 * right(self, last))
    found = reconstruct(inv.target, bundled["five"], LAST)
    assert found.on_policy > 0.98
    assert check_last_state(found).code == "dump.last_state_wrong"


def test_one_sample_with_rows_of_another_is_named(inv: Investigation, bundled) -> None:
    first, second = bundled["five"]
    rows = min(len(first.token_ids), len(second.token_ids)) - 1
    mixed = replace(second, name="mixed", states={LAST: first.states[LAST][:rows]})
    for kept in ((first, mixed), tuple(replace(s, logprobs=None) for s in (first, mixed))):
        finding = check_last_state(reconstruct(inv.target, kept, LAST))
        assert (finding.code, finding.evidence["misfits"]) == ("dump.samples_misfit", ["mixed"])


def test_b0_tells_whose_the_rows_are(inv: Investigation, bundled) -> None:
    alone = [replace(s, states={0: s.states[0], LAST: s.states[LAST].flip(0)}) for s in bundled["five"]]
    together = [replace(s, states={0: s.states[0].flip(0), LAST: s.states[LAST].flip(0)}) for s in bundled["five"]]
    for samples, words in ((alone, "the last state alone"), (together, "all rows")):
        difference = embedding_matches(inv.target, samples, [0])[0].relative_difference
        found = check_last_state(reconstruct(inv.target, samples, LAST), embedding_difference=difference)
        assert words in found.meaning


def test_swapped_states_are_named_by_depth(inv: Investigation, bundled) -> None:
    swapped = [replace(s, states={28: s.states[LAST], LAST: s.states[28]}) for s in bundled["five"]]
    depth = by_depth(inv.target, iter(swapped), [28, LAST])
    found = check_last_state(reconstruct(inv.target, swapped, LAST), depth=depth)
    assert found.code == "dump.last_state_wrong"
    assert "stated as B(28)" in found.title
    right = by_depth(inv.target, bundled["five"], [28, LAST])
    assert right[LAST].mean_logprob > right[28].mean_logprob + 1
    assert right[LAST].logprob_error < 0.01


def test_responses_of_another_model_are_off_policy(inv: Investigation, bundled) -> None:
    """Sampled tokens said to be greedy: the state is sound, the responses are not greedy."""
    found = reconstruct(inv.target, [replace(s, temperature=0.0) for s in bundled["sampled"]], LAST)
    assert check_last_state(found).code == "dump.last_state"
    assert (check_on_policy(found).code, str(check_on_policy(found).severity)) == ("dump.off_policy", "fault")


def teacher_of(target: Target, sample: Sample, boundary: int, k: int | None, among: torch.Tensor) -> Sample:
    """The sample with the distributions that norm and head on a boundary give, over draft ids or a top-k."""
    logits = target.final_norm(sample.states[boundary]) @ target.head_rows(among).T
    probs, ids = logits.softmax(-1), None
    if k is not None:
        probs, index = probs.topk(k)
        ids = among[index]
    return replace(sample, logprobs=None, teacher=TeacherProbs(probs.bfloat16(), ids))


@pytest.mark.parametrize("k", [None, 8])
def test_teacher_probabilities_prove_the_state(k: int | None, inv: Investigation, bundled) -> None:
    """Sampled tokens without log-probabilities: a teacher that agrees proves the state, one that does not is named."""
    among = inv.draft.target_ids if k is None else torch.arange(inv.target.vocab_size)

    def codes(boundary: int, temperature: float, kind: str = "sampled") -> list[str]:
        samples = [teacher_of(inv.target, s, boundary, k, among) for s in bundled[kind]]
        samples = [replace(s, temperature=temperature) for s in samples]
        found = reconstruct(inv.target, samples, LAST, draft_ids=inv.draft.target_ids)
        return [check_last_state(found).code, check_teacher_probabilities(found).code]

    assert codes(LAST, 0.8) == ["dump.last_state", "training.teacher_probabilities"]
    assert codes(EARLY["sampled"], 0.8) == ["dump.last_state_unproved", "training.teacher_probabilities_unknown"]
    assert codes(28, 0.0, "five") == ["dump.last_state", "training.teacher_probabilities_differ"]


def test_rows_that_are_not_finite_are_left_out(inv: Investigation, bundled) -> None:
    sample = bundled["five"][0]
    state = sample.states[LAST].clone()
    state[60:70] = torch.nan
    found = reconstruct(inv.target, [replace(sample, states={LAST: state})], LAST)
    assert found.skipped > 0
    assert check_last_state(found).code == "dump.last_state"
    assert reconstruct(inv.target, [replace(sample, states={LAST: torch.full_like(state, torch.inf)})], LAST) is None
    assert reconstruct(inv.target, [replace(sample, loss_mask=torch.zeros_like(sample.loss_mask))], LAST) is None
    assert check_last_state(None).code == "dump.no_last_state"


def test_a_huge_dump_costs_what_the_rows_cost(target: Target, sample: Sample, monkeypatch) -> None:
    """The stream is left as soon as enough rows are chosen, the same ones every time."""
    monkeypatch.setattr(reconstruction, "ROWS", 50)
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield toys.make_sample(len(taken))

    first = reconstruct(target, endless(), toys.N_LAYERS)
    assert first.count == 50
    assert len(taken) == 3  # 22 supervised tokens each
    taken.clear()
    assert reconstruct(target, endless(), toys.N_LAYERS) == first


def test_readings_equal_a_dense_computation(target: Target, sample: Sample) -> None:
    """Shift, mask and mean against log_softmax over the whole vocabulary; 1e-5 in float32."""
    found = reconstruct(target, [replace(sample, temperature=0.7)], toys.N_LAYERS)
    state = sample.states[toys.N_LAYERS]
    logits = target.final_norm(state) @ target.head_rows(torch.arange(toys.VOCABULARY)).T / 0.7
    logp = logits.log_softmax(-1)
    rows = torch.arange(toys.LENGTH - 1)[sample.loss_mask[1:]]
    for reading in found.readings:
        if reading.norms == 0:
            mine = logp[rows, sample.token_ids[rows + 1 + reading.shift]]
            assert_close(reading.mean_logprob, float(mine.mean()), rtol=1e-5, atol=1e-5)
    entropy = -(logp.exp() * logp).sum(-1)[rows]
    expected = float((logp[rows, sample.token_ids[rows + 1]] + entropy).mean())
    assert_close(found.stated.surprise, expected, rtol=1e-4, atol=1e-5)
    assert readings.SHIFTS == (-1, 0, 1)


def test_surprise_of_a_state_s_own_samples_is_zero(target: Target, monkeypatch) -> None:
    """Tokens drawn from the distribution are as likely as its entropy says, at that temperature alone."""
    source = toys.generator(8)
    state = torch.randn(3000, toys.HIDDEN, generator=source)
    probs = (target.final_norm(state) @ target.head_rows(torch.arange(toys.VOCABULARY)).T / 0.7).softmax(-1)
    ids = torch.cat([torch.tensor([0]), torch.multinomial(probs, 1, generator=source)[:, 0]])
    mask = torch.ones(len(ids), dtype=torch.bool)
    sample = Sample("own", ids, mask, {toys.N_LAYERS: state}, temperature=0.7)
    monkeypatch.setattr(reconstruction, "ROWS_A_SAMPLE", 2048)
    assert abs(reconstruct(target, [sample], toys.N_LAYERS).stated.surprise) < 0.1
    assert reconstruct(target, [replace(sample, temperature=0.2)], toys.N_LAYERS).stated.surprise < -0.5


def test_teacher_audit(inv: Investigation, bundled) -> None:
    """B(28) gives the recorded token about 55 % of the time; a risk, and a fault where the claim proves it."""
    samples = inv.samples([0, 3, 16, 28, LAST])
    early = audit_teacher(inv.target, iter(samples), 28, inv.draft.target_ids)
    last = audit_teacher(inv.target, samples, LAST, inv.draft.target_ids)
    assert 0.5 < early.full < 0.6
    assert early.draft < early.full
    assert last.full >= 0.995
    outside = sum(int((inv.draft.draft_ids[s.token_ids[s.loss_mask]] < 0).sum()) for s in samples)
    ceiling = 1 - outside / sum(int(s.loss_mask.sum()) for s in samples)
    assert last.draft == pytest.approx(ceiling, abs=0.02)
    assert check_teacher(last, LAST).code == "training.teacher"
    assert str(check_teacher(early, LAST).severity) == "risk"
    assert check_teacher(None, LAST).code == "training.teacher_unknown"

    counted = step_counts(inv.draft, samples[:4], inv.trained.wiring, 2, [RECORDED, 28, LAST], inv.target)
    for truth, severity in ((28, "fault"), (LAST, "note")):
        counts = {name: values.sum(0).tolist() for name, values in counted[truth].by_name().items()}
        claim = Claim(0.0, counts)
        there = {tried: claim.comes_back(ours) for tried, ours in counted.items()}
        assert there == {RECORDED: False, 28: truth == 28, LAST: truth == LAST}
        assert str(check_teacher(early, LAST, there).severity) == severity


def test_a_teacher_under_another_s_name_is_not_the_last_state(inv: Investigation, bundled) -> None:
    """B(28) stored as B(30): a fault where log-probabilities and the claim prove it, else a risk."""
    for name in ("five", "five, no log-probabilities"):
        right = bundled[name]
        wrong = [replace(sample, states={**sample.states, LAST: sample.states[28]}) for sample in right]
        for samples, severities in ((right, ("ok", "ok")), (wrong, ("risk", "fault" if name == "five" else "risk"))):
            last, audit = reconstruct(inv.target, samples, LAST), audit_teacher(inv.target, samples, LAST)
            found = [check_teacher(audit, LAST, {LAST: came_back}, last) for came_back in (False, True)]
            assert tuple(str(f.severity) for f in found) == severities
            sound = {"training.teacher"} if samples is right else {"training.teacher_unsound"}
            assert {f.code for f in found} == sound
