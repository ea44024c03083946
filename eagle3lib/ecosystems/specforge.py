"""SpecForge (trainer), and what SGLang serves: flat config.json, `midlayer.`, no embedding, t2d and d2t.

Sources, in sgl-project/SpecForge: specforge/export/to_sglang.py (drops every name with "embed" in it; fc,
norm, lm_head, t2d and d2t are required), specforge/algorithms/model_providers.py (ids are outputs of layers).
"""

from __future__ import annotations

import numpy as np

from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, shares


class SpecForge(Form):
    name = "specforge"
    label = "SpecForge / SGLang flat"
    ids_mean = "outputs"

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
