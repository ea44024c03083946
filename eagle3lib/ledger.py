"""Every tensor and every flag of a draft, accounted for from the header alone.

A tensor is used by the pass, unused and why, or missing and what stands in for it. A flag is honoured by the
pass, ignored by some engine, of no effect on the pass, or unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from eagle3lib.dialects import Checkpoint
from eagle3lib.ecosystems import ENGINES, Engine
from eagle3lib.ecosystems._reading import n_layers, short
from eagle3lib.quantised import CACHE_SCALES

_ATTENTION = r"layers\.\d+\.self_attn\."
#: Canonical names that a pass reads wherever they are, beside those of `expected_names`.
OPTIONAL = re.compile(
    r"embed_tokens\.weight|lm_head\.weight|d2t|fc\.bias|input_norm\.weight|fc_norm\.\d+\.weight"
    rf"|{_ATTENTION}[qk]_norm\.weight|{_ATTENTION}[a-z_]+_proj(?:_with_mqa)?\.bias|layers\.\d+\.mlp\.\w+_proj\.bias"
)
#: What stands in for an absent tensor in this workbook.
SUBSTITUTES = {
    "embed_tokens.weight": "the target's embedding",
    "lm_head.weight": "the target's head, cut to the draft vocabulary",
    "d2t": "t2d in ascending order, or the identity where the vocabularies are equal",
}
#: Reasons for known tensors that no pass reads.
UNUSED = (
    (r"t2d", "checked against d2t only"),
    (r"rope_freqs\.weight", "read as the rope's factors"),
    (r".*rotary_emb\.inv_freq", "the pass computes frequencies from config.json"),
    (r".*verifier_(lm_head|norm)\.weight|verifier_.*", "the teacher's, for training only"),
    (rf".*\.({'|'.join(CACHE_SCALES)})", "a scale of a server's key-value cache"),
)
#: Flags that the pass or the reading of the checkpoint depends on.
HONOURED = {
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "num_hidden_layers", "rms_norm_eps", "vocab_size", "draft_vocab_size", "target_hidden_size", "rope_theta",
    "rope_scaling", "rope_parameters", "partial_rotary_factor", "max_position_embeddings", "norm_before_residual",
    "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output", "attention_bias", "bias", "sliding_window",
    "use_sliding_window", "layer_types", "max_window_layers", "hidden_act", "q_lora_rank", "kv_lora_rank",
    "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "qk_head_dim", "use_aux_hidden_state",
    "eagle_aux_hidden_state_layer_ids", "layer_ids", "num_aux_hidden_states", "return_hidden_post_norm",
    "tie_word_embeddings", "rope_interleave",
}  # fmt: skip
#: Flags without effect on a pass: names, training, generation.
NO_EFFECT = {
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache", "initializer_range",
    "pretraining_tp", "attention_dropout", "auto_map", "mlp_bias", "speculators_config", "speculators_version",
    "speculators_model_type", "embed_requires_grad", "quantization_config", "unsloth_version", "return_dict",
    "output_hidden_states", "output_attentions", "is_encoder_decoder", "chunk_size_feed_forward", "id2label",
    "label2id", "problem_type", "target_model_type", "eagle_config", "transformer_layer_config",
    "next_layer_regular", "use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm",
    "parallel_draft_step", "parallel_draft_heads_num_layers",
    # Of a DeepSeek target's experts, as copied into a draft's config; the draft's own mlp is dense.
    "moe_intermediate_size", "moe_layer_freq", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
    "first_k_dense_replace", "n_group", "topk_group", "topk_method", "scoring_func", "norm_topk_prob",
    "routed_scaling_factor", "output_router_logits", "aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers",
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """What became of one tensor. `stored` is its name in the file, None where it is missing."""

    name: str
    stored: str | None
    shape: tuple[int, ...] | None
    dtype: str | None
    status: Literal["used", "unused", "missing"]
    note: str = ""


@dataclass(frozen=True)
class FlagEntry:
    """What became of one entry of config.json; `path` has dots where sections are nested."""

    path: str
    value: Any
    status: Literal["honoured", "ignored", "no effect", "unknown"]
    note: str = ""

    @property
    def text(self) -> str:
        """The value as a table shows it."""
        return short(self.value)


def expected_names(checkpoint: Checkpoint) -> list[str]:
    """Canonical names that a pass of this shape cannot do without, whether or not the file has them."""
    tensors = checkpoint.tensors
    without_fc = "fc.weight" not in tensors and checkpoint.config.get("use_aux_hidden_state") is False
    names = ["norm.weight"] if without_fc else ["fc.weight", "norm.weight"]
    for i in range(n_layers(checkpoint)):
        layer, attention = f"layers.{i}.", f"layers.{i}.self_attn."
        latent = attention + "kv_a_proj_with_mqa.weight" in tensors
        low_rank = {attention + "q_a_proj.weight", attention + "q_b_proj.weight"} & tensors.keys()
        parts = ("q_proj", "k_proj", "v_proj", "o_proj")
        if latent:
            parts = ("q_a_proj", "q_a_layernorm", "q_b_proj") if low_rank else ("q_proj",)
            parts += ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")
        names += [f"{attention}{part}.weight" for part in parts]
        names += [layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight"]
        names += [layer + "hidden_norm.weight"] * (i == 0)
        names += [f"{layer}mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
    return names


def tensor_ledger(checkpoint: Checkpoint) -> tuple[TensorEntry, ...]:
    """Every tensor of the files, and every one that the pass wants and they lack, by name."""
    wanted = expected_names(checkpoint)
    entries = []
    for name, info in checkpoint.tensors.items():
        used = name in wanted or OPTIONAL.fullmatch(name) is not None
        why = next((why for pattern, why in UNUSED if re.fullmatch(pattern, name)), "no part of an EAGLE-3 pass")
        status = "used" if used else "unused"
        entries.append(TensorEntry(name, info.name, info.shape, info.dtype, status, "" if used else why))
    for name, info in checkpoint.outside.items():
        note = f"outside {checkpoint.prefix or 'the draft'}: the target's own"
        entries.append(TensorEntry(name, name, info.shape, info.dtype, "unused", note))
    head = checkpoint.tensors.get("lm_head.weight")
    whole = head is not None and head.shape[0] == checkpoint.config.get("vocab_size")  # needs no map
    for name in [*wanted, *SUBSTITUTES]:
        if name not in checkpoint.tensors and not (whole and name == "d2t"):
            promised = "; the index promises it" if name in checkpoint.promised else ""
            entries.append(TensorEntry(name, None, None, None, "missing", SUBSTITUTES.get(name, "nothing") + promised))
    return tuple(sorted(entries, key=lambda entry: entry.name))


def flag_ledger(checkpoint: Checkpoint, engines: list[Engine] | None = None) -> tuple[FlagEntry, ...]:
    """Every entry of config.json, in the file's order, with the engines that ignore it."""
    engines = list(ENGINES.values()) if engines is None else engines
    ignoring: dict[str, list[str]] = {}
    for engine in engines:
        for said in engine.rules(checkpoint).ignored(checkpoint):
            ignoring.setdefault(said.about, []).append(engine.label)
    entries = []
    for path, value in _entries(checkpoint.raw_config):
        key = path.rsplit(".", 1)[-1]
        # The rope's own section is known as a whole; so are sections about the training.
        if path.split(".")[0] in ("speculators_config", "quantization_config"):
            entries.append(FlagEntry(path, value, "no effect"))
        elif key in ignoring:
            names = dict.fromkeys(ignoring[key])
            entries.append(FlagEntry(path, value, "ignored", f"ignored by {', '.join(names)}"))
        elif key in HONOURED:
            entries.append(FlagEntry(path, value, "honoured"))
        elif key in NO_EFFECT or key.startswith("_") or key.endswith("_token_id"):
            entries.append(FlagEntry(path, value, "no effect"))
        else:
            entries.append(FlagEntry(path, value, "unknown", "no system read so far has it"))
    return tuple(entries)


def _entries(config: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Key paths and values; the sections that hold flags of the pass are opened."""
    for key, value in config.items():
        opened = isinstance(value, dict) and key in ("eagle_config", "transformer_layer_config", "model")
        if opened:
            yield from _entries(value, f"{before}{key}.")
        else:
            yield before + key, value
