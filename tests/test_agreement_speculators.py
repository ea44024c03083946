"""The manual pass and the trainer's counts, against speculators' own classes on the same random weights."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from eagle3lib import draft_head, training
from eagle3lib.boundaries import FINAL_NORMED, Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.rollout import chain_states
from eagle3lib.sample import Sample
from eagle3lib.target import Target

pytest.importorskip("speculators", reason="the reference implementation is not installed")
library = pytest.importorskip("library", reason="the reference implementation is not installed")

WIRING = Wiring(toys.SLOTS)
TEACHER = toys.N_LAYERS - 1  # not the last boundary: a teacher may be any
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}

INPUT_NORMS = {"none": {}, "concat": {"norm_before_fc": True}, "slots": {"fc_norm": True}}
FLAGS = [
    pytest.param(
        INPUT_NORMS[norm] | {"norm_before_residual": residual, "norm_output": output},
        id=f"{norm}-{residual:d}{output:d}",
    )
    for norm, residual, output in itertools.product(INPUT_NORMS, (False, True), (False, True))
]
#: heads, kv heads, head size: multi-head, grouped, multi-query, and heads wider than H / heads.
HEADS = [(4, 4, 8), (4, 2, 8), (4, 1, 8), (4, 2, 16)]


def manual_logits(draft: Draft, sample: Sample, wiring: Wiring = WIRING) -> list[torch.Tensor]:
    """[R, Vd] of every step, as the manual pass has them."""
    with torch.inference_mode():
        return [draft_head.logits(draft, u) for u in chain_states(draft, sample, wiring, library.TTT_STEPS)]


def saved(model, folder: Path) -> Path:
    """The folder that the library's own `save_pretrained` writes."""
    model.save_pretrained(folder)
    return folder


