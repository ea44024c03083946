"""The official EAGLE repository: `midlayer.`, `pytorch_model.bin` or safetensors, a Llama's config.json.

Sources, in SafeAILab/EAGLE: eagle/model/cnets.py (names; d2t holds offsets), eagle/model/ea_model.py
(`pytorch_model.bin` is tried before `model.safetensors`), eagle/traineagle3/main.py (the embedding is left
out on saving), eagle/traineagle3/modeling_llama_kv.py and eagle/model/modeling_llama_kv.py, modeling_qwen3_kv.py (the
states are those that enter blocks 2, n // 2 and n - 3, in one condition, so once each; no ids are read or written).
"""

from __future__ import annotations

from typing import Any

from eagle3lib.ecosystems._base import TargetShape, Trainer
from eagle3lib.ecosystems._config_ids import LayerIds, default_trio, unread
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, shares, tokens_a_round


class EagleTrainer(Trainer):
    """The same three boundaries always; the ids of any other choice do not exist."""

    name = "eagle"
    label = "official EAGLE"
    verified = "at cb7e084 of February 2026"
    numbered = False
    fixed = True
    key = "none"

    def read_ids(self, config: dict[str, Any]) -> LayerIds:
        """No place: every list there is is passed over."""
        return LayerIds(None, "fixed in its model code", unread(config, ""))

    def asked(self, ids: LayerIds, target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        return tuple(sorted(set(default_trio(target.n_layers))))

    def refused_together(
        self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None
    ) -> str | None:
        always = self.asked(LayerIds(None, ""), target)
        if boundaries == always:
            return None
        return f"captures B({'), B('.join(map(str, always))}) of this target and nothing else."

    def encode(self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        """No ids are needed."""
        return ()

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return f"{self.as_of(version)}: what enters blocks 2, n // 2 and n - 3, without ids."


TRAINER = EagleTrainer()


class Eagle(Form):
    name = "eagle"
    label = "official EAGLE"
    trainer = TRAINER
    renames = ((r"^midlayer\.(?!\d)", "layers.0."),)

    def evidence(self, seen: Seen) -> list[str]:
        if not seen.begins("midlayer."):
            return []
        found = ["midlayer."]
        if seen.config.get("architectures") == ["LlamaForCausalLM"]:
            found.append("the architecture is a plain Llama's")
        if any(file.suffix == ".bin" for file in seen.files):
            found.append("pytorch_model.bin")
        if "eagle_config" not in seen.config:
            found.append("no eagle_config")
        return found


FORM = Eagle()


#: eagle/evaluation/alpha.py and the maintainer's word in thread #191; new tokens over steps in eagle/model/ea_model.py,
#: whose logged index counts from 0.
METRICS = (
    Metric("EAGLE", "tau", "new tokens / verifications; papers: of a tree", "rounds", True, tokens_a_round),
    Metric(
        "EAGLE",
        "n-alpha",
        "drafts accepted after n accepted ones / drafts verified after n accepted ones: c_(n+1)",
        "rounds",
        None,
        lambda run: shares(run.accepted_at_least(), run.reached()),
    ),
)
