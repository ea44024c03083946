"""NVIDIA ModelOpt (trainer): two exports, both without t2d and with draft ids in order of frequency.

Sources, in NVIDIA/Model-Optimizer: modelopt/torch/export/plugins/hf_spec_export.py (Hugging Face export:
`layers.0.`, no embedding), plugins/mcore_llama.py (Megatron export: `midlayer.` or `midlayer.{i}.`, embedding
kept), plugins/hf_spec_configs.py (the keys of `eagle_config`). d2t is an offset but not ascending: never
derived from a mask.
"""

from __future__ import annotations

from eagle3lib.ecosystems._form import Form, Seen

_KEYS = {
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
}


def _common(seen: Seen) -> list[str]:
    found = []
    if _KEYS & set(seen.eagle_config):
        found.append("ModelOpt's keys in eagle_config")
    if "d2t" in seen.names and "t2d" not in seen.names:
        found.append("d2t without t2d")
    return found


class Huggingface(Form):
    name = "modelopt"
    label = "NVIDIA ModelOpt, Hugging Face export"
    ids_mean = "outputs"

    def evidence(self, seen: Seen) -> list[str]:
        common = _common(seen)
        if not seen.begins("layers.0.") or seen.prefix not in ("", "eagle_module.") or not common:
            return []
        return ["layers.0.", *common, *(["eagle_module."] if seen.prefix else [])]


class Megatron(Form):
    name = "modelopt_megatron"
    label = "NVIDIA ModelOpt, Megatron export"
    ids_mean = "outputs"
    renames = ((r"^midlayer\.(\d+)\.", r"layers.\1."),)

    def evidence(self, seen: Seen) -> list[str]:
        numbered = [name for name in seen.names if name.startswith("midlayer.") and name.split(".")[1].isdigit()]
        common = _common(seen)
        if not seen.begins("midlayer.") or not (common or numbered):
            return []
        own_embedding = ["an embedding of its own"] if "embed_tokens.weight" in seen.names and common else []
        return ["midlayer.", *(["numbered layers"] if numbered else []), *common, *own_embedding]


FORM = Huggingface()
MEGATRON = Megatron()
