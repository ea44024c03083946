"""llama.cpp: id k is B(k), in the list's own order, and always three of them.

Sources, in llama.cpp: conversion/llama.py (`LlamaModel.__init__` reads the top-level list of the draft's
config.json and nothing else, and writes it into the GGUF), src/models/eagle3.cpp (exactly three entries),
common/speculative.cpp (the captures) and `t_layer_inp`, `t_h_nextn` in src/models/.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle3lib.ecosystems._base import Engine, TargetShape
from eagle3lib.ecosystems._config_ids import TOP_LEVEL, LayerIds, default_trio, first_listed
from eagle3lib.errors import InputError

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


class LlamaCpp(Engine):
    name = "llama_cpp"
    label = "llama.cpp"
    verified = "as in llama-cpp-python 0.3.36"

    def as_of(self, version: str | None) -> str:
        return f"{self.label} {self.verified}" + (f", not read in {version}" if version else "")

    def read_ids(self, config: dict[str, Any]) -> LayerIds:
        """The top level only; the converter writes the default for an absent list, null and []."""
        return first_listed(config, (TOP_LEVEL,))

    def boundaries(self, ids: LayerIds, target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        captured = ids.ids or default_trio(target.n_layers)
        if problem := self.problem(captured, target, version):
            raise InputError(f"Cannot serve the ids {list(captured)} ({ids.spelling}): {problem}")
        return captured

    def problem(self, boundaries: Sequence[int], target: TargetShape, version: str | None = None) -> str | None:
        n = target.n_layers
        if target.architecture in _NO_LAYER_INPUTS:
            return f"llama.cpp exports no layer inputs for {target.architecture}, so fc has nothing to read."
        if len(boundaries) != 3:
            return f"llama.cpp takes exactly three states for fc, and these are {len(boundaries)}."
        for b in boundaries:
            if not isinstance(b, int) or not 0 <= b <= n:
                return f"llama.cpp stops on an id outside 0 to {n - 1}, and {b} is outside."
            if b == n and target.architecture not in _LAST_STATE:
                return (
                    f"llama.cpp does not capture B({n}) of this target: id {n} runs without an error, on "
                    f"Llama targets with zeros in that slot; the highest id that works is {n - 1}."
                )
        return None

    def encode(self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        return boundaries

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return (
            f"{self.as_of(version)}: id k is B(k) and the list's order is kept. "
            "The ids are stored in the GGUF, so convert the draft again."
        )


ENGINE = LlamaCpp()
