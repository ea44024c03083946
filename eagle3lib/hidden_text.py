"""What a page for sharing shows where prompts, responses and their labels would stand."""

from __future__ import annotations

from dataclasses import replace

from eagle3lib.slices import SPEED_BENCH, Labels
from eagle3lib.token_prefix import PrefixDifference

#: In place of a token's text.
BLOCK = "▇"


def hide_prefix(difference: PrefixDifference) -> PrefixDifference:
    """The difference of two requests with a block for each token."""
    return replace(difference, ours=(BLOCK,) * len(difference.ours), theirs=(BLOCK,) * len(difference.theirs))


def hide_labels(labels: Labels) -> Labels:
    """A side table's labels numbered, in their order; a column may hold the prompts themselves.

    The published categories of SPEED-Bench stay: they tell nothing of this case.
    """
    others = sorted(set(labels.values()) - set(SPEED_BENCH))
    names = {label: f"value {i}" for i, label in enumerate(others, start=1)}
    return {key: names.get(label, label) for key, label in labels.items()}
