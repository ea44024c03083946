"""Figures: every function returns a matplotlib figure whose title states the finding."""

from eagle3lib.plots.costs import earned, over_batches, rounds, speeds_by_shape, widenings
from eagle3lib.plots.lengths import along_sequence, lengths, round_lengths, survival
from eagle3lib.plots.repairs import ladder, recovery
from eagle3lib.plots.served import MOST_SERVERS, served_survival
from eagle3lib.plots.states import norm_profile, placement_map, readings, state_differences
from eagle3lib.plots.weights import slot_columns, weight_scales
from eagle3lib.plots.where import by_slice, over_training, token_classes, what_a_draft_token_buys
from eagle3lib.plots.wirings import accuracy_by_truth, bench, ranking, slot_heat_map

__all__ = [
    "MOST_SERVERS",
    "accuracy_by_truth",
    "along_sequence",
    "bench",
    "by_slice",
    "earned",
    "ladder",
    "lengths",
    "norm_profile",
    "over_batches",
    "over_training",
    "placement_map",
    "ranking",
    "readings",
    "recovery",
    "round_lengths",
    "rounds",
    "served_survival",
    "slot_columns",
    "slot_heat_map",
    "speeds_by_shape",
    "state_differences",
    "survival",
    "token_classes",
    "weight_scales",
    "what_a_draft_token_buys",
    "widenings",
]
