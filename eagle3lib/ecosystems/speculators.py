"""speculators (trainer): id k is B(k), and dumps come from vLLM, so they are stored from low to high.

Sources, in vllm-project/speculators: models/utils.py (`resolve_target_layer_ids`), train/data.py (all states
but the last feed `fc`), scripts/launch_vllm.py (appends id n for the teacher); for the old list layout
data_generation/custom_worker.py and vllm_hidden_states_generator.py, both removed since.
"""

from __future__ import annotations

from typing import Any, Literal

from eagle3lib.ecosystems._base import TargetShape, Trainer
from eagle3lib.ecosystems._config_ids import TOP_LEVEL, LayerIds, default_trio, read_at, unread
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, shares
from eagle3lib.errors import InputError


class SpeculatorsForm(Form):
    """Nested config.json, names without prefix; converted copies lift the layer's numbers and keep the rest."""

    name = "speculators"
    label = "speculators"
    ids_mean = "boundaries"

    def evidence(self, seen: Seen) -> list[str]:
        nested = "transformer_layer_config" in seen.config
        found = ["transformer_layer_config"] * nested + ["speculators_model_type"] * (
            "speculators_model_type" in seen.config
        )
        return [*found, "layers.0."] if found and seen.begins("layers.0.") else found

    def flat_config(self, config: dict[str, Any]) -> dict[str, Any] | None:
        """The layer's numbers lie in `transformer_layer_config`, the pass's flags beside it."""
        layer = config.get("transformer_layer_config")
        if not isinstance(layer, dict):
            return None
        return {**layer, **{key: value for key, value in config.items() if key != "transformer_layer_config"}}


class Speculators(Trainer):
    name = "speculators"
    label = "speculators"
    verified = "0.9.0"

    def read_ids(self, config: dict[str, Any]) -> LayerIds:
        """The top level only; absent and null stand for the default, [] is refused later."""
        found = read_at(config, TOP_LEVEL)
        return LayerIds(found.ids, found.spelling, unread(config, TOP_LEVEL))

    def boundaries(self, ids: LayerIds, target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        """Ascending even where the list is not: training reads states in the order vLLM dumped them."""
        n = target.n_layers
        listed = default_trio(n) if ids.ids is None else ids.ids
        if not listed or not all(0 <= i <= n for i in listed) or len(set(listed)) != len(listed):
            raise InputError(
                f"{self.label} wants distinct ids within 0 to {n} for a target of {n} blocks; "
                f"found {list(listed)} ({ids.spelling})."
            )
        return tuple(sorted(listed))

    def dump_boundaries(
        self, layout: Literal["current", "list"], ids: LayerIds, target: TargetShape
    ) -> tuple[int, ...]:
        """`ids` are those the dump was made with.

        current: the ids and n, once. list: states after block i, so B(i+1), and nothing is appended: the
        highest id is the teacher's, n-1 by default, and where n-1 was left out the teacher is an earlier
        block. Early writers of the list layout stored the state after block n-1 behind the final norm.
        """
        n = target.n_layers
        if layout == "current":
            return tuple(sorted({*self.boundaries(ids, target), n}))
        listed = (*default_trio(n), n - 1) if ids.ids is None else ids.ids
        if not listed or not all(0 <= i < n for i in listed):
            raise InputError(f"The list layout takes ids within 0 to {n - 1}; found {list(listed)} ({ids.spelling}).")
        return tuple(sorted({i + 1 for i in listed}))


FORM = SpeculatorsForm()
TRAINER = Speculators()


#: models/metrics.py, `compute_accuracy_single_step`; its truth is a teacher's argmax over the draft vocabulary and its
#: positions are the trainer's (see `training`), here the recorded token and the starts of rounds.
METRICS = (
    Metric(
        "speculators",
        "full_acc",
        "right at every step up to k / targets of step k: S_(k+1)",
        "all starts",
        None,
        lambda run: shares(run.prefix_hits, run.starts),
    ),
    Metric(
        "speculators",
        "cond_acc",
        "right at every step up to k / right at every step before k: c_(k+1)",
        "all starts",
        None,
        lambda run: shares(run.prefix_hits, [run.starts[0], *run.prefix_hits[:-1]]),
    ),
)
