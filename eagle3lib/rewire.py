"""Repair without retraining, first rung: move `fc`'s column blocks to the slots where their boundaries are served.

`fc` is linear and its columns come in one block a slot, so a boundary that is served in another slot than it
was trained in only needs its block there; a block whose boundary is not served is lost, and the slots that
were trained on nothing served are zeroed:

    W'_j = Σ_i W_i  over trained slots i whose boundary is served in slot j (its first slot), else 0

Exact without an input norm and with one norm a slot, whose weights move along. With one norm over the concat
the divisor differs by one scale a token, so the result is approximate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3lib.acceptance import length_difference
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Boundary, Wiring, boundary_name
from eagle3lib.checkpoint import Draft
from eagle3lib.errors import InputError
from eagle3lib.rollout import Rollout
from eagle3lib.sample import Sample
from eagle3lib.until_miss import rollout_until_miss


@dataclass(frozen=True)
class Rewired:
    """A draft whose columns stand where their boundaries are served.

    Attributes:
        moved: trained slot → served slot, for every block that found one.
        lost: trained boundaries that are not served.
        exact: False where one norm over the concat, or a norm that one side ignores, makes it approximate.
    """

    draft: Draft
    trained: Wiring
    served: Wiring
    moved: dict[int, int]
    lost: tuple[Boundary, ...]
    exact: bool

    @property
    def lost_slots(self) -> tuple[int, ...]:
        """Trained slots whose boundaries are not served."""
        return tuple(i for i in range(len(self.trained.slots)) if i not in self.moved)


def rewire(draft: Draft, trained: Wiring, served: Wiring) -> Rewired:
    """Move column blocks from the slots they were trained in to those where their boundaries are served.

    Raises:
        InputError: if a wiring has not the draft's number of slots, or no trained boundary is served at all.
    """
    rewired = move_columns(draft, trained, served)
    if not rewired.moved:
        names = ", ".join(map(boundary_name, trained.slots))
        raise InputError(
            f"None of the trained boundaries {names} is among the served {served}; there is nothing to move."
        )
    return rewired


def move_columns(draft: Draft, trained: Wiring, served: Wiring) -> Rewired:
    """As `rewire`, where nothing may be served too: then every column is zero, for a refit to begin from.

    Raises:
        InputError: if the draft has no `fc`, or a wiring has not its number of slots.
    """
    n, width = draft.config.n_slots, draft.config.target_hidden_size
    expect_fc(draft)
    for wiring in (trained, served):
        if len(wiring.slots) != n:
            raise InputError(f"The draft's fc has {n} slots, the wiring {wiring} names {len(wiring.slots)}.")
    moved = {i: served.slots.index(b) for i, b in enumerate(trained.slots) if b in served.slots}
    lost = tuple(dict.fromkeys(b for b in trained.slots if b not in served.slots))
    fc = torch.zeros_like(draft.weights.fc)
    norms, scales = _moved_norms(draft, moved)
    for i, j in moved.items():
        fc[:, j * width : (j + 1) * width] += scales[i] * draft.weights.fc[:, i * width : (i + 1) * width]
    weights = replace(draft.weights, fc=fc, input_norms=norms)
    norm_trained, norm_served = (draft.config.under(wiring).input_norm for wiring in (trained, served))
    exact = norm_trained == norm_served != "concat"
    return Rewired(replace(draft, weights=weights), trained, served, moved, lost, exact)


def without_slot(draft: Draft, slot: int) -> Draft:
    """The draft with one slot's columns zeroed: what it loses is the slot's value."""
    expect_fc(draft)
    width = draft.config.target_hidden_size
    fc = draft.weights.fc.clone()
    fc[:, slot * width : (slot + 1) * width] = 0
    return with_fc(draft, fc)


def with_fc(draft: Draft, fc: Tensor) -> Draft:
    """The draft with another `fc`, in the draft's dtype and on its device."""
    return replace(draft, weights=replace(draft.weights, fc=fc.to(draft.device, draft.dtype)))


def slot_values(draft: Draft, samples: Sequence[Sample], whole: Sequence[Rollout], wiring: Wiring) -> list[Estimate]:
    """What each slot is worth: the acceptance length along the walk that is lost without its columns, paired.

    Args:
        whole: the draft's own rollouts of the samples under `wiring`.
    """
    return [slot_value(draft, samples, whole, wiring, slot) for slot in range(draft.config.n_slots)]


def slot_value(
    draft: Draft, samples: Sequence[Sample], whole: Sequence[Rollout], wiring: Wiring, slot: int
) -> Estimate:
    """One slot's value, as `slot_values`."""
    steps, lacking = whole[0].hit.shape[1], without_slot(draft, slot)
    return length_difference(whole, rollout_until_miss(lacking, samples, wiring, steps), steps)


def expect_fc(draft: Draft) -> None:
    """Raises an InputError where the draft has no columns to move."""
    if not draft.config.uses_fc:
        raise InputError(f"{draft.path} has no fc; it is fed one state as it is, so there are no columns to move.")


def _moved_norms(draft: Draft, moved: dict[int, int]) -> tuple[tuple[Tensor, ...], dict[int, Tensor | float]]:
    """Input norm weights beside the blocks they belong to, and what each block is multiplied by.

    Slots without a block keep ones. Where several blocks share a slot, it keeps ones too and each block takes its
    own norm's weights into its columns: W (w · x) = (W · w) x.
    """
    norms, width = draft.weights.input_norms, draft.config.target_hidden_size
    scales: dict[int, Tensor | float] = dict.fromkeys(moved, 1.0)
    if not norms:
        return (), scales
    blocks = norms if draft.config.input_norm == "slots" else norms[0].split(width)
    placed = [torch.ones_like(block) for block in blocks]
    for i, j in moved.items():
        if list(moved.values()).count(j) > 1:
            scales[i] = blocks[i]
        else:
            placed[j] = blocks[i]
    return (tuple(placed) if draft.config.input_norm == "slots" else (torch.cat(placed),)), scales
