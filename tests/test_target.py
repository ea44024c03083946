"""The target's embedding, norm, head and token texts, from either kind of file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import toys
from torch.testing import assert_close

from eagle3lib import target as target_module
from eagle3lib.errors import InputError
from eagle3lib.target import Target, load_target

TOKENS = ["<|im_start|>", "Hello", "Ġworld", "Ċ", "Ã©", "ÃĬ", "ĠðŁ", "▁the"]
TEXTS = ["<|im_start|>", "Hello", " world", "\n", "é", "\u00ca", " \ufffd", "▁the"]


def write_gguf(
    file: Path,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    tied: bool = False,
    without: tuple[str, ...] = (),
) -> Path:
    """The tiny target as a GGUF file, as llama.cpp's converter names things."""
    tensors = toys.target_tensors()
    names = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(toys.N_LAYERS)
    writer.add_embedding_length(toys.HIDDEN)
    writer.add_layer_norm_rms_eps(toys.EPS)
    writer.add_rope_freq_base(toys.ROPE_THETA)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS + [f"t{i}" for i in range(toys.VOCABULARY - len(TOKENS))])
    if "output_norm.weight" not in without:
        writer.add_tensor("output_norm.weight", tensors["model.norm.weight"].numpy())
    for name, theirs in names.items():
        if (tied and theirs == "output.weight") or theirs in without:
            continue
        data = gguf.quants.quantize(tensors[name].numpy(), kind)
        writer.add_tensor(theirs, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def gguf_target(tmp_path_factory) -> Target:
    """The tiny target from a float32 GGUF file."""
    return load_target(write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf"))


def test_both_kinds_of_file_are_the_same_target(target, gguf_target):
    """Embedding rows, head rows and the final norm, bit for bit; sizes and numbers too."""
    ids = torch.tensor([95, 0, 7, 7, 31])
    states = torch.randn(4, toys.HIDDEN, generator=toys.generator(0))
    assert torch.equal(gguf_target.embed(ids), target.embed(ids))
    assert torch.equal(gguf_target.head_rows(ids), target.head_rows(ids))
    assert_close(gguf_target.final_norm(states), target.final_norm(states), rtol=1e-6, atol=1e-6)
    for name in ("architecture", "n_layers", "hidden_size", "vocab_size", "rope_theta", "tied"):
        assert getattr(gguf_target, name) == getattr(target, name), name
    assert gguf_target.norm_eps == pytest.approx(target.norm_eps)


def test_rows_are_the_file_s_own(target):
    """In the order asked for, repeats included, whatever the file's order."""
    tensors = toys.target_tensors()
    ids = torch.tensor([95, 0, 7, 7, 31])
    assert torch.equal(target.embed(ids), tensors["model.embed_tokens.weight"][ids])
    assert torch.equal(target.head_rows(ids), tensors["lm_head.weight"][ids])
    assert not torch.equal(target.embed(ids), target.head_rows(ids))


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (gguf.GGMLQuantizationType.F16, 2.0**-11),
        (gguf.GGMLQuantizationType.BF16, 2.0**-8),
        (gguf.GGMLQuantizationType.Q8_0, 0.5 / 127 * 1.01),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_quantized_rows_are_within_half_a_step(kind, step, tmp_path):
    """Each value within half a quantization step of its row's largest magnitude; not equal, so it was quantized."""
    ids = torch.tensor([3, 90])
    expected = toys.target_tensors()["model.embed_tokens.weight"][ids]
    found = load_target(write_gguf(tmp_path / "model.gguf", kind)).embed(ids)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    assert float(((found - expected).abs() / expected.abs().amax(1, keepdim=True)).max()) <= step


def test_a_tied_head_is_the_embedding(tmp_path):
    """In either kind of file."""
    ids = torch.arange(5)
    folder = toys.change_tensors(toys.write_target(tmp_path / "folder", tie_word_embeddings=True), lm_head__weight=None)
    for found in (load_target(folder), load_target(write_gguf(tmp_path / "model.gguf", tied=True))):
        assert found.tied
        assert torch.equal(found.head_rows(ids), found.embed(ids))


def test_the_final_norm_is_the_equation(target):
    """x / sqrt(mean(x²) + eps) times the weight, in float64 by hand, 1e-6; and the eps is seen."""
    states = torch.randn(6, toys.HIDDEN, generator=toys.generator(1)) * 0.05
    x = states.double()
    expected = x / (x.pow(2).mean(-1, keepdim=True) + toys.EPS).sqrt() * toys.target_tensors()["model.norm.weight"]
    assert_close(target.final_norm(states).double(), expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(replace(target, norm_eps=0.0).final_norm(states), target.final_norm(states), atol=1e-3)


@pytest.mark.parametrize("chunk", [1, 7, 32, 95, 96, 1000])
def test_a_score_equals_a_dense_log_softmax(chunk, target, monkeypatch):
    """Log-probabilities (1e-5) and argmax, wherever the chunks of the head end."""
    monkeypatch.setattr(target_module, "VOCAB_CHUNK", chunk)
    normed = target.final_norm(3 * torch.randn(40, toys.HIDDEN, generator=toys.generator(2)))
    ids = torch.arange(40) + 56  # the last id of the vocabulary among them
    dense = (normed.double() @ toys.target_tensors()["lm_head.weight"].double().T).log_softmax(-1)
    scores = target.score(normed, ids)
    assert_close(scores.logprob.double(), dense[torch.arange(40), ids], rtol=1e-5, atol=1e-5)
    assert torch.equal(scores.argmax, dense.argmax(-1))
    assert len(scores.argmax.unique()) > 5, "the argmax must not be one token everywhere"


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_a_score_among_some_ids_and_of_several_tokens(chunk, target, monkeypatch):
    """The distribution over a draft's vocabulary, its entropy, and ids that are not in it or stand for none; 1e-5."""
    monkeypatch.setattr(target_module, "VOCAB_CHUNK", chunk)
    normed = target.final_norm(torch.randn(40, toys.HIDDEN, generator=toys.generator(2)))
    among = torch.randperm(toys.VOCABULARY, generator=toys.generator(4))[:30]
    dense = (normed.double() @ toys.target_tensors()["lm_head.weight"][among].double().T).log_softmax(-1)
    ids = torch.stack([among[torch.arange(40) % 30], torch.full((40,), -1), torch.arange(40)], dim=1)
    scores = target.score(normed, ids, among=among, entropy=True)
    assert_close(scores.logprob[:, 0].double(), dense[torch.arange(40), torch.arange(40) % 30], rtol=1e-5, atol=1e-5)
    assert bool((scores.logprob[:, 1] == -torch.inf).all())
    assert torch.equal(scores.logprob[:, 2] == -torch.inf, ~torch.isin(ids[:, 2], among))
    assert torch.equal(scores.argmax, among[dense.argmax(-1)])
    assert_close(scores.entropy.double(), -(dense.exp() * dense).sum(-1), rtol=1e-5, atol=1e-5)
    assert target.score(normed, ids[:, 0]).entropy is None


def test_of_equal_logits_the_lowest_id_wins(target, monkeypatch):
    """As a dense argmax has it, across a chunk's end."""
    monkeypatch.setattr(target_module, "VOCAB_CHUNK", 10)
    flat = replace(target, head_row_reader=lambda ids: torch.zeros(len(ids), toys.HIDDEN))
    scores = flat.score(torch.ones(2, toys.HIDDEN), torch.tensor([0, 50]))
    assert scores.argmax.tolist() == [0, 0]
    assert_close(scores.logprob, torch.full((2,), -float(np.log(toys.VOCABULARY))))


def test_token_texts_are_bytes_decoded(gguf_target, target):
    """GPT-2's alphabet becomes text; control tokens and sentencepiece pieces stay; a folder knows ids only."""
    assert [gguf_target.text(i) for i in range(len(TEXTS))] == TEXTS
    assert gguf_target.text(toys.VOCABULARY + 1) == f"<{toys.VOCABULARY + 1}>"
    assert target.text(3) == "<3>"


@pytest.mark.parametrize("ids", [[0, toys.VOCABULARY], [-1]], ids=str)
def test_an_id_outside_the_vocabulary_is_refused(ids, target, gguf_target):
    """By embedding and by head, with the file and the ids."""
    for found in (target, gguf_target):
        for read in (found.embed, found.head_rows):
            with pytest.raises(InputError, match=r"vocabulary of 96.*another model's") as caught:
                read(torch.tensor(ids))
            assert str(found.path) in str(caught.value)


def test_a_truncated_gguf_is_refused(tmp_path):
    """Half a file, as an interrupted download leaves it."""
    file = write_gguf(tmp_path / "model.gguf")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(InputError, match="not a whole GGUF file"):
        load_target(file)


def test_a_gguf_without_a_norm_is_refused(tmp_path):
    """By the tensor's name."""
    with pytest.raises(InputError, match=r"output_norm\.weight"):
        load_target(write_gguf(tmp_path / "model.gguf", without=("output_norm.weight",)))


def test_a_gguf_without_an_embedding_is_refused(tmp_path):
    """By the tensor's name."""
    with pytest.raises(InputError, match=r"token_embd\.weight"):
        load_target(write_gguf(tmp_path / "model.gguf", without=("token_embd.weight",)))


def test_a_target_that_is_part_of_a_larger_model_is_read(tmp_path):
    """Kimi-K2.5 and other multimodal targets: `text_config`, and tensors below `language_model.`."""
    tensors = {f"language_model.{name}": tensor for name, tensor in toys.target_tensors().items()}
    toys.write_target(tmp_path, tensors)
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": toys.layer_config()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_target(tmp_path).n_layers == toys.N_LAYERS
