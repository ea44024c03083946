"""Targets as people have them: nested, tied, quantised, half downloaded, linked, padded; and the texts of tokens."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import gguf
import pytest
import torch
import toys
from complaints import complaint
from safetensors.torch import save_file
from test_target import TEXTS, TOKENS, write_gguf

from eagle3lib.checks.target import check_padding
from eagle3lib.findings import Severity
from eagle3lib.gguf_file import open_gguf
from eagle3lib.target import load_target

IDS = torch.tensor([95, 0, 7, 7, 31])
PLAIN = toys.target_tensors()
EMBEDDING, HEAD = PLAIN["model.embed_tokens.weight"], PLAIN["lm_head.weight"]


def write(folder: Path, tensors: dict, config: dict | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(toys.layer_config() if config is None else config))
    save_file({n: t.clone().contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    return folder


def same(found) -> bool:
    """Whether this is the toy target, bit for bit."""
    return (
        torch.equal(found.embed(IDS), EMBEDDING[IDS])
        and torch.equal(found.head_rows(IDS), HEAD[IDS])
        and torch.equal(found.norm_weight, PLAIN["model.norm.weight"])
        and found.n_layers == toys.N_LAYERS
    )


# Names and config.

TOWER = {"vision_tower.norm.weight": torch.zeros(4), "vision_tower.embed_tokens.weight": torch.zeros(4, 4)}


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model.", "lm_head."),
        ("", "lm_head."),
        ("language_model.model.", "language_model.lm_head."),
        ("model.language_model.", "lm_head."),
        ("model.language_model.model.", "model.language_model.lm_head."),
        ("model.text_model.", "lm_head."),
        ("thinker.model.", "thinker.lm_head."),
        ("somebody.s.own.model.", "lm_head."),
    ],
)
def test_nested_names_beside_other_towers(prefix, head, tmp_path):
    renamed = {prefix + "embed_tokens.weight": EMBEDDING, head + "weight": HEAD}
    renamed[prefix + "norm.weight"] = PLAIN["model.norm.weight"]
    assert same(load_target(write(tmp_path, renamed | TOWER)))


@pytest.mark.parametrize("section", ["text_config", "llm_config", "language_config"])
def test_a_section_of_config_holds_the_numbers(section, tmp_path):
    config = {"architectures": ["KimiK25ForConditionalGeneration"], section: toys.layer_config()}
    found = load_target(write(tmp_path, PLAIN, config))
    assert same(found)
    assert found.architecture == "KimiK25ForConditionalGeneration"


def test_sections_within_sections(tmp_path):
    config = {"thinker_config": {"text_config": toys.layer_config(), "audio_config": {"hidden_size": 3}}}
    assert same(load_target(write(tmp_path, PLAIN, config)))


@pytest.mark.parametrize("where", ["top", "section"])
def test_a_tie_said_at_either_level(where, tmp_path):
    layer = toys.layer_config()
    del layer["tie_word_embeddings"]
    tie = {"tie_word_embeddings": True}
    config = {"text_config": layer} | tie if where == "top" else {"text_config": layer | tie}
    found = load_target(write(tmp_path, {n: t for n, t in PLAIN.items() if n != "lm_head.weight"}, config))
    assert found.tied and torch.equal(found.head_rows(IDS), EMBEDDING[IDS])


def test_a_gemma_norm_is_one_more(tmp_path):
    """Gemma multiplies by 1 + weight, and its config leaves the tie out."""
    config = {k: v for k, v in toys.layer_config().items() if k != "tie_word_embeddings"} | {"model_type": "gemma2"}
    found = load_target(write(tmp_path, PLAIN, config))
    assert found.tied and torch.equal(found.norm_weight, PLAIN["model.norm.weight"] + 1)


def test_when_nothing_fits_what_is_there_is_listed(tmp_path):
    other = {"wte.weight": EMBEDDING, "a.embed_tokens.weight": EMBEDDING, "b.embed_tokens.weight": EMBEDDING}
    write(tmp_path, other)
    complaint(lambda: load_target(tmp_path), "model.embed_tokens.weight", "a.embed_tokens.weight")


# Shards and links.


def sharded(folder: Path) -> Path:
    """Three shards with an index: embedding; blocks; norm and head."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(toys.layer_config()))
    parts = [
        {"model.embed_tokens.weight": EMBEDDING},
        {"model.layers.0.mlp.up_proj.weight": torch.zeros(2, 2)},
        {"model.norm.weight": PLAIN["model.norm.weight"], "lm_head.weight": HEAD},
    ]
    weight_map = {}
    for i, part in enumerate(parts):
        name = f"model-{i + 1:05}-of-00003.safetensors"
        save_file({n: t.contiguous() for n, t in part.items()}, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_only_the_needed_shards(tmp_path):
    (sharded(tmp_path) / "model-00002-of-00003.safetensors").unlink()
    assert same(load_target(tmp_path))


def test_a_needed_shard_that_is_not_there_is_named(tmp_path):
    (sharded(tmp_path) / "model-00001-of-00003.safetensors").unlink()
    complaint(lambda: load_target(tmp_path), "model.embed_tokens.weight", "model-00001-of-00003", "copy that shard")


def test_a_head_that_is_not_there_matters_when_it_is_asked_for(tmp_path):
    index = json.loads((sharded(tmp_path) / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = "model-00004-of-00003.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = load_target(tmp_path)
    assert torch.equal(found.embed(IDS), EMBEDDING[IDS])
    complaint(lambda: found.head_rows(IDS), "lm_head.weight", "model-00004-of-00003")


def test_an_index_that_promises_what_its_shard_lacks(tmp_path):
    index = json.loads((sharded(tmp_path) / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "model-00001-of-00003.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    complaint(lambda: load_target(tmp_path), "promises model.norm.weight", "model-00001-of-00003")


def cached(folder: Path) -> Path:
    """Hugging Face's cache: a snapshot of relative links into blobs."""
    snapshot, blobs = folder / "snapshots" / "abc", folder / "blobs"
    plain = sharded(folder / "plain")
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, file in enumerate(sorted(plain.iterdir())):
        file.rename(blobs / f"{i:064}")
        (snapshot / file.name).symlink_to(f"../../blobs/{i:064}")
    return snapshot


def test_links_of_the_cache_are_followed(tmp_path):
    assert same(load_target(cached(tmp_path)))


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00003.safetensors"])
def test_a_dangling_link_is_named(name, tmp_path):
    snapshot = cached(tmp_path)
    (snapshot / name).resolve().unlink()
    complaint(lambda: load_target(snapshot), name, "is a link to ../../blobs/", "cp -rL")


def test_a_folder_with_one_gguf(tmp_path):
    write_gguf(tmp_path / "model.gguf")
    assert same(load_target(tmp_path))


# Vocabularies and quantised tables.


def test_rows_of_padding_are_no_tokens(tmp_path):
    """20 rows more than the vocabulary: never chosen, whatever they hold."""
    loud = torch.full((20, toys.HIDDEN), 1e3)
    padded = PLAIN | {
        "model.embed_tokens.weight": torch.cat([EMBEDDING, loud]),
        "lm_head.weight": torch.cat([HEAD, loud]),
    }
    found, plain = load_target(write(tmp_path, padded)), load_target(write(tmp_path / "plain", PLAIN))
    assert (found.vocab_size, found.padding_rows, plain.padding_rows) == (toys.VOCABULARY, 20, 0)
    states = torch.randn(9, toys.HIDDEN, generator=toys.generator(3)).abs()
    ids = torch.arange(9)
    assert torch.equal(found.score(states, ids).argmax, plain.score(states, ids).argmax)
    assert torch.equal(found.score(states, ids).logprob, plain.score(states, ids).logprob)
    complaint(lambda: found.embed(torch.tensor([toys.VOCABULARY])), "vocabulary of 96")


def test_padding_is_said_and_twice_the_vocabulary_is_a_risk(tmp_path, target):
    found = {}
    for n in (20, toys.VOCABULARY):
        more = torch.zeros(n, toys.HIDDEN)
        padded = {name: torch.cat([PLAIN[name], more]) for name in ("model.embed_tokens.weight", "lm_head.weight")}
        found[n] = check_padding(load_target(write(tmp_path / str(n), PLAIN | padded)))
    assert (found[20].severity, found[toys.VOCABULARY].severity) == (Severity.NOTE, Severity.RISK)
    assert "20 padding rows" in found[20].title and "twice" in found[toys.VOCABULARY].title
    assert check_padding(target) is None


@pytest.mark.parametrize("ending", ["weight_packed", "qweight"])
def test_a_packed_head_is_named(ending, tmp_path):
    """Four-bit codes and the shapes they had: no plain weight beside them."""
    tensors = {n: t for n, t in PLAIN.items() if n != "lm_head.weight"}
    found = load_target(write(tmp_path, tensors | {"lm_head." + ending: torch.zeros(96, 4, dtype=torch.int32)}))
    complaint(lambda: found.head_rows(IDS), "lm_head.weight", "is packed (lm_head." + ending)


def quantised_rows(scale: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 codes of a table and the table they stand for, element by element."""
    n_rows, n_columns = EMBEDDING.shape
    wide = torch.tensor([[float(scale[r // block[0], c // block[1]]) for c in range(n_columns)] for r in range(n_rows)])
    codes = (EMBEDDING / wide).to(torch.float8_e4m3fn)
    return codes, codes.float() * wide


@pytest.mark.parametrize("block", [(32, 16), (40, 13), (128, 128)])
@pytest.mark.parametrize("suffix", ["weight_scale_inv", "weight_scale"])
def test_fp8_blocks_are_dequantised(block, suffix, tmp_path):
    """weight = code · scale of its block; blocks at the edge are cut."""
    grid = -(-toys.VOCABULARY // block[0]), -(-toys.HIDDEN // block[1])
    scale = 0.01 + torch.rand(grid, generator=toys.generator(5))
    codes, expected = quantised_rows(scale, block)
    tensors = PLAIN | {"model.embed_tokens.weight": codes, f"model.embed_tokens.{suffix}": scale}
    config = toys.layer_config() | {"quantization_config": {"quant_method": "fp8", "weight_block_size": list(block)}}
    assert torch.equal(load_target(write(tmp_path, tensors, config)).embed(IDS), expected[IDS])


@pytest.mark.parametrize("shape", [(), (1,), (toys.VOCABULARY, 1), (toys.VOCABULARY,)])
def test_int8_by_row_or_by_table(shape, tmp_path):
    scale = torch.full(shape, 0.03) + (
        0.001 * torch.arange(toys.VOCABULARY).reshape(shape) if len(shape) and shape[0] > 1 else 0
    )
    codes = torch.randint(-127, 128, HEAD.shape, generator=toys.generator(6), dtype=torch.int8)
    tensors = PLAIN | {"lm_head.weight": codes, "lm_head.weight_scale": scale}
    expected = codes.float() * (scale.reshape(-1, 1) if scale.numel() > 1 else scale)
    assert torch.equal(load_target(write(tmp_path, tensors)).head_rows(IDS), expected[IDS])


E4M3 = EMBEDDING.to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("codes", "beside", "parts"),
    [
        (E4M3, {}, ["F8_E4M3", "without a scale"]),
        (E4M3, {"weight_scale_inv": torch.ones(3, 2)}, ["[3, 2]", "weight_block_size"]),
        (torch.zeros(96, 4, dtype=torch.int32), {"weight_scale": torch.ones(96, 2)}, ["I32 [96, 4]"]),
    ],
    ids=["no scale", "odd scale", "packed"],
)
def test_codes_that_cannot_be_turned_into_numbers(codes, beside, parts, tmp_path):
    stem = "model.embed_tokens."
    tensors = PLAIN | {stem + "weight": codes} | {stem + n: t for n, t in beside.items()}
    complaint(lambda: load_target(write(tmp_path, tensors)), stem + "weight", *parts)


# Texts of tokens.


def tokenizer(folder: Path, vocabulary, decoder: dict | None, added=()) -> None:
    data = {"model": {"vocab": vocabulary}, "decoder": decoder, "added_tokens": list(added)}
    (folder / "tokenizer.json").write_text(json.dumps(data))


def test_texts_of_a_byte_level_tokenizer(tmp_path):
    write(tmp_path, PLAIN)
    added = [{"id": 9, "content": "<|new|>"}]
    tokenizer(tmp_path, {t: i for i, t in enumerate(TOKENS)}, {"type": "ByteLevel"}, added)
    found = load_target(tmp_path)
    assert [found.text(i) for i in range(10)] == [*TEXTS, "<8>", "<|new|>"]


def test_texts_of_a_sentencepiece_tokenizer_stay(tmp_path):
    """An é is an é there, not a byte of GPT-2's alphabet."""
    write(tmp_path, PLAIN)
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]}
    tokenizer(tmp_path, [["▁the", -1.0], ["é", -2.0], ["<0x0A>", -3.0]], decoder)
    found = load_target(tmp_path)
    assert [found.text(i) for i in range(3)] == ["▁the", "é", "<0x0A>"]


@pytest.mark.parametrize("name", ["tiktoken.model", "o200k.tiktoken"])
def test_texts_of_tiktoken_ranks(name, tmp_path):
    write(tmp_path, PLAIN)
    tokens = [b"Hello", " é".encode(), b"\xf0\x9f"]
    (tmp_path / name).write_text("".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)))
    special = {"added_tokens_decoder": {"4": {"content": "[EOS]"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(special | {"auto_map": {"AutoTokenizer": "x.Evil"}}))
    (tmp_path / "x.py").write_text("raise SystemExit('remote code ran')")
    found = load_target(tmp_path)
    assert [found.text(i) for i in range(6)] == ["Hello", " é", "\ufffd", "<3>", "[EOS]", "<5>"]


def test_ids_where_no_file_has_texts(target):
    assert target.token_texts is None and target.text(3) == "<3>"


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {}}'])
def test_a_broken_tokenizer_matters_when_a_text_is_asked_for(content, tmp_path):
    write(tmp_path, PLAIN)
    (tmp_path / "tokenizer.json").write_text(content)
    found = load_target(tmp_path)
    complaint(lambda: found.text(0), "tokenizer.json", "copy it again")


def test_broken_ranks(tmp_path):
    (write(tmp_path, PLAIN) / "tiktoken.model").write_text("no-base64! 0\n")
    complaint(lambda: load_target(tmp_path).text(0), "tiktoken.model", "ranks")


# GGUF without its arrays.


def test_the_fast_reader_reads_what_gguf_s_own_reads(tmp_path):
    """Every field and every tensor; strings that are empty or not ASCII among them."""
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_token_list(["", "é", "a" * 300, "▁x"])
    writer.add_array("some.numbers", [1.5, -2.0, 3.25])
    writer.add_array("some.flags", [True, False])
    writer.add_array("some.integers", [-1, 2**31 - 1])
    writer.add_string("some.words", "naïve")
    writer.add_uint32("some.number", 7)
    writer.add_tensor("x", EMBEDDING.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    slow, fast = gguf.GGUFReader(file), open_gguf(file)
    for key, field in slow.fields.items():
        assert fast.value(key) == field.contents(), key
    assert torch.equal(fast.read("x"), EMBEDDING)
    assert torch.equal(fast.read("x", IDS), EMBEDDING[IDS])


def test_a_gguf_that_changed_is_read_again(tmp_path):
    file = write_gguf(tmp_path / "model.gguf")
    first = load_target(file)
    write_gguf(file, tied=True)
    assert load_target(file).tied and not first.tied
