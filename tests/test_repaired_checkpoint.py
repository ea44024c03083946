"""A repaired checkpoint differs in what its provenance lists and in nothing else, in the form that the original had."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import forms
import pytest
import torch
import toys
from safetensors.torch import load_file

from eagle3lib import pickles
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.dialects import read_checkpoint
from eagle3lib.ecosystems import engine
from eagle3lib.errors import InputError
from eagle3lib.repaired_checkpoint import own_embedding, save_repaired, with_settings
from eagle3lib.rewire import rewire, with_fc
from eagle3lib.target import load_target
from eagle3lib.tensors import read_tensor
from eagle3lib.turned_target import needs_own_embedding, why_embedding_unused

TRAINED, SERVED = Wiring((0, 2, 3)), Wiring((2, 3, 5))
NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"


def sums(folder: Path) -> dict[str, str]:
    """A hash of every file."""
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of every file, by the file's own names."""
    found = {}
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            found |= load_file(file)
        elif file.suffix == ".bin":
            found |= pickles.tensors(file)
    return found


def sharded(suffix: str):
    def write(folder: Path, tensors: forms.Tensors) -> Path:
        return forms.put_shards(folder, forms.midlayer(tensors), forms.flat_config(), 3, suffix)

    return write


def trained_state(folder: Path, tensors: forms.Tensors) -> Path:
    """`{"model": {...}, "step": 7}` in one file, as trainers write."""
    forms.eagle(folder, tensors)
    torch.save({"model": forms.midlayer(tensors), "step": 7}, folder / "pytorch_model.bin")
    return folder


FORMS = {name: write for name, write in forms.WRITERS.items() if name != "llama_cpp"} | {
    "sharded safetensors": sharded("safetensors"),
    "sharded bin": sharded("bin"),
    "state in a dictionary": trained_state,
}


def opened(folder: Path, tmp_path: Path) -> Draft:
    return load_draft(folder, load_target(toys.write_target(tmp_path / "target")), device="cpu")


@pytest.mark.parametrize("form", FORMS)
def test_only_what_is_listed_changes_in_every_form(form, tmp_path):
    """`fc` alone, in the same files under the same names; the rest bit for bit, other files too; the original stays."""
    folder = FORMS[form](tmp_path / "draft", toys.draft_tensors())
    (folder / "tokenizer.json").write_text("{}")
    (folder / "optimizer.pt").write_bytes(b"not the draft's")
    before = sums(folder)
    draft = opened(folder, tmp_path)
    repaired = rewire(draft, TRAINED, SERVED).draft
    out = save_repaired(repaired, tmp_path / "new" / "out", draft.raw_config, {}, {"repair": "rewire"})
    assert sums(folder) == before, "the original is only read"
    name = draft.tensors["fc.weight"].name
    old, new = stored(folder), stored(out)
    assert old.keys() == new.keys()
    assert {n for n in old if not torch.equal(old[n], new[n]) or old[n].dtype != new[n].dtype} == {name}
    assert torch.equal(new[name], repaired.weights.fc)
    assert {p.name for p in out.iterdir()} == (set(before) - {"optimizer.pt"}) | {"provenance.json"}
    assert json.loads((out / "config.json").read_text()) == draft.raw_config
    notes = json.loads((out / "provenance.json").read_text())
    assert (notes["repair"], notes["tensors_changed"], notes["config_changed"]) == ("rewire", {"fc.weight": name}, {})
    assert notes["original_sha256"] == {f: before[f] for f in notes["original_sha256"]}
    assert read_checkpoint(out).form == read_checkpoint(folder).form
    again = opened(out, tmp_path)
    assert torch.equal(again.weights.fc, repaired.weights.fc)
    assert torch.equal(again.weights.head, draft.weights.head)


def test_a_training_state_keeps_what_lies_beside_its_tensors(tmp_path):
    draft = opened(trained_state(tmp_path / "draft", toys.draft_tensors()), tmp_path)
    out = save_repaired(with_fc(draft, 2 * draft.weights.fc), tmp_path / "out", draft.raw_config, {}, {})
    data = torch.load(out / "pytorch_model.bin", weights_only=True)
    assert data["step"] == 7
    assert torch.equal(data["model"]["fc.weight"], 2 * draft.weights.fc)


@pytest.mark.parametrize(("input_norm", "moved"), [("slots", "fc_norm.0.weight"), ("concat", "input_norm.weight")])
def test_norms_that_move_are_written_and_listed(input_norm, moved, tmp_path):
    """Beside `fc`, each norm that is no longer the file's."""
    draft = load_draft(toys.write_draft(tmp_path / "draft", input_norm=input_norm), device="cpu")
    repaired = rewire(draft, TRAINED, SERVED).draft
    out = save_repaired(repaired, tmp_path / "out", draft.raw_config, {}, {})
    old, new = stored(tmp_path / "draft"), stored(out)
    changed = {n for n in old if not torch.equal(old[n], new[n])}
    assert changed == set(json.loads((out / "provenance.json").read_text())["tensors_changed"])
    assert {"fc.weight", moved} <= changed
    again = load_draft(out, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(again.weights.input_norms, repaired.weights.input_norms, strict=True))


def test_a_bfloat16_checkpoint_stays_one(tmp_path):
    tensors = {n: t.bfloat16() if t.is_floating_point() else t for n, t in toys.draft_tensors().items()}
    draft = load_draft(toys.write_draft(tmp_path / "draft", tensors), device="cpu")
    out = save_repaired(with_fc(draft, draft.weights.fc + 0.1), tmp_path / "out", draft.raw_config, {}, {})
    assert {n: t.dtype for n, t in stored(out).items()} == {n: t.dtype for n, t in tensors.items()}


