"""NVIDIA NeMo Automodel (trainer): names below `model.`, `model.fc_norm.{i}.weight` on disk.

Sources, in NVIDIA-NeMo/Automodel: components/speculative/eagle (thread #2322 for the norms' names; config.json is
flat), eagle/target.py (`default_eagle3_aux_layer_ids`, `validate_eagle3_aux_layer_ids`: three distinct ids of blocks,
hooks on their outputs, concatenated in the list's order), eagle/vllm_runner.py (the ids plus one, since vLLM's id k is
B(k); the last block refused) and recipes/llm/train_eagle3.py (`aux_layer_ids` of the recipe; config.json gets none).
"""

from __future__ import annotations

from eagle3lib.ecosystems._base import TargetShape, Trainer
from eagle3lib.ecosystems._config_ids import not_ascending
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, shares


class NeMoTrainer(Trainer):
    """Id i is the output of block i. Its vLLM backend refuses B(n), its others take it."""

    name = "nemo"
    label = "NeMo Automodel"
    verified = "at 36044ad of August 2026"
    numbered = False
    key = "aux_layer_ids"
    shift = 1
    empty_is_default = False

    def refused_list(self, ids: tuple[int, ...], target: TargetShape) -> str | None:
        if len(ids) != 3 or len(set(ids)) != 3:
            return "it takes exactly three distinct ids."
        return not_ascending(ids)

    def refused_together(
        self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None
    ) -> str | None:
        return None if len(boundaries) == 3 else f"takes exactly three states for fc, and these are {len(boundaries)}."

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return f"{self.as_of(version)}: id i is the output of block i, so B(i+1); ids stand in the recipe alone."


TRAINER = NeMoTrainer()


class NeMo(Form):
    name = "nemo"
    label = "NVIDIA NeMo"
    trainer = TRAINER

    def evidence(self, seen: Seen) -> list[str]:
        if seen.prefix != "model." or not seen.begins("layers.0."):
            return []
        return ["model.", "layers.0.", *(["fc_norm below model."] if seen.begins("fc_norm.") else [])]


FORM = NeMo()


#: nemo_automodel/components/speculative/eagle, evaluation after training.
METRICS = (
    Metric(
        "NeMo",
        "tau_sim",
        "1 + sum over k of (first k right / starts with k supervised tokens): joint counts, not products",
        "all starts",
        True,
        lambda run: 1 + sum(shares(run.prefix_hits, run.starts)),
    ),
)
