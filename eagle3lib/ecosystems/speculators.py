"""speculators (trainer): id k is B(k), and dumps come from vLLM, so they are stored from low to high.

Sources, in vllm-project/speculators: models/utils.py (`resolve_target_layer_ids`), train/data.py (all states
but the last feed `fc`), scripts/launch_vllm.py (appends id n for the teacher); for the old list layout
data_generation/custom_worker.py and vllm_hidden_states_generator.py, both removed since.
"""

from __future__ import annotations

from typing import Any

from eagle3lib.ecosystems._base import TargetShape, Trainer
from eagle3lib.ecosystems._config_ids import LayerIds, default_trio
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, shares
from eagle3lib.errors import InputError


class Speculators(Trainer):
    """Id k is B(k), n among them. Ascending even where the list is not: training reads states as vLLM dumped them."""

    name = "speculators"
    label = "speculators"
    verified = "0.9.0"
    empty_is_default = False

    def refused_list(self, ids: tuple[int, ...], target: TargetShape) -> str | None:
        n = target.n_layers
        if ids and len(set(ids)) == len(ids) and all(0 <= i <= n for i in ids):
            return None
        return f"it wants distinct ids within 0 to {n} for a target of {n} blocks."

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return f"{self.as_of(version)}: id k is B(k), from low to high."


class OldSpeculators(Trainer):
    """Drafts of the data generation up to April 2026: id i is the output of block i, in its default too.

    The ids that dumps were made with name one state more, the teacher's.
    """

    name = "speculators_old"
    label = "speculators, old data generation"
    verified = "up to its removal in April 2026"
    numbered = False
    shift = 1
    empty_is_default = False

    def default(self, target: TargetShape) -> tuple[int, ...]:
        """[2, n // 2, n - 3] were taken as outputs of blocks, one later than everyone's default."""
        low, middle, high = default_trio(target.n_layers)
        return low + 1, middle + 1, high + 1

    def stored(self, ids: LayerIds, target: TargetShape) -> tuple[int, ...]:
        """The boundaries of a dump's states in stored order, by the ids that it was made with.

        The highest is the teacher's: n - 1 by default, and where n - 1 was left out the teacher is an earlier
        block. Early writers stored the state after block n - 1 behind the final norm.

        Raises:
            InputError: if an id is no block's.
        """
        n = target.n_layers
        listed = (*default_trio(n), n - 1) if ids.ids is None else ids.ids
        if not listed or not all(0 <= i < n for i in listed):
            raise InputError(f"The list layout takes ids within 0 to {n - 1}; found {list(listed)} ({ids.spelling}).")
        return tuple(sorted({i + 1 for i in listed}))

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return f"{self.as_of(version)}: id i is the output of block i, so B(i+1), from low to high."


TRAINER = Speculators()
OLD = OldSpeculators()


class SpeculatorsForm(Form):
    """Nested config.json, names without prefix; converted copies lift the layer's numbers and keep the rest."""

    name = "speculators"
    label = "speculators"
    trainer = TRAINER
    certain = True

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


FORM = SpeculatorsForm()
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
