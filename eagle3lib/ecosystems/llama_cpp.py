"""llama.cpp: id k is B(k), in the list's own order, and always three of them.

Sources, in llama.cpp: conversion/llama.py (`LlamaModel.__init__` reads the top-level list of the draft's
config.json and nothing else, and writes it into the GGUF; `permute` of q and k; d2t plus its index),
src/models/eagle3.cpp (exactly three entries), common/speculative.cpp (the captures) and `t_layer_inp`,
`t_h_nextn` in src/models/.
"""

from __future__ import annotations

import re
from typing import Any

from eagle3lib.ecosystems._base import Beyond, Engine, TargetShape
from eagle3lib.ecosystems._config_ids import TOP_LEVEL
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, share, shares
from eagle3lib.ecosystems._reading import Header, Rules, is_latent, n_layers, n_slots
from eagle3lib.ecosystems.llama_cpp_flags import FLAGS
from eagle3lib.ecosystems.speculators import TRAINER as SPECULATORS
from eagle3lib.errors import InputError
from eagle3lib.gguf_file import GGUFFile

#: Targets whose graph exports no layer inputs: the engine stops with "layer input tensor is null".
_NO_LAYER_INPUTS = {
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Gemma3ForCausalLM",
    "Glm4MoeForCausalLM",
    "KimiK25ForConditionalGeneration",
    "Qwen2ForCausalLM",
}
#: Targets that export the un-normed last state, which id n asks for.
_LAST_STATE = {"GptOssForCausalLM"}

#: Names under which conversion/llama.py takes a draft.
_ARCHITECTURES = {
    "LlamaForCausalLM",
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3Speculator",
    "Eagle3DraftModel",
}


class Gguf(Form):
    """The converter's file: names of its own, q and k rows interleaved, d2t as absolute target ids."""

    name = "llama_cpp"
    label = "llama.cpp GGUF"
    trainer = SPECULATORS  # the converter takes speculators' list, and keeps it
    certain = True
    renames = (
        (r"^token_embd\.", "embed_tokens."),
        (r"^output_norm\.", "norm."),
        (r"^output\.", "lm_head."),
        (r"^enc\.output_norm\.", "input_norm."),
        (r"^blk\.(\d+)\.attn_norm\.", r"layers.\1.input_layernorm."),
        (r"^blk\.(\d+)\.attn_norm_2\.", r"layers.\1.hidden_norm."),
        (r"^blk\.(\d+)\.attn_([qkv])\.", r"layers.\1.self_attn.\2_proj."),
        (r"^blk\.(\d+)\.attn_output\.", r"layers.\1.self_attn.o_proj."),
        (r"^blk\.(\d+)\.ffn_norm\.", r"layers.\1.post_attention_layernorm."),
        (r"^blk\.(\d+)\.ffn_(gate|up|down)\.", r"layers.\1.mlp.\2_proj."),
    )

    def evidence(self, seen: Seen) -> list[str]:
        return ["GGUF"] * 4 if any(file.suffix == ".gguf" for file in seen.files) else []


def gguf_config(file: GGUFFile) -> dict[str, Any]:
    """config.json's words for the header of a draft in GGUF.

    Raises:
        InputError: if the file is of another architecture or lacks a number.
    """
    family = file.value("general.architecture")
    if family != "eagle3":
        raise InputError(f"Expected an EAGLE-3 draft in {file.path}, found a GGUF of architecture {family!r}.")
    found = {name: file.value(f"{family}.{key}") for name, key in _KEYS.items() if file.has(f"{family}.{key}")}
    return (
        {"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]} | found | {"rope_parameters": _rope(file)}
    )


_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "rope.dimension_count",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
    TOP_LEVEL: "target_layers",
    "target_hidden_size": "target_hidden_size",
    "norm_before_residual": "norm_before_residual",
    "norm_before_fc": "norm_before_fc",
}


def _rope(file: GGUFFile) -> dict[str, Any]:
    """Rope in transformers' words. Factors of the llama3 type lie in a tensor, one a frequency.

    theta_i = position / (factor_i · base^(2i/d)) is what `longrope` computes of equal short and long factors.
    """
    theta = file.value("eagle3.rope.freq_base") if file.has("eagle3.rope.freq_base") else 10000.0
    if "rope_freqs.weight" in file.shapes:
        factors = file.read("rope_freqs.weight").tolist()
        return {
            "rope_type": "longrope", "rope_theta": theta, "short_factor": factors, "long_factor": factors,
            "factor": 1.0, "attention_factor": 1.0,
            "original_max_position_embeddings": file.value("eagle3.context_length"),
        }  # fmt: skip
    kind = file.value("eagle3.rope.scaling.type") if file.has("eagle3.rope.scaling.type") else "none"
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    scaling = {"rope_type": kind, "rope_theta": theta, "factor": file.value("eagle3.rope.scaling.factor")}
    original = "eagle3.rope.scaling.original_context_length"
    return scaling | ({"original_max_position_embeddings": file.value(original)} if file.has(original) else {})


