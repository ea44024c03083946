"""TorchSpec (trainer): id i is the output of block i; the run's own list counts, the draft's is written for engines.

Sources, in lightseekorg/TorchSpec: torchspec/utils/misc.py (the default [1, n // 2 - 1, n - 4]),
torchspec/models/target/eagle3_target_model.py (hooks on the outputs of blocks, in the list's order, an empty list
refused), torchspec/inference/engine/vllm_engine.py (the ids plus one for vLLM, which sorts them, and n for the teacher)
and sgl_engine.py (as they are, through patches/sglang, where every class adds one), tests/test_vllm_engine.py,
configs/draft_models/kimi_k25_eagle3_mla.json (the list in `eagle_config`), tools/convert_to_hf.py (an export of a
`kimi_k2` draft for vLLM has one added to its ids).
"""

from __future__ import annotations

from eagle3lib.ecosystems._base import TargetShape, Trainer
from eagle3lib.ecosystems._config_ids import NESTED, not_ascending


class TorchSpec(Trainer):
    """The list `inference.aux_hidden_states_layers` of a run; what is read here is its copy in the draft's config."""

    name = "torchspec"
    label = "TorchSpec"
    verified = "at 6f21829 of April 2026"
    numbered = False
    key = NESTED
    shift = 1
    empty_is_default = False

    def refused_list(self, ids: tuple[int, ...], target: TargetShape) -> str | None:
        return not_ascending(ids)

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return (
            f"{self.as_of(version)}: id i is the output of block i, so B(i+1), if the run's own list was this one; a"
            " kimi_k2 draft exported for vLLM has one added already."
        )


TRAINER = TorchSpec()
