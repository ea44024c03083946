"""Every form of one draft predicts the same, and an independent model of the same numbers agrees with it."""

from __future__ import annotations

from dataclasses import replace

import forms
import pytest
import torch
import toys
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from eagle3lib import draft_head
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import load_draft
from eagle3lib.dialects import read_checkpoint
from eagle3lib.ecosystems import FORMS
from eagle3lib.rollout import chain_states, rollout
from eagle3lib.tensors import read_rows, read_tensor

WIRING, STEPS = Wiring(toys.SLOTS), 3


@pytest.fixture(scope="module")
def tensors():
    """The numbers that every form is written from; the embedding is the target's, so a form may leave it out."""
    return toys.draft_tensors() | {"embed_tokens.weight": toys.target_tensors()["model.embed_tokens.weight"]}


@pytest.fixture(scope="module")
def expected(tensors, tmp_path_factory):
    """Choices and log-probabilities of the form without renames."""
    return predictions(toys.write_draft(tmp_path_factory.mktemp("plain"), tensors))


def predictions(path, target=None):
    draft = load_draft(path, target, device="cpu")
    found = rollout(draft, toys.make_sample(), WIRING, STEPS)
    return found.predicted, found.logprob


def test_every_form_of_a_system_has_a_writer():
    """Except SGLang's, which is old names for three norms within another form."""
    assert set(forms.WRITERS) == set(FORMS) - {"sglang"}