class LlamaCpp(Engine):
    flags = FLAGS
    name = "llama_cpp"
    label = "llama.cpp"
    verified = "as in llama-cpp-python 0.3.36"
    numbered = False
    keeps_order = True
    temperature_last = True  # common/common.h, the default order of samplers

    def refused(self, boundary: int, target: TargetShape, version: str | None = None) -> str | None:
        n = target.n_layers
        if target.architecture in _NO_LAYER_INPUTS:
            return f"exports no layer inputs for {target.architecture}, so fc has nothing to read."
        if boundary == n and target.architecture not in _LAST_STATE:
            return (
                f"does not capture B({n}) of this target: id {n} runs without an error and feeds that slot what lies in"
                f" the output buffer, zeros at first; the highest id that works is {n - 1}."
            )
        return super().refused(boundary, target, version)

    def refused_together(
        self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None
    ) -> str | None:
        return f"takes exactly three states for fc, and these are {len(boundaries)}." if len(boundaries) != 3 else None

    def rules(self, draft: Header) -> Rules:
        """conversion/llama.py and src/models/eagle3.cpp."""
        drops = [(r"t2d", "the converter leaves it out")]
        return Rules(
            {
                "norm_output": (False, "the state fed back is always the un-normed one"),
                "sliding_window": (None, "the draft's attention has no window"),
            },
            drops,
            (
                (r"embed_tokens\.weight", "the target's embedding"),
                (r"lm_head\.weight", "the target's head"),
                (r"d2t", "the draft's ids taken as the target's"),
            ),
        )

    def stops(self, draft: Header) -> list[str]:
        said = []
        named = next(iter(draft.config.get("architectures") or []), None)
        if named not in _ARCHITECTURES:
            said.append(f"its converter reads the architecture {named} by another model's rules")
        if n_layers(draft) > 1:
            said.append("it takes one draft layer")
        if is_latent(draft):
            said.append("it has no latent attention in drafts")
        if n_slots(draft) not in (None, 3):
            said.append(f"it takes three states, and fc takes {n_slots(draft)}")
        odd = [n for n in draft.tensors if re.search(r"[qk]_norm\.|\.bias$|^fc_norm\.", n)]
        if odd:
            said.append(f"its converter has no name for {odd[0]}" + (f" and {len(odd) - 1} more" if odd[1:] else ""))
        if "input_norm.weight" in draft.tensors and not draft.raw_config.get("norm_before_fc"):
            said.append("input_norm.weight counts one tensor too many where config.json lacks norm_before_fc: true")
        if draft.config.get("draft_vocab_size") is None and "fc.weight" in draft.tensors:
            said.append("without draft_vocab_size its converter takes the draft for a plain Llama")
        return said

    def beyond(self, limit: int, version: str | None = None) -> Beyond:
        """common/speculative.cpp (the draft's `n_ctx` is the target's), ggml's rope, src/llama-context.cpp."""
        return Beyond(
            "served",
            f"{self.label} gives the draft the target's context and computes every angle when it needs it; a log line"
            f" says that n_ctx_seq is more than n_ctx_train ({limit}).",
            "",
        )

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return (
            f"{self.as_of(version)}: id k is B(k) and the list's order is kept. "
            "The ids are stored in the GGUF, so convert the draft again."
        )


FORM = Gguf()
ENGINE = LlamaCpp()


#: tools/server/server-context.cpp. Drafts are shortened near the token limit, and no draft is made for the last token.
METRICS = (
    Metric(
        "llama.cpp",
        "mean acceptance length",
        "1 + accepted drafts / rounds with a draft",
        "rounds",
        True,
        lambda run: 1 + share(run.all_accepted.sum(), run.rounds),
    ),
    Metric(
        "llama.cpp",
        "acceptance per position",
        "rounds with at least k drafts accepted / rounds with a draft: survival S_k",
        "rounds",
        None,
        lambda run: shares(run.accepted_at_least(), [run.rounds] * run.steps),
    ),
)
