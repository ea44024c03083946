"""What each engine does with a draft besides its ids: planted, and silent on a draft that it reads whole."""

from __future__ import annotations

from dataclasses import replace

import forms
import pytest
import torch
import toys

from eagle3lib.checks.engine import check_engine, trained_slots
from eagle3lib.dialects import read_checkpoint
from eagle3lib.ecosystems import ENGINES, TargetShape
from eagle3lib.findings import Severity
from eagle3lib.ledger import tensor_ledger

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK
DEEP = TargetShape(30, "LlamaForCausalLM")
#: Served alike by every engine: the default boundaries, as boundaries and as outputs.
TRIO = [2, 15, 27]


def draft(folder, tensors=None, drop=("embed_tokens.weight",), **config):
    kept = forms.without(tensors or toys.draft_tensors(), *drop)
    return read_checkpoint(forms.put(folder, kept, forms.flat_config(**config)))


def codes(checkpoint, engine, version=None, shape=DEEP):
    found = check_engine(checkpoint, tensor_ledger(checkpoint), ENGINES[engine], version, shape)
    return {finding.code.removeprefix("checkpoint."): finding for finding in found}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plain_draft_is_read_whole(engine, tmp_path):
    found = codes(draft(tmp_path), engine)
    assert {f.severity for f in found.values()} == {NOTE, OK}
    assert "the target's embedding" in found["tensor_replaced"].title


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm"])
def test_a_residual_flag_that_is_ignored(engine, tmp_path):
    finding = codes(draft(tmp_path, norm_before_residual=True), engine)["flag_ignored"]
    assert finding.severity is FAULT
    assert "norm_before_residual = true is ignored, false is served" in finding.meaning


@pytest.mark.parametrize("engine", ["vllm", "llama_cpp"])
def test_a_residual_flag_that_is_honoured(engine, tmp_path):
    assert "flag_ignored" not in codes(draft(tmp_path, norm_before_residual=True), engine)


def test_a_flag_that_speculators_form_leaves_to_vllm(tmp_path):
    """Absent, the trainer's class takes false and vLLM's path for this form true."""
    config = toys.draft_config()
    del config["norm_before_residual"]
    checkpoint = read_checkpoint(forms.put(tmp_path, toys.draft_tensors(), config))
    finding = codes(checkpoint, "vllm", shape=TargetShape(30))["flag_ignored"]
    assert "true is served" in finding.meaning
    with_flag = read_checkpoint(toys.write_draft(tmp_path / "with"))
    assert "flag_ignored" not in codes(with_flag, "vllm", shape=TargetShape(30))


ATTENTION = "layers.0.self_attn."
Q_NORMS = {ATTENTION + f"{x}_norm.weight": torch.ones(toys.HEAD_DIM) for x in "qk"}


def test_norms_of_heads_need_the_class_that_has_them(tmp_path):
    checkpoint = draft(tmp_path, toys.draft_tensors() | Q_NORMS)
    assert codes(checkpoint, "sglang")["tensor_dropped"].severity is FAULT
    assert "no norm of query and key heads" in codes(checkpoint, "sglang")["tensor_dropped"].meaning
    assert "tensor_dropped" in codes(checkpoint, "vllm")
    assert "engine_stops" in codes(checkpoint, "llama_cpp")
    qwen = draft(tmp_path / "qwen", toys.draft_tensors() | Q_NORMS, model_type="qwen3")
    assert "tensor_dropped" not in codes(qwen, "vllm")


def test_biases_that_are_dropped(tmp_path):
    bias = {ATTENTION + "q_proj.bias": torch.ones(toys.HEADS * toys.HEAD_DIM)}
    flagged = draft(tmp_path, toys.draft_tensors() | bias, attention_bias=True)
    assert "tensor_dropped" in codes(flagged, "sglang") and "flag_ignored" in codes(flagged, "sglang")
    assert "tensor_dropped" not in codes(flagged, "vllm")
    assert "tensor_dropped" in codes(draft(tmp_path / "b", toys.draft_tensors() | bias), "vllm")
    fc = toys.draft_tensors() | {"fc.bias": torch.ones(toys.HIDDEN)}
    assert "tensor_dropped" in codes(draft(tmp_path / "c", fc), "sglang")
    assert "tensor_dropped" not in codes(draft(tmp_path / "d", fc, bias=True), "sglang")


