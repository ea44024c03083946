"""Folders that hold no draft to read, and files of another kind: one sentence each, with the way out."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import forms
import pytest
import torch
import toys
from complaints import LFS_POINTER, complaint
from safetensors.torch import save_file

from eagle3lib.dialects import read_checkpoint
from eagle3lib.tensors import read_tensor


def refused(path: Path, *parts: str) -> str:
    return complaint(lambda: read_checkpoint(path), *parts)


def empty(folder: Path, *files: str) -> Path:
    """A folder with config.json and files of no content."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(forms.flat_config()))
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


@pytest.mark.parametrize("files", [["optimizer.pt", "trainer_state.json"], ["training_state.pt"], ["optimizer.bin"]])
def test_a_training_state(files, tmp_path):
    refused(empty(tmp_path, *files), str(tmp_path), "training state", files[0], "export")


def test_a_training_state_beside_exported_weights_is_read(tmp_path):
    """Hugging Face's trainer writes both into one folder; the weights are whole."""
    toys.write_draft(tmp_path)
    empty_files = ("optimizer.pt", "scheduler.pt", "trainer_state.json", "training_args.bin", "rng_state.pth")
    config = (tmp_path / "config.json").read_text()
    empty(tmp_path, *empty_files)
    (tmp_path / "config.json").write_text(config)
    assert "fc.weight" in read_checkpoint(tmp_path).tensors


@pytest.mark.parametrize("inside", ["", "pytorch_model_fsdp_0/"])
def test_shards_of_a_distributed_checkpoint(inside, tmp_path):
    path = empty(tmp_path, f"{inside}__0_0.distcp", f"{inside}.metadata")
    refused(path, ".distcp", "dcp_to_torch", str(tmp_path))


@pytest.mark.parametrize(
    "files",
    [
        ["rank0.safetensors", "rank1.safetensors"],
        ["model-rank-0-part-0.safetensors", "model-rank-1-part-0.safetensors"],
        ["pytorch_model_tp0.bin", "pytorch_model_tp1.bin"],
        ["mp_rank_00.pt", "mp_rank_01.pt"],
    ],
)
def test_one_file_a_rank(files, tmp_path):
    refused(empty(tmp_path, *files), str(tmp_path), "tensor-parallel rank", files[0], "joins")


def test_a_shard_that_is_missing(tmp_path):
    path = forms.put_shards(tmp_path, toys.draft_tensors(), forms.flat_config(), 3)
    (path / "model.safetensors.index.json").unlink()
    (path / "model-00002-of-00003.safetensors").unlink()
    refused(path, str(tmp_path), "lacks shard 2 of 3")


def test_a_dangling_link(tmp_path):
    """A cache whose blobs were removed or not copied."""
    toys.write_draft(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("../../blobs/abc")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"fc.weight": "model.safetensors"}})
    )
    refused(tmp_path, "model.safetensors is a link to ../../blobs/abc", "cp -rL")


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "bare pickle"])
def test_no_pickled_code_runs(archive, tmp_path):
    folder = empty(tmp_path / "draft")
    content = {"fc.weight": torch.zeros(2, 2), "more": Evil(tmp_path / "ran")}
    if archive:
        torch.save(content, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(content))
    refused(folder, "pytorch_model.bin", "pickled code is never run")
    assert not (tmp_path / "ran").exists()


def test_a_torch_file_in_the_old_format(tmp_path):
    """Before torch 1.6: no archive, and not mapped."""
    tensors = forms.midlayer(toys.draft_tensors())
    folder = empty(tmp_path)
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    info = read_checkpoint(folder).tensors["fc.weight"]
    assert torch.equal(read_tensor(info), tensors["fc.weight"])


def test_a_torch_file_with_the_weights_below_a_key(tmp_path):
    folder = empty(tmp_path)
    torch.save({"model": toys.draft_tensors(), "step": 7}, folder / "pytorch_model.bin")
    assert "fc.weight" in read_checkpoint(folder).tensors


