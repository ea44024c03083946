"""NVIDIA NeMo's cache of targets: `manifest.json` and `shard-{i:06d}.safetensors`, many samples a file.

Sources, in NVIDIA-NeMo/Automodel: components/speculative/precompute_eagle3.py (writer), speculative/eagle/target.py
(what it writes). Each tensor is [n, S, ...], padded on the right as `attention_mask` shows; `aux_hidden_states` feeds
`fc` and its ids stand in the manifest, id i for the output of block i, so B(i+1). Ids, masks and probabilities are
stored one to the left of the states: row i holds h[i], x[i + 1], its mask, and the target's distribution over
x[i + 2] within the draft vocabulary (`target_probs`, or the largest of it). So x[0] is not in the cache, and a
sample begins with x[1]. There is no last state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from eagle3lib.axes import Known
from eagle3lib.ecosystems._files import named, token_mask, token_row_ids
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.ecosystems._layout import Layout, StoredSample
from eagle3lib.errors import InputError
from eagle3lib.sample import TeacherProbs
from eagle3lib.tensors import open_safetensors, read_json

NEEDED = {"input_ids", "attention_mask", "loss_mask", "aux_hidden_states"}
NO_FIRST = "The cache holds no x[0], since NeMo stores ids one to the left of the states: each sample begins at x[1]."


class CacheLayout(Layout):
    """Many samples a file, with the teacher's distributions."""

    name = "nemo"
    label = "NeMo (manifest.json, shard-000000.safetensors)"

    def fits(self, glance: Glance) -> bool:
        return (glance.folder / "manifest.json").is_file() and bool(glance.files(".safetensors"))

    def files(self, folder: Path) -> Iterator[Path]:
        return named(folder, "shard-", ".safetensors")

    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        manifest = read_json(file.parent / "manifest.json")
        boundaries = tuple(i + 1 for i in _whole_numbers(manifest, "aux_layer_ids", file.parent))
        draft_ids = torch.tensor(_whole_numbers(manifest, "selected_token_ids", file.parent))
        with open_safetensors(file) as handle:
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}
        if not set(tensors) >= NEEDED:
            raise InputError(f"Expected {', '.join(sorted(NEEDED))} in {file}, found {', '.join(sorted(tensors))}.")
        shape = tensors["input_ids"].shape
        width = tensors["aux_hidden_states"].shape[-1]
        for name, tensor in tensors.items():
            if len(shape) != 2 or tensor.shape[:2] != shape or width % max(len(boundaries), 1) or not boundaries:
                raise InputError(
                    f"Expected {name} [{', '.join(map(str, shape))}, ...] and {len(boundaries)} states in {file}, found"
                    f" {list(tensor.shape)} and states of width {width}."
                )
        if known.hidden_size not in (None, width // len(boundaries)):
            raise InputError(
                f"Expected {len(boundaries)} states of size {known.hidden_size} in {file}, as manifest.json lists them,"
                f" found a width of {width}."
            )
        for i in range(shape[0]):
            row = {name: tensor[i] for name, tensor in tensors.items()}
            yield _sample(row, boundaries, draft_ids, file, i)


LAYOUTS = (CacheLayout(),)


def _sample(row: dict[str, Tensor], boundaries: tuple[int, ...], draft_ids: Tensor, file: Path, i: int) -> StoredSample:
    """Row i of a shard: tokens x[1] .. x[n - 1], and their states h[1] .. h[n - 1]."""
    where = f"{file}[{i}]"
    length = int(row["attention_mask"].sum())
    if not 3 <= length <= len(row["input_ids"]) or not bool(row["attention_mask"][:length].all()):
        raise InputError(f"Expected three tokens or more in {where}, padded on the right; found {length}.")
    n = length - 1
    states = row["aux_hidden_states"][1:length]
    if not states.is_floating_point():
        raise InputError(f"Expected numbers with a fraction as the states of {where}, found {states.dtype}.")
    size = states.shape[1] // len(boundaries)
    return StoredSample(
        f"{file.name}[{i}]",
        token_row_ids(row["input_ids"][:n], where),
        states.split(size, dim=1),
        token_mask(row["loss_mask"][:n], where, n),
        teacher=_teacher(row, draft_ids, n, where),
        boundaries=boundaries,
        first_position=1,
        note=NO_FIRST,
    )


def _teacher(row: dict[str, Tensor], draft_ids: Tensor, n: int, where: str) -> TeacherProbs | None:
    """Row t of the cache is about x[t + 2], which is the token after x[t + 1], the sample's token t."""
    if (probs := row.get("target_probs")) is not None:
        if probs.shape[-1] != len(draft_ids):
            raise InputError(f"Expected {len(draft_ids)} probabilities a token in {where}, found {probs.shape[-1]}.")
        return TeacherProbs(probs[:n], draft_ids.expand(n, -1))
    values, places = row.get("target_probs_values"), row.get("target_probs_indices")
    if values is None or places is None:
        return None
    if values.shape != places.shape or bool((places < 0).any() | (places >= len(draft_ids)).any()):
        raise InputError(f"Expected places within {len(draft_ids)} draft ids in {where}, found others.")
    return TeacherProbs(values[:n], draft_ids[places[:n].long()])


def _whole_numbers(manifest: dict, key: str, folder: Path) -> list[int]:
    found = manifest.get(key)
    if not isinstance(found, list) or not all(type(i) is int and 0 <= i < 1 << 31 for i in found):
        raise InputError(f"Expected {key} as a list of whole numbers in {folder / 'manifest.json'}.")
    return found