def test_an_own_embedding_is_replaced_where_the_widths_are_equal(tmp_path):
    own = draft(tmp_path, drop=())
    assert codes(own, "sglang")["tensor_dropped"].severity is RISK
    assert "tensor_dropped" not in codes(own, "vllm")
    wider = toys.draft_tensors() | {"fc.weight": torch.ones(toys.HIDDEN, 3 * 48)}
    assert "tensor_dropped" not in codes(draft(tmp_path / "w", wider, drop=(), target_hidden_size=48), "sglang")


def test_a_head_that_is_missing(tmp_path):
    """sglang leaves memory as it was, unless draft_vocab_size is absent."""
    lost = draft(tmp_path, drop=["embed_tokens.weight", "lm_head.weight"])
    found = check_engine(lost, tensor_ledger(lost), ENGINES["sglang"], None, DEEP)
    assert any(f.severity is FAULT and "random" in f.title and "lm_head" in f.title for f in found)


@pytest.mark.parametrize("name", ["d2t", "layers.0.mlp.up_proj.weight", "layers.0.hidden_norm.weight"])
def test_what_stands_in_for_a_missing_tensor(name, tmp_path):
    lost = draft(tmp_path, drop=["embed_tokens.weight", name])
    found = check_engine(lost, tensor_ledger(lost), ENGINES["sglang"], None, DEEP)
    what = {"d2t": "taken as the target's", "layers.0.mlp.up_proj.weight": "random"}.get(name, "ones")
    assert any(f.severity is FAULT and what in f.title and name in f.title for f in found)


def test_four_states_need_the_list_where_the_engine_counts(tmp_path):
    four = toys.draft_tensors() | {"fc.weight": torch.ones(toys.HIDDEN, 4 * toys.HIDDEN)}
    top = draft(tmp_path / "top", four, eagle_aux_hidden_state_layer_ids=[2, 9, 15, 27])
    nested = draft(tmp_path / "nested", four, eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 9, 15, 27]})
    counted = draft(tmp_path / "counted", four, num_aux_hidden_states=4)
    for engine in ("sglang", "vllm"):
        assert "for 3 states and the file's takes 4" in codes(top, engine)["engine_stops"].meaning
        assert "engine_stops" not in codes(nested, engine)
        assert "engine_stops" not in codes(counted, engine)
    assert "three states" in codes(nested, "llama_cpp")["engine_stops"].meaning


def test_speculators_nested_config_is_not_for_sglang(tmp_path):
    nested = read_checkpoint(toys.write_draft(tmp_path))
    assert "flatten it first" in codes(nested, "sglang")["engine_stops"].meaning
    assert "engine_stops" not in codes(nested, "vllm")


@pytest.mark.parametrize("named", ["Qwen3ForCausalLM", "LlamaForCausalLM", "Eagle3LlamaForCausalLM"])
def test_an_architecture_that_sglang_takes_for_a_target_s(named, tmp_path):
    checkpoint = read_checkpoint(forms.put(tmp_path, toys.draft_tensors(), forms.flat_config(named)))
    stops = codes(checkpoint, "sglang")["engine_stops"]
    assert named in stops.meaning and "LlamaForCausalLMEagle3" in stops.meaning
    assert ("engine_stops" in codes(checkpoint, "llama_cpp")) == (named == "Qwen3ForCausalLM")


def test_a_target_width_of_null_stops_sglang(tmp_path):
    assert "null" in codes(draft(tmp_path / "a", target_hidden_size=None), "sglang")["engine_stops"].meaning
    assert "engine_stops" not in codes(draft(tmp_path / "b", target_hidden_size=toys.HIDDEN), "sglang")


