"""SpecForge (trainer), and what SGLang serves: flat config.json, `midlayer.`, no embedding, t2d and d2t.

Sources, in sgl-project/SpecForge: specforge/export/to_sglang.py (drops every name with "embed" in it; fc,
norm, lm_head, t2d and d2t are required), specforge/algorithms/model_providers.py (`resolve_eagle_capture_layers`: the
run's list, else that of `eagle_config`, else [1, n // 2 - 1, n - 4]; three ids from 0 up), specforge/offline_capture/
sglang_backend/capture.py (the list is handed to `set_eagle3_layers_to_capture` of the SGLang that pyproject.toml pins,
so that SGLang's rule for the target's class decides), specforge/application/planning.py (the run's ids are distinct).
"""

from __future__ import annotations

import numpy as np

from eagle3lib.ecosystems._base import TargetShape, Trainer
from eagle3lib.ecosystems._config_ids import NESTED, LayerIds
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, shares
from eagle3lib.ecosystems.sglang import ENGINE as SGLANG

#: The SGLang that captures its states.
PINNED = "0.5.14"


class SpecForgeTrainer(Trainer):
    """Three ids of which SGLang's rule for the target makes boundaries. The list is always given, so its own default
    is never SGLang's."""

    name = "specforge"
    label = "SpecForge"
    verified = "0.2.0"
    key = NESTED
    empty_is_default = False

    def asked(self, ids: LayerIds, target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        n = target.n_layers
        given = (1, n // 2 - 1, n - 4) if ids.ids is None else ids.ids
        return SGLANG.asked(LayerIds(given, ids.spelling), target, PINNED)

    def refused_list(self, ids: tuple[int, ...], target: TargetShape) -> str | None:
        if len(ids) == 3 and len(set(ids)) == 3 and min(ids) >= 0:
            return None
        return "it takes exactly three distinct ids from 0 up."

    def refused(self, boundary: int, target: TargetShape, version: str | None = None) -> str | None:
        return SGLANG.refused(boundary, target, PINNED)

    def refused_together(
        self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None
    ) -> str | None:
        if len(boundaries) == 3 and min(self.encode(boundaries, target)) >= 0:
            return None
        return f"takes exactly three ids from 0 up, and {list(boundaries)} are not three that such ids name."

    def encode(self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        return SGLANG.encode(boundaries, target, PINNED)

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return f"{self.as_of(version)}, which captures through SGLang: {SGLANG.note(target, PINNED)}"


TRAINER = SpecForgeTrainer()


class SpecForge(Form):
    name = "specforge"
    label = "SpecForge / SGLang flat"
    trainer = TRAINER

    def evidence(self, seen: Seen) -> list[str]:
        if not seen.begins("midlayer."):
            return []
        found = ["midlayer."]
        if seen.config.get("architectures") == ["LlamaForCausalLMEagle3"]:
            found.append("the architecture is LlamaForCausalLMEagle3")
        if "t2d" in seen.names and "embed_tokens.weight" not in seen.names:
            found.append("t2d and no embedding")
        if set(seen.eagle_config) & {"eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state"}:
            found.append("eagle_config")
        return found


FORM = SpecForge()


#: specforge/eval/evaluator.py, `_simulated_acc_len`; its truth is the teacher's argmax, here the recorded token.
METRICS = (
    Metric(
        "SpecForge",
        "eval/simulated_acc_len",
        "a_0 + a_0 a_1 + ...: a product of each position's own accuracy, as if they were independent",
        "all starts",
        False,
        lambda run: float(np.cumprod(shares(run.hits, run.starts)).sum()),
    ),
)
