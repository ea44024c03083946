"""The official EAGLE repository: `midlayer.`, `pytorch_model.bin` or safetensors, a Llama's config.json.

Sources, in SafeAILab/EAGLE: eagle/model/cnets.py (names; d2t holds offsets), eagle/model/ea_model.py
(`pytorch_model.bin` is tried before `model.safetensors`), eagle/traineagle3/main.py (the embedding is left
out on saving). The three states are fixed in eagle/model/modeling_llama_kv.py: no ids are written.
"""

from __future__ import annotations

from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, shares, tokens_a_round


class Eagle(Form):
    name = "eagle"
    label = "official EAGLE"
    ids_mean = "default"
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