def latent(folder, prefix="", architecture="Eagle3DeepseekV2ForCausalLM", **config):
    """Names of latent attention, as far as the rules look at them."""
    tensors = forms.without(toys.draft_tensors(), *(ATTENTION + f"{x}_proj.weight" for x in "qkv"))
    tensors |= {
        ATTENTION + "q_a_proj.weight": torch.ones(12, 64),
        ATTENTION + "q_a_layernorm.weight": torch.ones(12),
        ATTENTION + "q_b_proj.weight": torch.ones(4 * 10, 12),
        ATTENTION + "kv_a_proj_with_mqa.weight": torch.ones(20, 64),
        ATTENTION + "kv_a_layernorm.weight": torch.ones(16),
        ATTENTION + "kv_b_proj.weight": torch.ones(4 * 14, 16),
    }
    kept = forms.prefixed(forms.without(tensors, "embed_tokens.weight"), prefix, ("lm_head.weight", "d2t", "t2d"))
    return read_checkpoint(forms.put(folder, kept, forms.flat_config(architecture, **config)))


def test_latent_attention_is_for_classes_of_its_own(tmp_path):
    sound = latent(tmp_path / "a")
    assert "engine_stops" not in codes(sound, "sglang") and "tensor_dropped" not in codes(sound, "sglang")
    assert "latent attention" in codes(sound, "llama_cpp")["engine_stops"].meaning
    flagged = latent(tmp_path / "b", norm_before_fc=True)
    for engine in ("sglang", "vllm"):
        assert "norm_before_fc" in codes(flagged, engine)["flag_ignored"].title
    assert "once more" in codes(latent(tmp_path / "c", prefix="model."), "sglang")["tensor_dropped"].meaning
    plain = latent(tmp_path / "d", architecture="LlamaForCausalLMEagle3")
    assert "Eagle3DeepseekV2ForCausalLM" in codes(plain, "sglang")["engine_stops"].meaning


def test_a_later_layer_s_norm_under_the_name_sglang_does_not_use(tmp_path):
    second = {n.replace("layers.0.", "layers.1."): t for n, t in toys.draft_tensors().items() if "layers.0." in n}
    del second["layers.1.hidden_norm.weight"]
    for projection in "qkv":
        name = f"layers.1.self_attn.{projection}_proj.weight"
        second[name] = second[name][:, : toys.HIDDEN]
    checkpoint = draft(tmp_path, toys.draft_tensors() | second, num_hidden_layers=2)
    assert codes(checkpoint, "sglang")["tensor_dropped"].evidence["tensor"] == "layers.1.input_layernorm.weight"
    assert "one draft layer" in codes(checkpoint, "llama_cpp")["engine_stops"].meaning
    renamed = {n.replace("1.input_layernorm", "1.hidden_norm"): t for n, t in second.items()}
    other = draft(tmp_path / "b", toys.draft_tensors() | renamed, num_hidden_layers=2)
    assert "tensor_dropped" not in codes(other, "sglang")
    assert codes(other, "vllm")["tensor_dropped"].evidence["tensor"] == "layers.1.input_layernorm.weight"


def test_megatron_s_numbered_layers_are_lost_on_engines_that_read_midlayer(tmp_path):
    """midlayer.0.x becomes layers.0.0.x."""
    numbered = read_checkpoint(forms.modelopt_megatron(tmp_path, toys.draft_tensors()))
    for engine in ("sglang", "vllm"):
        found = check_engine(numbered, tensor_ledger(numbered), ENGINES[engine], None, DEEP)
        assert sum(f.code == "checkpoint.tensor_dropped" and f.severity is FAULT for f in found) == 10
    assert "tensor_dropped" not in codes(draft(tmp_path / "b", forms.midlayer(toys.draft_tensors())), "vllm")


# Layer ids.


def nested(ids):
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}


def top(ids):
    return {"eagle_aux_hidden_state_layer_ids": ids}