def furthest(manual: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest difference of any logit of any step, over the rows that both have."""
    return max(float((m - t[: len(m)]).abs().max()) for m, t in zip(manual, theirs, strict=True))


@pytest.mark.parametrize("flags", FLAGS)
def test_logits_and_choices_equal_the_library_under_every_flag(flags, target_folder, tmp_path, sample):
    """Float32, four steps, 1e-5 relative and absolute."""
    model = library.new_draft(target_folder, **flags)
    draft = load_draft(saved(model, tmp_path), device="cpu")
    chosen, logits, _ = library.run(model, sample, TEACHER)
    steps = manual_logits(draft, sample)
    assert len(steps) == len(logits) == library.TTT_STEPS
    for k, (manual, theirs, choice) in enumerate(zip(steps, logits, chosen, strict=True)):
        assert len(manual) == len(theirs) - k  # the library's last k rows read padding
        assert_close(manual, theirs[: len(manual)], **TOLERANCE)
        assert torch.equal(manual.argmax(-1), choice[: len(manual)])


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
def test_logits_equal_the_library_for_every_sharing_of_kv_heads(heads, kv_heads, head_dim, tmp_path, sample):
    """Float32, four steps, 1e-5 relative and absolute."""
    config = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    model = library.new_draft(toys.write_target(tmp_path / "target", **config))
    draft = load_draft(saved(model, tmp_path / "draft"), device="cpu")
    assert (draft.config.n_heads, draft.config.n_kv_heads, draft.config.head_dim) == (heads, kv_heads, head_dim)
    _, logits, _ = library.run(model, sample, TEACHER)
    for manual, theirs in zip(manual_logits(draft, sample), logits, strict=True):
        assert_close(manual, theirs[: len(manual)], **TOLERANCE)


@pytest.mark.parametrize(
    "fault",
    [
        {"norm_before_residual": True},
        {"norm_output": True},
        {"rope_theta": 2 * toys.ROPE_THETA},
        {"slots": (toys.SLOTS[1], toys.SLOTS[0], toys.SLOTS[2])},
        {"slots": (1, *toys.SLOTS[1:])},
    ],
    ids=str,
)
def test_a_fault_in_wiring_or_flag_leaves_the_tolerance(fault, target_folder, tmp_path, sample):
    """Each planted fault moves some logit by a thousand times the tolerance; none does not."""
    model = library.new_draft(target_folder)
    draft = load_draft(saved(model, tmp_path), device="cpu")
    _, logits, _ = library.run(model, sample, TEACHER)
    assert furthest(manual_logits(draft, sample, replace(WIRING, **fault)), logits) > 1e-2
    assert furthest(manual_logits(draft, sample), logits) < 1e-4


@pytest.mark.parametrize("flags", FLAGS)
def test_step_counts_equal_the_library_exactly(flags, target_folder, target, tmp_path, sample):
    """full_acc_k and cond_acc_k, sums and totals, with two turns and a teacher that is no last state."""
    model = library.new_draft(target_folder, **flags)
    draft = load_draft(saved(model, tmp_path), device="cpu")
    samples = [sample, toys.make_sample(6, length=29, turns=((1, 9), (10, 29)))]
    counts = training.step_counts(draft, samples, WIRING, library.TTT_STEPS, [TEACHER], target)[TEACHER]
    for i, item in enumerate(samples):
        _, _, metrics = library.run(model, item, TEACHER)
        for k in range(library.TTT_STEPS):
            expected = [
                int(metrics[f"{name}_{k}_{what}"]) for name in ("full_acc", "cond_acc") for what in ("sum", "total")
            ]
            found = [counts.full_sum[i, k], counts.full_total[i, k], counts.full_sum[i, k], counts.cond_total[i, k]]
            assert found == expected, f"sample {i}, step {k}"


def agreeing(draft: Draft, target: Target, sample: Sample, seed: int) -> Sample:
    """The sample with its teacher state changed so that the teacher agrees with about half of step 0's choices."""
    predicted = manual_logits(draft, sample)[0].argmax(-1)  # row i is held against the teacher's row i + 1
    head = target.head_rows(draft.target_ids) / target.norm_weight
    last = sample.state(TEACHER).clone()
    agree = torch.rand(len(predicted), generator=toys.generator(seed)) < 0.5
    last[1:][: len(predicted)][agree] = 5 * head[predicted[agree]]
    return replace(sample, states={**sample.states, TEACHER: last})


def test_step_counts_equal_the_library_where_the_draft_is_often_right(target_folder, target, tmp_path, sample):
    """A random draft is nearly always wrong; with a teacher that agrees, every count is far from zero."""
    model = library.new_draft(target_folder)
    draft = load_draft(saved(model, tmp_path), device="cpu")
    sample = agreeing(draft, target, sample, 7)
    counts = training.step_counts(draft, [sample], WIRING, library.TTT_STEPS, [TEACHER], target)[TEACHER]
    _, _, metrics = library.run(model, sample, TEACHER)
    assert counts.full_sum[0, 0] >= 5
    for k in range(library.TTT_STEPS):
        assert counts.full_sum[0, k] == int(metrics[f"full_acc_{k}_sum"])
        assert counts.full_total[0, k] == int(metrics[f"full_acc_{k}_total"])
        assert counts.cond_total[0, k] == int(metrics[f"cond_acc_{k}_total"])
    other = training.step_counts(draft, [sample], WIRING, library.TTT_STEPS, [TEACHER - 1], target)[TEACHER - 1]
    assert (other.full_sum != counts.full_sum).any(), "another teacher must not give the same counts"


def test_recorded_tokens_may_take_the_teacher_s_place(target_folder, target, tmp_path, sample):
    """Counted pair by pair from the definition, beside a teacher in one call; tokens set so that hits occur."""
    draft = load_draft(saved(library.new_draft(target_folder), tmp_path), device="cpu")
    tokens = sample.token_ids.clone()
    for i in (7, 10, 11, 20, 24, 30):  # from left to right: a choice depends on the tokens before it
        sample = replace(sample, token_ids=tokens.clone())
        tokens[i + 2] = draft.target_ids[manual_logits(draft, sample)[0][i].argmax()]
    sample = replace(sample, token_ids=tokens)
    chosen = [draft.target_ids[z.argmax(-1)] for z in manual_logits(draft, sample)]
    mask, n = sample.loss_mask, len(tokens)
    full_sum, full_total, cond_total = ([0] * library.TTT_STEPS for _ in range(3))
    for i in range(n - 2):  # pair i's step k predicts x[i + 2 + k]; x[i + 1 + k] must be supervised to count
        alive = bool(mask[i + 1])
        for k in range(min(library.TTT_STEPS, n - 2 - i)):
            cond_total[k] += alive
            alive = alive and bool(chosen[k][i] == tokens[i + 2 + k])
            full_sum[k] += alive and bool(mask[i + 1 + k])
            full_total[k] += bool(mask[i + 1 + k])
    truths = [TEACHER, training.RECORDED]
    both = training.step_counts(draft, [sample], WIRING, library.TTT_STEPS, truths, target)
    counts = both[training.RECORDED]
    assert full_sum[0] >= 5
    assert counts.full_sum[0].tolist() == full_sum
    assert counts.full_total[0].tolist() == full_total
    assert counts.cond_total[0].tolist() == cond_total
    alone = training.step_counts(draft, [sample], WIRING, library.TTT_STEPS, [TEACHER], target)[TEACHER]
    assert (both[TEACHER].full_sum == alone.full_sum).all()


def test_a_teacher_may_be_the_normed_last_state(target_folder, target, tmp_path, sample):
    """`final_normed` = norm(B(n)) teaches exactly as B(n) does."""
    draft = load_draft(saved(library.new_draft(target_folder), tmp_path), device="cpu")
    last = toys.N_LAYERS
    normed = replace(sample, states={**sample.states, FINAL_NORMED: target.final_norm(sample.state(last))})
    head = training.teacher_head(draft, target)
    expected = training.teacher_choices(draft, target, head, sample, last)
    assert torch.equal(training.teacher_choices(draft, target, head, normed, FINAL_NORMED), expected)
    assert not torch.equal(training.teacher_choices(draft, target, head, normed, TEACHER), expected)


def test_bfloat16_stays_close_to_the_library(target_folder, tmp_path, sample):
    """Both in bfloat16: a logit differs by 6 % of the logits' spread at most, four steps on."""
    model = library.new_draft(target_folder).to(torch.bfloat16)
    draft = load_draft(saved(model, tmp_path), device="cpu", dtype=torch.bfloat16)
    _, logits, _ = library.run(model, sample, TEACHER)
    for manual, theirs in zip(manual_logits(draft, sample), logits, strict=True):
        assert manual.dtype == torch.bfloat16
        spread = float(theirs.float().std())
        assert float((manual - theirs[: len(manual)]).float().abs().max()) < 0.06 * spread


def test_numbers_that_equal_the_library_s_defaults_are_read_back(tmp_path, sample):
    """config.json as saved leaves out what equals a class default; the pass must still be right."""
    folder = toys.write_target(
        tmp_path / "target", rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
    )
    model = library.new_draft(folder)
    draft = load_draft(saved(model, tmp_path / "draft"), device="cpu")
    assert (draft.config.norm_eps, draft.config.rope.theta) == (1e-6, 10000.0)
    _, logits, _ = library.run(model, sample, TEACHER)
    assert furthest(manual_logits(draft, sample), logits) < 1e-4


def test_a_missing_embedding_is_the_target_s_own(target_folder, target, tmp_path, sample):
    """Trainers freeze the target's embedding; a draft saved without it computes the same with the target's."""
    model = library.new_draft(target_folder)
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.embed(torch.arange(toys.VOCABULARY)))
    folder = saved(model, tmp_path)
    whole = manual_logits(load_draft(folder, device="cpu"), sample)
    toys.change_tensors(folder, embed_tokens__weight=None)
    bare = load_draft(folder, target, device="cpu")
    assert [e.status for e in bare.ledger if e.name == "embed_tokens.weight"] == ["missing"]
    for expected, found in zip(whole, manual_logits(bare, sample), strict=True):
        assert torch.equal(found, expected)


