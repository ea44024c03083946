"""NVIDIA NeMo Automodel (trainer): names below `model.`, `model.fc_norm.{i}.weight` on disk.

Source: NVIDIA-NeMo/Automodel, speculative/eagle (thread #2322 for the norms' names). Its config.json is flat.
"""

from __future__ import annotations

from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, shares


class NeMo(Form):
    name = "nemo"
    label = "NVIDIA NeMo"
    ids_mean = "outputs"

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