def test_ids_are_written_in_the_engines_spelling(tmp_path):
    """SGLang's list lies in eagle_config, one less than the boundaries; what is beside it stays, and it is listed."""
    folder = forms.specforge(tmp_path / "draft", toys.draft_tensors())
    draft = opened(folder, tmp_path)
    sglang = engine("sglang")
    from eagle3lib.ecosystems import TargetShape

    shape = TargetShape(5, "LlamaForCausalLM")
    settings = sglang.settings(sglang.ids((1, 3, 4), shape).ids)
    out = save_repaired(with_fc(draft, draft.weights.fc + 1), tmp_path / "out", draft.raw_config, settings, {})
    config = json.loads((out / "config.json").read_text())
    assert sglang.boundaries(sglang.read_ids(config), shape) == (1, 3, 4)
    assert config == with_settings(draft.raw_config, {NESTED: [0, 2, 3]})
    assert config["eagle_config"]["use_aux_hidden_state"] is True
    assert json.loads((out / "provenance.json").read_text())["config_changed"] == {NESTED: [0, 2, 3]}
    assert draft.raw_config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 1, 2], "not changed in place"


@pytest.mark.parametrize("form", ["specforge", "sharded"])
def test_an_own_embedding_is_added_beside_fc(form, tmp_path):
    """In `fc`'s dtype, under the file's prefix, and in the index where there is one; the draft then reads its own."""
    tensors = forms.without(toys.draft_tensors(), "embed_tokens.weight")
    write = forms.specforge if form == "specforge" else sharded("safetensors")
    folder = (
        write(tmp_path / "draft", tensors) if form == "sharded" else write(tmp_path / "draft", toys.draft_tensors())
    )
    draft = opened(folder, tmp_path)
    table = own_embedding(draft)
    assert torch.equal(table, toys.target_tensors()["model.embed_tokens.weight"])
    out = save_repaired(draft, tmp_path / "out", draft.raw_config, {}, {}, table)
    notes = json.loads((out / "provenance.json").read_text())
    assert set(notes["tensors_changed"]) == {"fc.weight", "embed_tokens.weight"}
    again = load_draft(out, device="cpu")
    assert torch.equal(again.embed(torch.tensor([5, 7])), draft.embed(torch.tensor([5, 7])))
    if form == "sharded":
        index = json.loads((out / "model.safetensors.index.json").read_text())
        home = index["weight_map"]["embed_tokens.weight"]
        assert home == index["weight_map"]["fc.weight"]
        assert "embed_tokens.weight" in load_file(out / home)


def test_no_folder_in_use_is_written_to(tmp_path):
    """Neither a folder that holds something, nor the original, nor one inside it, nor a file; nothing is left over."""
    folder = toys.write_draft(tmp_path / "draft")
    draft, used = load_draft(folder, device="cpu"), tmp_path / "used"
    used.mkdir()
    (used / "mine").touch()
    for out in (used, folder, folder / "inner", used / "mine"):
        with pytest.raises(InputError, match="new or empty folder"):
            save_repaired(draft, out, draft.raw_config, {}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["draft", "used"]
    (tmp_path / "empty").mkdir()
    assert save_repaired(draft, tmp_path / "empty", draft.raw_config, {}, {}).is_dir()


def test_gguf_is_refused_with_what_to_convert(tmp_path):
    draft = load_draft(forms.llama_cpp(tmp_path / "draft", toys.draft_tensors()), device="cpu")
    with pytest.raises(
        InputError, match=r"GGUF file, which is not written; repair the safetensors .*convert_hf_to_gguf"
    ):
        save_repaired(draft, tmp_path / "out", {}, {}, {})
    assert not (tmp_path / "out").exists()


def test_a_failed_write_leaves_nothing(tmp_path):
    """Config values that JSON cannot hold: no half folder under the final name or another."""
    draft = load_draft(toys.write_draft(tmp_path / "draft"), device="cpu")
    with pytest.raises(TypeError):
        save_repaired(draft, tmp_path / "out", {"odd": object()}, {}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["draft"]


def test_a_turned_embedding_is_told_from_a_scaled_one(draft):
    """A rotation is another embedding; a scale, as Gemma's, is not; without B(0) nothing can be told."""
    sample = toys.make_sample()
    table = draft.embed(sample.token_ids)
    turn = torch.linalg.qr(torch.randn(toys.HIDDEN, toys.HIDDEN, generator=toys.generator(1))).Q

    def told(state: torch.Tensor) -> bool | None:
        return needs_own_embedding(draft, [replace(sample, states={0: state})])

    assert told(table @ turn) is True
    assert told(table.bfloat16()) is False
    assert told(24 * table) is False
    assert needs_own_embedding(draft, [replace(sample, states={3: table})]) is None


def test_which_engines_use_an_own_embedding(tmp_path):
    """SGLang puts the target's in its place where the widths are equal; vLLM reads the draft's."""
    draft = opened(forms.specforge(tmp_path / "draft", toys.draft_tensors()), tmp_path)
    assert "target's embedding" in why_embedding_unused(draft, engine("sglang"), draft.raw_config)
    assert why_embedding_unused(draft, engine("vllm"), draft.raw_config) is None


def test_tensors_of_a_fused_form_are_read_back_whole(tmp_path):
    """q, k, v in one tensor: the rows beside are untouched."""
    draft = opened(forms.tensorrt_llm(tmp_path / "draft", toys.draft_tensors()), tmp_path)
    out = save_repaired(with_fc(draft, draft.weights.fc + 1), tmp_path / "out", draft.raw_config, {}, {})
    for name, info in read_checkpoint(out).tensors.items():
        same = torch.equal(read_tensor(info), read_tensor(draft.tensors[name]))
        assert same == (name != "fc.weight"), name
