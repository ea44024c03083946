"""Repair without retraining, first rung: move `fc`'s column blocks to the slots where their boundaries are served.

`fc` is linear and its columns come in one block a slot, so a boundary that is served in another slot than it
was trained in only needs its block there; a block whose boundary is not served is lost, and the slots that
were trained on nothing served are zeroed:

    W'_j = Σ_i W_i  over trained slots i whose boundary is served in slot j (its first slot), else 0

Exact without an input norm and with one norm a slot, whose weights move along. With one norm over the concat
the divisor differs by one scale a token, so the result is approximate.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3lib.acceptance import length_difference
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Boundary, Wiring, boundary_name
from eagle3lib.checkpoint import Draft
from eagle3lib.errors import InputError
from eagle3lib.rollout import Rollout, rollout
from eagle3lib.sample import Sample
from eagle3lib.tensors import checkpoint_files, open_safetensors


@dataclass(frozen=True)
class Rewired:
    """A draft whose columns stand where their boundaries are served.

    Attributes:
        moved: trained slot → served slot, for every block that found one.
        lost: trained boundaries that are not served.
        exact: False where one norm over the concat makes it approximate.
    """

    draft: Draft
    trained: Wiring
    served: Wiring
    moved: dict[int, int]
    lost: tuple[Boundary, ...]
    exact: bool


def rewire(draft: Draft, trained: Wiring, served: Wiring) -> Rewired:
    """Move column blocks from the slots they were trained in to those where their boundaries are served.

    Raises:
        InputError: if a wiring has not the draft's number of slots, or no trained boundary is served at all.
    """
    n, width = draft.config.n_slots, draft.config.target_hidden_size
    for wiring in (trained, served):
        if len(wiring.slots) != n:
            raise InputError(f"The draft's fc has {n} slots, the wiring {wiring} names {len(wiring.slots)}.")
    _expect_fc(draft)
    moved = {i: served.slots.index(b) for i, b in enumerate(trained.slots) if b in served.slots}
    lost = tuple(dict.fromkeys(b for b in trained.slots if b not in served.slots))
    if not moved:
        names = ", ".join(map(boundary_name, trained.slots))
        raise InputError(
            f"None of the trained boundaries {names} is among the served {served}; there is nothing to move."
        )
    fc = torch.zeros_like(draft.weights.fc)
    for i, j in moved.items():
        fc[:, j * width : (j + 1) * width] += draft.weights.fc[:, i * width : (i + 1) * width]
    weights = replace(draft.weights, fc=fc, input_norms=_moved_norms(draft, moved))
    exact = draft.config.input_norm != "concat"
    return Rewired(replace(draft, weights=weights), trained, served, moved, lost, exact)


def without_slot(draft: Draft, slot: int) -> Draft:
    """The draft with one slot's columns zeroed: what it loses is the slot's value."""
    _expect_fc(draft)
    width = draft.config.target_hidden_size
    fc = draft.weights.fc.clone()
    fc[:, slot * width : (slot + 1) * width] = 0
    return replace(draft, weights=replace(draft.weights, fc=fc))


def slot_values(draft: Draft, samples: Sequence[Sample], whole: Sequence[Rollout], wiring: Wiring) -> list[Estimate]:
    """What each slot is worth: the acceptance length along the walk that is lost without its columns, paired.

    Args:
        whole: the draft's own rollouts of the samples under `wiring`.
    """
    steps = whole[0].hit.shape[1]
    values = []
    for slot in range(draft.config.n_slots):
        lacking = without_slot(draft, slot)
        values.append(length_difference(whole, [rollout(lacking, s, wiring, steps) for s in samples], steps))
    return values


def _expect_fc(draft: Draft) -> None:
    if not draft.config.uses_fc:
        raise InputError(f"{draft.path} has no fc; it is fed one state as it is, so there are no columns to move.")


def _moved_norms(draft: Draft, moved: dict[int, int]) -> tuple[Tensor, ...]:
    """Input norm weights beside the blocks they belong to; slots without a block keep ones."""
    norms, width = draft.weights.input_norms, draft.config.target_hidden_size
    if not norms:
        return ()
    blocks = norms if draft.config.input_norm == "slots" else norms[0].split(width)
    placed = [torch.ones_like(block) for block in blocks]
    for i, j in moved.items():
        placed[j] = blocks[i]
    return tuple(placed) if draft.config.input_norm == "slots" else (torch.cat(placed),)


def save_rewired(rewired: Rewired, out: Path, config: dict) -> Path:
    """Write the repaired checkpoint to a new folder: the original's files, `fc` and input norms replaced.

    Args:
        config: the config.json to write, as the engine was given it: the served ids stay, `fc` moves.

    Raises:
        InputError: if the folder exists and is not empty, or is the original's own.
    """
    source = rewired.draft.path
    if out.resolve() == source.resolve() or (out.exists() and any(out.iterdir())):
        raise InputError(
            f"Expected a new or empty folder for the repaired checkpoint, found {out} in use; name another."
        )
    replaced = {"fc.weight": rewired.draft.weights.fc}
    norms = rewired.draft.weights.input_norms
    if rewired.draft.config.input_norm == "slots":
        replaced |= {f"fc_norm.{i}.weight": norm for i, norm in enumerate(norms)}
    elif norms:
        replaced["input_norm.weight"] = norms[0]
    stored = {rewired.draft.tensors[name].name: value for name, value in replaced.items()}
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for file in checkpoint_files(source):
        with open_safetensors(file) as handle:
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}
            metadata = handle.metadata()
        for name in tensors.keys() & stored.keys():
            tensors[name] = stored[name].to(tensors[name].dtype).cpu().contiguous()
        save_file(tensors, part / file.name, metadata=metadata)
    index = source / "model.safetensors.index.json"
    if index.is_file():
        shutil.copy(index, part)
    (part / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    provenance = {
        "repair": "rewire",
        "trained": list(rewired.trained.slots),
        "served": list(rewired.served.slots),
        "moved_slots": {str(i): j for i, j in rewired.moved.items()},
        "lost": list(rewired.lost),
        "exact": rewired.exact,
        "tensors_changed": sorted(replaced),
    }
    (part / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    if out.exists():
        out.rmdir()
    part.rename(out)
    return out