@pytest.mark.parametrize("form", forms.WRITERS)
def test_every_form_predicts_the_same(form, tensors, expected, target, tmp_path):
    """Choices equal and log-probabilities to 1e-6, three steps: the files hold the same numbers in other places."""
    path = forms.WRITERS[form](tmp_path / form, tensors)
    checkpoint = read_checkpoint(path)
    assert (checkpoint.form, checkpoint.dialect) == (form, FORMS[form].label)
    predicted, logprob = predictions(path, target)
    assert torch.equal(predicted, expected[0])
    assert_close(logprob, expected[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", ["eagle", "modelopt", "modelopt_megatron"])
def test_official_and_modelopt_logits_equal_the_library_s(form, target_folder, target, tmp_path):
    """speculators' own model holds the numbers and runs; the other system's files are written from them. 1e-5."""
    pytest.importorskip("speculators", reason="the reference implementation is not installed")
    library = pytest.importorskip("library", reason="the reference implementation is not installed")
    model = library.new_draft(target_folder)
    numbers = {n: t for n, t in model.state_dict().items() if not n.startswith("verifier_")}
    d2t, t2d = toys.vocabulary_maps()
    numbers |= {"d2t": d2t, "t2d": t2d}
    numbers.setdefault("embed_tokens.weight", toys.target_tensors()["model.embed_tokens.weight"])
    draft = load_draft(forms.WRITERS[form](tmp_path, numbers), model_target(numbers, target), device="cpu")
    sample = toys.make_sample()
    with torch.inference_mode():
        ours = [draft_head.logits(draft, u) for u in chain_states(draft, sample, WIRING, library.TTT_STEPS)]
    theirs = library.run(model, sample, toys.N_LAYERS - 1)[1]
    back = draft.target_ids.argsort()  # the library's head is in ascending order of target ids
    for mine, its in zip(ours, theirs, strict=True):
        assert_close(mine[:, back], its[: len(mine)], rtol=1e-5, atol=1e-5)


def model_target(numbers, target):
    """The target with the embedding of these numbers, for forms that leave it out."""
    return replace(target, embedding_rows=lambda ids: numbers["embed_tokens.weight"][ids])


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_the_official_form_in_both_files(file, tensors, expected, tmp_path):
    path = forms.eagle(tmp_path, tensors, file)
    assert read_checkpoint(path).form == "eagle"
    assert torch.equal(predictions(path)[0], expected[0])


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_with_an_index(suffix, tensors, expected, tmp_path):
    path = forms.put_shards(tmp_path, tensors, forms.flat_config(), 3, suffix)
    assert torch.equal(predictions(path)[0], expected[0])


def test_a_single_file_with_its_config_beside_it(tensors, expected, tmp_path):
    forms.vllm(tmp_path, tensors)
    assert torch.equal(predictions(tmp_path)[0], expected[0])
    assert read_checkpoint(tmp_path / "model.safetensors").tensors.keys() == tensors.keys()


def test_a_draft_saved_beside_its_target(tensors, expected, tmp_path):
    """ModelOpt's full export: the draft's names begin with eagle_module., the rest is the target's."""
    both = forms.prefixed(tensors, "eagle_module.") | toys.target_tensors()
    path = forms.put(tmp_path, both, forms.flat_config())
    checkpoint = read_checkpoint(path)
    assert checkpoint.outside.keys() == toys.target_tensors().keys()
    assert torch.equal(predictions(path)[0], expected[0])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix=st.sampled_from(["", "model.", "draft_model.", "eagle_module.", "draft_model.model."]),
    cuts=st.integers(1, 5),
    suffix=st.sampled_from(["safetensors", "bin"]),
    layer=st.sampled_from(["layers.0.", "midlayer.", "midlayer.0."]),
    order=st.randoms(use_true_random=False),
    bare_head=st.booleans(),
)
def test_prefixes_and_shards_never_change_a_prediction(
    prefix, cuts, suffix, layer, order, bare_head, tensors, expected, tmp_path_factory
):
    names = list(tensors)
    order.shuffle(names)
    bare = ("lm_head.weight",) if bare_head and prefix in ("", "model.") else ()
    renamed = {n.replace("layers.0.", layer): tensors[n] for n in names}
    folder = tmp_path_factory.mktemp("dealt")
    path = forms.put_shards(folder, forms.prefixed(renamed, prefix, bare), forms.flat_config(), cuts, suffix)
    predicted, logprob = predictions(path)
    assert torch.equal(predicted, expected[0]) and torch.equal(logprob, expected[1])


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_permuted_vocabulary_never_changes_a_prediction(seed, tensors, expected, tmp_path_factory):
    """ModelOpt's order: d2t is not ascending and there is no t2d."""
    path = forms.put(tmp_path_factory.mktemp("permuted"), forms.unsorted(tensors, seed), forms.flat_config())
    predicted, logprob = predictions(path)
    assert torch.equal(predicted, expected[0])
    assert_close(logprob, expected[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", ["llama_cpp", "tensorrt_llm", "eagle", "vllm"])
def test_rows_are_the_tensor_s_rows(form, tensors, tmp_path):
    """In any order and with repeats, fused, interleaved or pickled; a row outside is refused."""
    checkpoint = read_checkpoint(forms.WRITERS[form](tmp_path, tensors))
    for name in ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight", "layers.0.mlp.up_proj.weight"):
        info = checkpoint.tensors[name]
        rows = torch.tensor([info.shape[0] - 1, 0, 3, 3])
        assert torch.equal(read_tensor(info), tensors[name])
        assert torch.equal(read_rows(info, rows), tensors[name][rows])


def test_norms_over_slots_under_sglang_s_old_names(tmp_path, target):
    """aux_norm_low, _mid and _high are fc_norm.0 to 2."""
    tensors = toys.draft_tensors("slots")
    plain = predictions(toys.write_draft(tmp_path / "plain", tensors, fc_norm=True))
    old = {f"fc_norm.{i}.weight": f"aux_norm_{word}.weight" for i, word in enumerate(("low", "mid", "high"))}
    renamed = forms.midlayer({old.get(name, name): tensor for name, tensor in tensors.items()})
    path = forms.put(tmp_path / "old", renamed, forms.flat_config(use_aux_norm=True))
    assert read_checkpoint(path).form == "sglang"
    assert torch.equal(predictions(path)[0], plain[0])


@pytest.mark.parametrize("spelling", ["input_layernorm", "hidden_norm"])
def test_a_later_layer_s_norm_under_both_spellings(spelling, tensors, tmp_path):
    source = toys.generator(21)
    second = {
        name.replace("layers.0.", "layers.1."): (
            toys.random_norm(toys.HIDDEN, source)
            if tensor.ndim == 1
            else toys.random_weight(tensor.shape[0], min(tensor.shape[1], toys.HIDDEN), source)
            if "self_attn" in name and "o_proj" not in name
            else toys.random_weight(*tensor.shape, source)
        )
        for name, tensor in tensors.items()
        if name.startswith("layers.0.") and "hidden_norm" not in name
    }
    plain = tensors | second
    expected = predictions(forms.put(tmp_path / "plain", plain, forms.flat_config(num_hidden_layers=2)))
    renamed = {n.replace("layers.1.input_layernorm", f"layers.1.{spelling}"): t for n, t in plain.items()}
    path = forms.put(tmp_path / "other", renamed, forms.flat_config(num_hidden_layers=2))
    assert torch.equal(predictions(path)[0], expected[0])


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": toys.ROPE_THETA, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


def llama3_factors() -> torch.Tensor:
    """By how much each frequency is divided, as conversion/llama.py computes it for `rope_freqs.weight`."""
    freqs = 1 / toys.ROPE_THETA ** (torch.arange(0, toys.HEAD_DIM, 2).float() / toys.HEAD_DIM)
    found = []
    for freq in freqs.tolist():
        wavelength = 2 * torch.pi / freq
        low, high = 64 / LLAMA3["low_freq_factor"], 64 / LLAMA3["high_freq_factor"]
        smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
        found.append(1.0 if wavelength < high else 8.0 if wavelength > low else 1 / ((1 - smooth) / 8.0 + smooth))
    return torch.tensor(found)


def test_llama_cpp_s_rope_factors_are_llama3_s(tensors, tmp_path):
    """The converter keeps the factors and not the numbers they came from."""
    plain = predictions(forms.put(tmp_path / "flat", tensors, forms.flat_config(rope_parameters=LLAMA3)))
    found = predictions(forms.llama_cpp(tmp_path / "gguf", tensors, factors=llama3_factors()))
    assert len(llama3_factors().unique()) > 2, "some frequencies are kept, some divided, some between"
    assert torch.equal(found[0], plain[0])
    assert_close(found[1], plain[1], rtol=1e-5, atol=1e-5)


def test_llama_cpp_s_linear_scaling(tensors, tmp_path):
    linear = {"rope_type": "linear", "rope_theta": toys.ROPE_THETA, "factor": 3.0}
    plain = predictions(forms.put(tmp_path / "flat", tensors, forms.flat_config(rope_parameters=linear)))
    found = predictions(forms.llama_cpp(tmp_path / "gguf", tensors, scaling=3.0))
    assert_close(found[1], plain[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", ["llama_cpp", "vllm"])
def test_a_norm_before_fc_survives_the_form(form, tmp_path):
    tensors = toys.draft_tensors("concat")
    plain = predictions(toys.write_draft(tmp_path / "plain", tensors, norm_before_fc=True))
    assert torch.equal(predictions(forms.WRITERS[form](tmp_path / form, tensors))[0], plain[0])