@pytest.mark.parametrize("content", [LFS_POINTER, b"", b"PK\x03\x04 half an archive"])
def test_a_torch_file_that_is_none(content, tmp_path):
    folder = empty(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(content)
    refused(folder, str(folder / "pytorch_model.bin"), "git lfs pull" if content == LFS_POINTER else "cannot be read")


def test_one_tensor_under_two_names(tmp_path):
    tensors = toys.draft_tensors()
    both = tensors | {"midlayer.hidden_norm.weight": tensors["layers.0.hidden_norm.weight"]}
    refused(forms.put(tmp_path, both, forms.flat_config()), "midlayer.hidden_norm.weight", "the same tensor twice")
    prefixed = tensors | {"model.fc.weight": tensors["fc.weight"]}
    refused(forms.put(tmp_path, prefixed, forms.flat_config()), "model.fc.weight", "the same tensor twice")


def test_a_fused_tensor_that_does_not_divide(tmp_path):
    tensors = forms.fused(toys.draft_tensors())
    tensors["layers.0.self_attn.qkv_proj.weight"] = tensors["layers.0.self_attn.qkv_proj.weight"][:-1]
    refused(forms.put(tmp_path, tensors, forms.flat_config()), "qkv_proj.weight", "do not divide")


def test_a_gguf_of_another_architecture(tmp_path):
    forms.llama_cpp(tmp_path, toys.draft_tensors(), "dflash")
    refused(tmp_path, "draft.gguf", "'dflash'")


# Quantised exports.

Q = "layers.0.self_attn.q_proj."


def quantised(folder: Path, codes: dict[str, torch.Tensor], **config: object) -> Path:
    tensors = forms.without(toys.draft_tensors(), Q + "weight") | codes
    return forms.put(folder, tensors, forms.flat_config(**config))


def test_modelopt_nvfp4(tmp_path):
    """Two 4-bit codes a byte: the matrix is half as wide, and would pass for a narrower one."""
    codes = {Q + "weight": torch.zeros(32, 32, dtype=torch.uint8), Q + "weight_scale": torch.ones(32, 4)}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    refused(quantised(tmp_path, codes), "NVFP4", Q + "weight is U8 [32, 32]", Q + "weight_scale", "before quant")


def test_fp8(tmp_path):
    codes = {
        Q + "weight": torch.zeros(32, 64).to(torch.float8_e4m3fn),
        Q + "weight_scale": torch.ones(1),
        Q + "input_scale": torch.ones(1),
    }
    path = quantised(tmp_path, codes, quantization_config={"quant_algo": "FP8", "quant_method": "modelopt"})
    refused(path, "FP8", "F8_E4M3")


def test_fp8_without_a_scale(tmp_path):
    refused(quantised(tmp_path, {Q + "weight": torch.zeros(32, 64).to(torch.float8_e4m3fn)}), "without any scale")


def test_packed_codes_alone(tmp_path):
    codes = {Q + "weight_packed": torch.zeros(32, 8, dtype=torch.int32), Q + "weight_shape": torch.tensor([32, 64])}
    refused(quantised(tmp_path, codes), Q + "weight_packed is I32")


def test_a_quantization_config_beside_plain_weights_is_no_reason(tmp_path):
    """NVIDIA's exports may exclude the draft's own layers."""
    path = forms.put(tmp_path, toys.draft_tensors(), forms.flat_config(quantization_config={"quant_algo": "FP8"}))
    assert read_checkpoint(path).tensors


# Other kinds of draft.

WIDE, NARROW = (toys.HIDDEN, 2 * toys.HIDDEN), (toys.HIDDEN, toys.HIDDEN)
NORM = (toys.HIDDEN,)
OTHERS = {
    "P-EAGLE": toys.draft_tensors() | {"mask_hidden": torch.zeros(1, 96)},
    "EAGLE-1 or EAGLE-2": {"fc.weight": WIDE, Q + "weight": NARROW, "fc.bias": NORM},
    "DFlash": {"fc.weight": (32, 96), "hidden_norm.weight": NORM, Q + "weight": NARROW, "norm.weight": NORM},
    "MTP": {"enorm.weight": NORM, "hnorm.weight": NORM, "eh_proj.weight": WIDE, Q + "weight": NARROW},
    "Medusa heads": {"0.0.linear.weight": NARROW, "0.1.weight": (96, 32)},
    "parallel Medusa": toys.draft_tensors() | {"parallel_draft_heads.0.weight": torch.zeros(2, 2)},
    "TensorRT-LLM's variant": {"fc.weight": (32, 96), "eh_proj.weight": WIDE, "enorm.weight": NORM},
    "MLP speculator": {"emb.0.weight": (96, 32), "proj.0.weight": NARROW, "head.0.weight": (96, 32)},
    "language model of 2 layers": {
        "model.norm.weight": NORM,
        "model." + Q + "weight": NARROW,
        "model.layers.1.self_attn.q_proj.weight": NARROW,
    },
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_kind_is_named(kind, tmp_path):
    tensors = {n: v if isinstance(v, torch.Tensor) else torch.ones(v) for n, v in OTHERS[kind].items()}
    refused(forms.put(tmp_path, tensors, forms.flat_config()), str(tmp_path), kind, "EAGLE-3")


def test_an_architecture_of_the_target_does_not_mislead(tmp_path):
    """config.json says Qwen3ForCausalLM, the tensors are an EAGLE-3 draft's: the tensors win."""
    path = forms.put(tmp_path, forms.midlayer(toys.draft_tensors()), forms.flat_config("Qwen3ForCausalLM"))
    assert "layers.0.hidden_norm.weight" in read_checkpoint(path).tensors


def test_a_model_wrapper_is_opened(tmp_path):
    """vLLM's `model_type: eagle` around the draft's own config."""
    save_file(toys.draft_tensors(), tmp_path / "model.safetensors")
    wrapped = {"model_type": "eagle", "model": forms.flat_config(), "truncated_vocab_size": 40}
    (tmp_path / "config.json").write_text(json.dumps(wrapped))
    assert read_checkpoint(tmp_path).config["num_attention_heads"] == toys.HEADS


def test_flags_of_eagle_config_are_lifted(tmp_path):
    """TensorRT-LLM's word for norm_output among them; ids stay where they are."""
    nested = forms.nested_ids(norm_before_fc=True, return_hidden_post_norm=True)
    path = forms.put(tmp_path, toys.draft_tensors("concat"), forms.flat_config(eagle_config=nested))
    config = read_checkpoint(path).config
    assert config["norm_before_fc"] and config["norm_output"] and config["use_aux_hidden_state"]
    assert "eagle_aux_hidden_state_layer_ids" not in config


@pytest.mark.parametrize(
    ("name", "value"), [("vocab_size", "96"), ("hidden_size", -1), ("rms_norm_eps", True), ("rope_theta", [1e4])]
)
def test_a_number_that_is_none(name, value, tmp_path):
    refused(forms.put(tmp_path, toys.draft_tensors(), forms.flat_config(**{name: value})), name, repr(value))


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_a_section_that_is_none(name, tmp_path):
    refused(forms.put(tmp_path, toys.draft_tensors(), forms.flat_config(**{name: "default"})), name, "'default'")


@pytest.mark.parametrize("names", [["state.0.exp_avg", "state.1.exp_avg"], []])
def test_tensors_of_no_model(names, tmp_path):
    path = forms.put(tmp_path, {name: torch.ones(2) for name in names}, forms.flat_config())
    refused(path, f"{len(names)} tensors, none of them a draft's")


@pytest.mark.parametrize(
    ("name", "shape"), [("fc.weight", (3,)), ("norm.weight", ()), ("d2t", (1, 40)), ("lm_head.weight", (0, 32))]
)
def test_a_tensor_of_another_rank(name, shape, tmp_path):
    tensors = toys.draft_tensors() | {name: torch.ones(shape)}
    refused(forms.put(tmp_path, tensors, forms.flat_config()), name, str(list(shape)))