def test_a_missing_head_is_the_target_s_own_cut_to_the_draft_vocabulary(target_folder, target, tmp_path, sample):
    """lm_head of a draft saved without one: the target's rows, in draft id order."""
    model = library.new_draft(target_folder)
    folder = saved(model, tmp_path)
    toys.change_tensors(folder, lm_head__weight=None)
    draft = load_draft(folder, target, device="cpu")
    rows = load_file(target_folder / "model.safetensors")["lm_head.weight"][toys.vocabulary_maps()[1]]
    assert torch.equal(draft.weights.head, rows)
    with torch.no_grad():
        model.lm_head.weight.copy_(rows)
    _, logits, _ = library.run(model, sample, TEACHER)
    assert furthest(manual_logits(draft, sample), logits) < 1e-4


def test_the_names_of_eagle_s_own_form_are_the_same_draft(target_folder, tmp_path, sample):
    """`midlayer.` for `layers.0.` and a flat config: equal bit for bit."""
    folder = saved(library.new_draft(target_folder, norm_before_residual=True), tmp_path)
    expected = manual_logits(load_draft(folder, device="cpu"), sample)
    tensors = load_file(folder / "model.safetensors")
    save_file({name.replace("layers.0.", "midlayer."): t for name, t in tensors.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    flat = config.pop("transformer_layer_config") | {"norm_before_residual": config["norm_before_residual"]}
    (folder / "config.json").write_text(json.dumps(flat | {"draft_vocab_size": toys.DRAFT_VOCABULARY}))
    for theirs, found in zip(expected, manual_logits(load_draft(folder, device="cpu"), sample), strict=True):
        assert torch.equal(found, theirs)
