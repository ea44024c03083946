"""NVIDIA ModelOpt (trainer): two exports, both without t2d and with draft ids in order of frequency.

Sources, in NVIDIA/Model-Optimizer: modelopt/torch/export/plugins/hf_spec_export.py (Hugging Face export:
`layers.0.`, no embedding), plugins/mcore_llama.py (Megatron export: `midlayer.` or `midlayer.{i}.`, embedding
kept), plugins/hf_spec_configs.py (the keys of `eagle_config`). d2t is an offset but not ascending: never
derived from a mask.

Layer ids: modelopt/torch/speculative/plugins/hf_eagle.py (`default_eagle_aux_layer_ids`; a hook on the output of each
block whose number is in the list, so from low to high and once each; an empty list is replaced by the default) and
megatron_eagle.py (the same of `layer_number - 1`); examples/speculative_decoding/collect_hidden_states/common.py and
compute_hidden_states_hf.py (the same of dumps, ids within 0 to n - 1), and compute_hidden_states_vllm.py, which hands
the same numbers to vLLM, where id k is B(k). tools/launcher/.../hf_streaming_eagle3.yaml adds one for vLLM.
"""

from __future__ import annotations

from eagle3lib.ecosystems._base import TargetShape, Trainer
from eagle3lib.ecosystems._config_ids import NESTED
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems.vllm import ENGINE as VLLM


class ModelOpt(Trainer):
    """Trained online, by streaming, or on dumps of Hugging Face or TensorRT-LLM: id i is the output of block i."""

    name = "modelopt"
    label = "ModelOpt"
    verified = "at a2fbac7 of August 2026"
    numbered = False
    key = NESTED
    shift = 1

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return f"{self.as_of(version)}: id i is the output of block i, so B(i+1), sorted."


class ModelOptOnVllm(Trainer):
    """Trained on dumps made with vLLM by ModelOpt's own script: the draft's ids were taken as vLLM's, id k is B(k)."""

    name = "modelopt_vllm"
    label = "ModelOpt on vLLM dumps"
    verified = "at a2fbac7 of August 2026"
    numbered = False
    key = NESTED

    def default(self, target: TargetShape) -> tuple[int, ...]:
        """The numbers of ModelOpt's default, which the script wants spelt out."""
        n = target.n_layers
        return 1, n // 2 - 1, n - 4

    def reach(self, target: TargetShape) -> range:
        """Ids of blocks only; n is added for the teacher."""
        return range(target.n_layers)

    def refused(self, boundary: int, target: TargetShape, version: str | None = None) -> str | None:
        return super().refused(boundary, target) or VLLM.refused(boundary, target)

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return f"{self.as_of(version)}: ids are handed to vLLM as they are, so id k is B(k), one below ModelOpt's rule."


TRAINER = ModelOpt()
ON_VLLM = ModelOptOnVllm()

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
    trainer = TRAINER

    def evidence(self, seen: Seen) -> list[str]:
        common = _common(seen)
        if not seen.begins("layers.0.") or seen.prefix not in ("", "eagle_module.") or not common:
            return []
        return ["layers.0.", *common, *(["eagle_module."] if seen.prefix else [])]


class Megatron(Form):
    name = "modelopt_megatron"
    label = "NVIDIA ModelOpt, Megatron export"
    trainer = TRAINER
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
