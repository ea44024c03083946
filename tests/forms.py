"""The toy draft in every form that people have, written from the same numbers and without this library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import torch
import toys
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]


def flat_config(architecture: str = "LlamaForCausalLMEagle3", **flags: object) -> dict:
    """config.json at one level."""
    layer = toys.layer_config() | {"num_hidden_layers": 1, "architectures": [architecture]}
    return layer | {"draft_vocab_size": toys.DRAFT_VOCABULARY} | flags


def nested_ids(**more: object) -> dict:
    """`eagle_config` with ids that are outputs of layers: one less than the boundaries."""
    return {"eagle_aux_hidden_state_layer_ids": [b - 1 for b in toys.SLOTS], "use_aux_hidden_state": True} | more


def put(folder: Path, tensors: Mapping[str, Tensor], config: dict, file: str = "model.safetensors") -> Path:
    """A folder with one weight file and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    if file.endswith(".safetensors"):
        save_file(tensors, folder / file, metadata={"format": "pt"})
    else:
        torch.save(tensors, folder / file)
    return folder


def put_shards(
    folder: Path, tensors: Mapping[str, Tensor], config: dict, cuts: int, suffix: str = "safetensors"
) -> Path:
    """Dealt over `cuts` files with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    weight_map = {}
    for i in range(cuts):
        part = {name: tensors[name].contiguous() for name in list(tensors)[i::cuts]}
        file = f"{stem}-{i + 1:05}-of-{cuts:05}.{suffix}"
        save_file(part, folder / file) if suffix == "safetensors" else torch.save(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def midlayer(tensors: Mapping[str, Tensor], numbered: bool = False) -> Tensors:
    """EAGLE's name for the layer, and Megatron's for several."""
    new = "midlayer.0." if numbered else "midlayer."
    return {name.replace("layers.0.", new): tensor for name, tensor in tensors.items()}


def without(tensors: Mapping[str, Tensor], *names: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def unsorted(tensors: Mapping[str, Tensor], seed: int = 7) -> Tensors:
    """Draft ids in another order, the head's rows with them, and no t2d: as ModelOpt numbers by frequency."""
    order = torch.randperm(toys.DRAFT_VOCABULARY, generator=toys.generator(seed))
    ids = torch.arange(toys.DRAFT_VOCABULARY)
    target_ids = (ids + tensors["d2t"])[order]
    moved = {"d2t": target_ids - ids, "lm_head.weight": tensors["lm_head.weight"][order]}
    return without(tensors, "t2d") | moved


def fused(tensors: Mapping[str, Tensor]) -> Tensors:
    """q, k and v in one tensor, gate and up in another."""
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    parts = [attention + f"{x}_proj.weight" for x in "qkv"], [mlp + f"{x}_proj.weight" for x in ("gate", "up")]
    rest = without(tensors, *parts[0], *parts[1])
    rest[attention + "qkv_proj.weight"] = torch.cat([tensors[name] for name in parts[0]])
    rest[mlp + "gate_up_proj.weight"] = torch.cat([tensors[name] for name in parts[1]])
    return rest


def prefixed(tensors: Mapping[str, Tensor], prefix: str, bare: tuple[str, ...] = ()) -> Tensors:
    return {name if name in bare else prefix + name: tensor for name, tensor in tensors.items()}


def eagle(folder: Path, tensors: Tensors, file: str = "pytorch_model.bin") -> Path:
    return put(folder, midlayer(tensors), flat_config("LlamaForCausalLM"), file)


def specforge(folder: Path, tensors: Tensors) -> Path:
    kept = without(midlayer(tensors), "embed_tokens.weight")
    return put(folder, kept, flat_config(eagle_config=nested_ids()))


def modelopt(folder: Path, tensors: Tensors) -> Path:
    kept = without(unsorted(tensors), "embed_tokens.weight")
    config = flat_config(eagle_config=nested_ids(use_last_layernorm=True, next_layer_regular=True))
    return put(folder, kept, config)


def modelopt_megatron(folder: Path, tensors: Tensors) -> Path:
    config = flat_config(eagle_config=nested_ids(use_last_layernorm=True, next_layer_regular=True))
    return put(folder, midlayer(unsorted(tensors), numbered=True), config)


def nemo(folder: Path, tensors: Tensors) -> Path:
    return put(folder, prefixed(tensors, "model."), flat_config(eagle_config=nested_ids()))


def vllm(folder: Path, tensors: Tensors) -> Path:
    ids = {"eagle_aux_hidden_state_layer_ids": list(toys.SLOTS)}
    return put(folder, tensors, flat_config("Eagle3LlamaForCausalLM", **ids))


def tensorrt_llm(folder: Path, tensors: Tensors) -> Path:
    named = prefixed(midlayer(fused(tensors)), "model.", bare=("lm_head.weight", "d2t", "t2d"))
    return put(folder, named, flat_config("EAGLE3LlamaForCausalLM"))


#: llama.cpp's names (gguf-py/gguf/constants.py, MODEL_TENSOR_NAMES), written out.
GGUF_NAMES = {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "layers.0.hidden_norm.weight": "blk.0.attn_norm_2.weight",
    "layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


def llama_cpp(
    folder: Path, tensors: Tensors, architecture: str = "eagle3", factors: Tensor | None = None, scaling: float = 0.0
) -> Path:
    """As conversion/llama.py writes it: q and k with the halves of a head interleaved, d2t absolute, no t2d."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "draft.gguf", architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(toys.HIDDEN)
    writer.add_feed_forward_length(toys.INTERMEDIATE)
    writer.add_head_count(toys.HEADS)
    writer.add_head_count_kv(toys.KV_HEADS)
    writer.add_rope_dimension_count(toys.HEAD_DIM)
    writer.add_layer_norm_rms_eps(toys.EPS)
    writer.add_rope_freq_base(toys.ROPE_THETA)
    writer.add_vocab_size(toys.VOCABULARY)
    writer.add_array(f"{architecture}.target_layers", list(toys.SLOTS))
    writer.add_uint32(f"{architecture}.target_hidden_size", toys.HIDDEN)
    writer.add_bool(f"{architecture}.norm_before_fc", "input_norm.weight" in tensors)
    writer.add_token_list([f"t{i}" for i in range(toys.VOCABULARY)])
    for name, theirs in GGUF_NAMES.items():
        if name not in tensors:
            continue
        data = tensors[name]
        for projection, heads in (("q_proj", toys.HEADS), ("k_proj", toys.KV_HEADS)):
            if projection in name:
                data = data.reshape(heads, 2, toys.HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(data.shape)
        writer.add_tensor(theirs, data.contiguous().numpy())
    d2t = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    if factors is not None:  # llama3's, one a frequency
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling)
    writer.add_tensor("d2t", d2t.numpy(), raw_dtype=gguf.GGMLQuantizationType.I64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder


#: Form's name in `ecosystems.FORMS` → how it is written.
WRITERS: dict[str, Callable[[Path, Tensors], Path]] = {
    "eagle": eagle,
    "specforge": specforge,
    "speculators": toys.write_draft,
    "modelopt": modelopt,
    "modelopt_megatron": modelopt_megatron,
    "nemo": nemo,
    "vllm": vllm,
    "tensorrt_llm": tensorrt_llm,
    "llama_cpp": llama_cpp,
}
