"""Every tensor and flag accounted for; every finding of the header and of the values planted, and silent without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import forms
import pytest
import torch
import toys

from eagle3lib import weights
from eagle3lib.checks.checkpoint import check_embedding, check_finite, check_head
from eagle3lib.checks.header import check_header
from eagle3lib.dialects import read_checkpoint
from eagle3lib.ecosystems import ENGINES
from eagle3lib.findings import Severity
from eagle3lib.ledger import flag_ledger, tensor_ledger
from eagle3lib.target import load_target
from eagle3lib.vocabulary import read_vocabulary

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK


def draft(folder: Path, tensors=None, drop=(), **config: object):
    kept = forms.without(tensors or toys.draft_tensors(), *drop)
    return read_checkpoint(forms.put(folder, kept, forms.flat_config(**config)))


def codes(checkpoint) -> dict[str, Severity]:
    found = check_header(checkpoint, tensor_ledger(checkpoint), flag_ledger(checkpoint))
    return {finding.code.removeprefix("checkpoint."): finding.severity for finding in found}


@pytest.mark.parametrize("form", forms.WRITERS)
def test_every_tensor_of_every_form_is_accounted_for(form, tmp_path):
    """Once each: used, or t2d; and a sound draft raises no fault and no risk."""
    checkpoint = read_checkpoint(forms.WRITERS[form](tmp_path, toys.draft_tensors()))
    entries = tensor_ledger(checkpoint)
    present = [entry for entry in entries if entry.status != "missing"]
    assert sorted(e.name for e in present) == sorted(checkpoint.tensors)
    assert {e.name for e in present if e.status == "unused"} <= {"t2d"}
    assert {e.name for e in entries if e.status == "missing"} <= {"embed_tokens.weight"}
    assert set(codes(checkpoint).values()) <= {OK, NOTE}


@pytest.mark.parametrize("norm", ["none", "concat", "slots"])
def test_a_sound_draft_is_silent(norm, tmp_path):
    flags = {"concat": {"norm_before_fc": True}, "slots": {"fc_norm": True}}.get(norm, {})
    assert codes(draft(tmp_path, toys.draft_tensors(norm), **flags)) == {"header": OK}


@pytest.mark.parametrize("name", ["layers.0.mlp.up_proj.weight", "norm.weight", "fc.weight"])
def test_a_tensor_of_the_pass_is_missing(name, tmp_path):
    found = codes(draft(tmp_path, drop=[name]))
    assert found["tensor_missing"] is FAULT
    assert "header" not in found


def test_the_index_promises_what_no_file_holds(tmp_path):
    """An export that removed one of two tensors as a duplicate."""
    lost = "layers.0.mlp.up_proj.weight"
    forms.put_shards(tmp_path, forms.without(toys.draft_tensors(), lost), forms.flat_config(), 2)
    index = tmp_path / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    data["weight_map"][lost] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(data))
    checkpoint = read_checkpoint(tmp_path)
    entry = next(e for e in tensor_ledger(checkpoint) if e.name == lost)
    assert entry.status == "missing" and "the index promises it" in entry.note
    finding = check_header(checkpoint, tensor_ledger(checkpoint), ())[0]
    assert finding.evidence["promised by the index"] == [lost]


def test_a_substitute_is_a_note(tmp_path):
    found = codes(draft(tmp_path, drop=["embed_tokens.weight", "lm_head.weight"]))
    assert found == {"tensor_absent": NOTE, "header": OK}


def test_an_unfamiliar_tensor_is_a_risk(tmp_path):
    more = toys.draft_tensors() | {"layers.0.layer_scalar": torch.ones(1)}
    checkpoint = draft(tmp_path, more)
    assert codes(checkpoint) == {"tensor_unused": RISK}
    entry = next(e for e in tensor_ledger(checkpoint) if e.name == "layers.0.layer_scalar")
    assert (entry.status, entry.note) == ("unused", "no part of an EAGLE-3 pass")


def test_tensors_of_the_teacher_are_unused_with_their_reason(tmp_path):
    more = toys.draft_tensors() | {"verifier_lm_head.weight": torch.ones(2, 2)}
    checkpoint = draft(tmp_path, more)
    assert codes(checkpoint) == {"header": OK}
    assert "for training only" in next(e.note for e in tensor_ledger(checkpoint) if e.name.startswith("verifier"))


def test_config_contradicts_the_tensors(tmp_path):
    assert codes(draft(tmp_path, draft_vocab_size=50)) == {"config_contradicts": RISK}
    assert codes(draft(tmp_path, num_key_value_heads=4))["config_contradicts"] is RISK


@pytest.mark.parametrize(("norm", "flag"), [("concat", "norm_before_fc"), ("slots", "fc_norm")])
def test_a_norm_and_its_flag_come_together(norm, flag, tmp_path):
    tensors = toys.draft_tensors(norm)
    assert codes(draft(tmp_path / "a", tensors)) == {"norm_flag_absent": FAULT}
    assert codes(draft(tmp_path / "b", tensors, **{flag: False})) == {"norm_flag_absent": FAULT}
    assert codes(draft(tmp_path / "c", **{flag: True})) == {"norm_tensor_absent": FAULT}
    nested = {"eagle_config": {flag: True}}
    assert codes(draft(tmp_path / "d", tensors, **nested)) == {"header": OK}


def test_both_norms_before_fc(tmp_path):
    both = toys.draft_tensors("concat") | toys.draft_tensors("slots")
    assert codes(draft(tmp_path, both, norm_before_fc=True, fc_norm=True))["norm_both"] is RISK


def test_a_tie_beside_a_head_of_its_own(tmp_path):
    assert codes(draft(tmp_path / "a", tie_word_embeddings=True)) == {"tied_with_own_head": FAULT}
    assert "tied_with_own_head" not in codes(draft(tmp_path / "b", drop=["lm_head.weight"], tie_word_embeddings=True))


def test_the_stored_type_against_config(tmp_path):
    assert codes(draft(tmp_path / "a", torch_dtype="bfloat16")) == {"dtype": NOTE, "header": OK}
    assert codes(draft(tmp_path / "b", torch_dtype="float32")) == {"header": OK}


def test_scales_of_a_cache_are_left_out(tmp_path):
    more = toys.draft_tensors() | {"layers.0.self_attn.k_scale": torch.ones(1)}
    assert codes(draft(tmp_path, more)) == {"cache_scales": NOTE, "header": OK}


def test_two_copies_of_the_weights(tmp_path):
    forms.put(tmp_path, toys.draft_tensors(), forms.flat_config(), "pytorch_model.bin")
    assert codes(draft(tmp_path)) == {"two_copies": RISK}


# Flags.


def statuses(checkpoint) -> dict[str, str]:
    return {entry.path: entry.status for entry in flag_ledger(checkpoint)}


def test_every_flag_has_a_status(tmp_path):
    checkpoint = draft(tmp_path, my_flag=3, norm_before_residual=True, eagle_config=forms.nested_ids(norm_output=True))
    found = statuses(checkpoint)
    assert found["my_flag"] == "unknown"
    assert found["norm_before_residual"] == "ignored"
    assert found["eagle_config.norm_output"] == "ignored"  # llama.cpp feeds back the un-normed state
    assert found["rms_norm_eps"] == "honoured"
    assert found["model_type"] == "no effect"
    note = next(e.note for e in flag_ledger(checkpoint) if e.path == "norm_before_residual")
    assert "SGLang" in note and "TensorRT-LLM" in note and "vLLM" not in note
    assert codes(checkpoint)["flags_unknown"] is NOTE


def test_a_flag_at_what_is_served_anyway_is_not_ignored(tmp_path):
    found = statuses(draft(tmp_path, norm_before_residual=False, norm_output=False, sliding_window=None))
    assert "ignored" not in found.values() and "unknown" not in found.values()


def test_flags_of_one_engine_only(tmp_path):
    checkpoint = draft(tmp_path, norm_output=True)
    assert next(e for e in flag_ledger(checkpoint, [ENGINES["sglang"]]) if e.path == "norm_output").status == "honoured"


# Values.


def stats_of(checkpoint):
    return [weights.tensor_stats(n, i) for n, i in checkpoint.tensors.items() if n not in ("d2t", "t2d")]


def test_values_are_counted_whole_whatever_the_buffer(tmp_path, monkeypatch):
    """rms and largest magnitude equal those of the whole tensor, piece by piece."""
    checkpoint = draft(tmp_path)
    for buffer in (1, 100, 2**22):
        monkeypatch.setattr(weights, "BUFFER", buffer)
        for row in stats_of(checkpoint):
            whole = toys.draft_tensors()[row["tensor"]]
            assert row["rms"] == pytest.approx(float(whole.square().mean().sqrt()), rel=1e-6)
            assert row["largest"] == float(whole.abs().max())
            assert (row["non_finite"], row["constant"]) == (0, False)


@pytest.mark.parametrize(("value", "row"), [(float("nan"), 0), (float("inf"), 47)])
def test_one_value_that_is_not_finite(value, row, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "BUFFER", 64)
    tensors = toys.draft_tensors()
    tensors["layers.0.mlp.up_proj.weight"][row, 3] = value
    finding = check_finite(stats_of(draft(tmp_path, tensors)))
    assert (finding.code, finding.severity) == ("checkpoint.non_finite", FAULT)
    assert finding.evidence["tensors"] == ["layers.0.mlp.up_proj.weight"]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_constant_tensor(value, tmp_path):
    tensors = toys.draft_tensors() | {"norm.weight": torch.full((toys.HIDDEN,), value)}
    finding = check_finite(stats_of(draft(tmp_path, tensors)))
    assert (finding.code, finding.evidence["tensors"]) == ("checkpoint.constant", ["norm.weight"])
    assert check_finite(stats_of(draft(tmp_path / "sound"))).severity is OK


def test_a_sampled_embedding_reads_some_rows_only(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "SAMPLED_ROWS", 10)
    read = []
    real = weights.read_rows
    monkeypatch.setattr(weights, "read_rows", lambda info, rows: read.append(len(rows)) or real(info, rows))
    weights.tensor_stats("embed_tokens.weight", draft(tmp_path).tensors["embed_tokens.weight"])
    assert sum(read) == 10


EMBEDDING = toys.target_tensors()["model.embed_tokens.weight"]
NOISE = torch.randn(EMBEDDING.shape, generator=toys.generator(33))


@pytest.mark.parametrize(
    ("table", "code", "severity"),
    [
        (EMBEDDING, "embedding", OK),
        (EMBEDDING.bfloat16().float(), "embedding", OK),
        (0.02 * NOISE, "embedding_random", FAULT),
        (toys.HIDDEN**0.5 * EMBEDDING, "embedding_scaled", FAULT),
        (EMBEDDING + 0.5 * NOISE, "embedding_trained", NOTE),
    ],
    ids=["same", "rounded", "random", "scaled", "trained"],
)
def test_the_embedding_against_the_target_s(table, code, severity, target, tmp_path):
    checkpoint = draft(tmp_path, toys.draft_tensors() | {"embed_tokens.weight": table})
    finding = check_embedding(weights.embedding_likeness(checkpoint, target))
    assert (finding.code, finding.severity) == (f"checkpoint.{code}", severity)


def test_an_embedding_of_another_width_is_not_compared(target, tmp_path):
    checkpoint = draft(tmp_path, toys.draft_tensors() | {"embed_tokens.weight": torch.ones(96, 16)})
    assert weights.embedding_likeness(checkpoint, target) is None
    assert weights.embedding_likeness(draft(tmp_path / "b", drop=["embed_tokens.weight"]), target) is None


HEAD = toys.target_tensors()["lm_head.weight"]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (lambda ids: HEAD[ids], "head_is_the_target_s"),
        (lambda ids: HEAD[: len(ids)], "head_unmapped"),
        (lambda ids: HEAD[ids] + 0.3 * torch.randn(len(ids), toys.HIDDEN, generator=toys.generator(2)), None),
    ],
    ids=["mapped", "unmapped", "own"],
)
def test_the_head_against_the_target_s(rows, code, target, tmp_path):
    ids = toys.vocabulary_maps()[1].nonzero().flatten()
    checkpoint = draft(tmp_path, toys.draft_tensors() | {"lm_head.weight": rows(ids)})
    finding = check_head(weights.head_likeness(checkpoint, target, read_vocabulary(checkpoint)))
    assert (finding.code if finding else None) == (f"checkpoint.{code}" if code else None)


def test_rows_of_a_quantised_target_are_compared_too(tmp_path):
    """A GGUF target's rows are rounded; the draft's exact copy is still the same table."""
    import gguf
    from test_target import write_gguf

    file = write_gguf(tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q8_0)
    checkpoint = draft(tmp_path / "draft", toys.draft_tensors() | {"embed_tokens.weight": EMBEDDING})
    assert check_embedding(weights.embedding_likeness(checkpoint, load_target(file))).severity is OK


# Time and memory of the header.

HEADER = """
import resource, sys, time
import eagle3lib.check
from eagle3lib.dialects import read_checkpoint
from eagle3lib.ledger import flag_ledger, tensor_ledger
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.perf_counter()
checkpoint = read_checkpoint(sys.argv[1])
n = len(tensor_ledger(checkpoint)) + len(flag_ledger(checkpoint))
print(n, time.perf_counter() - begin, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_the_header_of_a_large_draft_is_read_in_seconds_and_without_its_weights(tmp_path):
    """Kimi-K2.5's shape, 4.5 GB of bf16 as a sparse file: the ledger in under 3 s and 100 MB over the imports."""
    large_draft(tmp_path)
    done = subprocess.run([sys.executable, "-c", HEADER, tmp_path], capture_output=True, text=True, check=True)
    n, seconds, megabytes = map(float, done.stdout.split())
    assert n == 29
    assert seconds < 3
    assert megabytes < 100


def large_draft(folder: Path) -> None:
    """A safetensors header of Kimi-K2.5's draft over a hole of the right size; no byte of a weight is written."""
    h, inter, heads, kv, d, vocab, draft_vocab = 7168, 18432, 64, 8, 128, 163840, 32000
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    shapes = {
        "fc.weight": (h, 3 * h), "embed_tokens.weight": (vocab, h), "lm_head.weight": (draft_vocab, h),
        "norm.weight": (h,), "layers.0.input_layernorm.weight": (h,), "layers.0.hidden_norm.weight": (h,),
        "layers.0.post_attention_layernorm.weight": (h,), attention + "q_proj.weight": (heads * d, 2 * h),
        attention + "k_proj.weight": (kv * d, 2 * h), attention + "v_proj.weight": (kv * d, 2 * h),
        attention + "o_proj.weight": (h, heads * d), mlp + "gate_proj.weight": (inter, h),
        mlp + "up_proj.weight": (inter, h), mlp + "down_proj.weight": (h, inter),
    }  # fmt: skip
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + at)
    config = forms.flat_config() | {"hidden_size": h, "vocab_size": vocab, "draft_vocab_size": draft_vocab}
    (folder / "config.json").write_text(json.dumps(config))