@pytest.mark.parametrize(
    ("form", "config", "expected"),
    [
        ("speculators", top([0, 3, 16]), (0, 3, 16)),
        ("speculators", {}, (2, 15, 27)),
        ("specforge", nested([1, 14, 26]), (2, 15, 27)),
        ("modelopt", nested([1, 14, 26]), (2, 15, 27)),
        ("nemo", {}, (2, 15, 27)),
        ("eagle", nested([5, 6, 7]), (2, 15, 27)),
        ("llama_cpp", top([0, 3, 16]), (0, 3, 16)),
        ("vllm", top([2, 15, 27]), None),
        ("specforge", nested([1, 14, 26]) | top([2, 15, 27]), None),
    ],
)
def test_what_a_form_says_was_trained(form, config, expected, tmp_path):
    checkpoint = replace(draft(tmp_path), form=form, raw_config=config)
    assert trained_slots(checkpoint, DEEP) == expected


@pytest.mark.parametrize(
    ("config", "code", "severity"),
    [
        ({}, None, None),  # the five different things, by a form whose rule is its own: speculators'
        (top(None), None, None),
        (top([]), None, None),
        (top([0, 3, 16]), "captures_differ", FAULT),
        (nested([0, 3, 16]) | top([0, 3, 16]), "captures_differ", FAULT),
    ],
    ids=["absent", "null", "empty", "top level", "both"],
)
def test_ids_that_sglang_reads_otherwise(config, code, severity, tmp_path):
    plain = {k: v for k, v in toys.draft_config().items() if k != "eagle_aux_hidden_state_layer_ids"}
    checkpoint = read_checkpoint(forms.put(tmp_path, toys.draft_tensors(), plain | config))
    finding = codes(checkpoint, "sglang").get("captures_differ")
    assert (finding and finding.severity) == severity
    if code:
        assert "-1, 2, 15" in finding.remedy, "the lines that would serve B(0), B(3), B(16)"


def test_an_empty_nested_list_is_no_default_for_sglang(tmp_path):
    assert "captures nothing" in codes(draft(tmp_path, **nested([])), "sglang")["captures_impossible"].meaning


def test_zeros_that_llama_cpp_serves_without_a_word(tmp_path):
    """Id n: B(30) of a target of 30 blocks is not captured, and nothing stops."""
    finding = codes(draft(tmp_path, **top([3, 16, 30])), "llama_cpp")["captures_impossible"]
    assert finding.severity is FAULT and "zeros at first" in finding.meaning
    assert "captures_impossible" not in codes(draft(tmp_path / "b", **top([3, 16, 29])), "llama_cpp")


def test_a_list_that_is_passed_over(tmp_path):
    """A form that does not tell what was trained: the ignored list is worth a word."""
    checkpoint = read_checkpoint(forms.vllm(tmp_path, toys.draft_tensors()))
    found = codes(checkpoint, "sglang")["ids_passed_over"]
    assert found.severity is RISK and "eagle_aux_hidden_state_layer_ids" in found.title
    assert "ids_passed_over" not in codes(checkpoint, "vllm")


def test_a_version_changes_the_captures(tmp_path):
    """Kimi-K2.5's story: [2, 30, 58] became captures 3, 31, 59 in the version that added one."""
    kimi = TargetShape(61, "KimiK25ForConditionalGeneration")
    plain = toys.draft_config() | nested([2, 30, 58]) | top([2, 30, 58])
    checkpoint = read_checkpoint(forms.put(tmp_path, toys.draft_tensors(), plain))
    old = codes(checkpoint, "sglang", "0.5.12.post1", kimi)["captures_differ"]
    assert old.evidence["served"] == [3, 31, 59] and old.evidence["trained"] == [2, 30, 58]
    assert "captures_differ" not in codes(checkpoint, "sglang", "0.5.23", kimi)


def test_without_a_depth_nothing_is_claimed(tmp_path):
    assert codes(draft(tmp_path), "sglang", shape=None)["captures_unknown"].severity is NOTE


def test_an_input_norm_without_its_flag_stops_llama_cpp(tmp_path):
    """Seen in a run: wrong number of tensors, expected 15, got 14."""
    tensors = toys.draft_tensors("concat")
    finding = codes(draft(tmp_path, tensors), "llama_cpp")["engine_stops"]
    assert "input_norm.weight" in finding.meaning and "norm_before_fc: true" in finding.meaning
    assert "engine_stops" not in codes(draft(tmp_path / "b", tensors, norm_before_fc=True), "llama_cpp")
