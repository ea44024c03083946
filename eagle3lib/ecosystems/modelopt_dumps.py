"""NVIDIA ModelOpt's dumps: `{conversation id}.pt`, a dictionary.

Sources, in NVIDIA/Model-Optimizer: examples/speculative_decoding/collect_hidden_states/compute_hidden_states_*.py
(writers), modelopt/torch/speculative/eagle/utils.py (reader). Keys: `input_ids` [S], `aux_hidden_states` [S, m·H],
which feed `fc`, `hidden_states` [S, H], the last state, and with --answer-only-loss `loss_mask` [S]. The reader
takes the last state as normed unless `hidden_states_prenorm` is set, which no writer sets, though the one with vLLM
stores B(n) un-normed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eagle3lib import pickles
from eagle3lib.axes import Known
from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.ecosystems._files import dictionary, entry, named, token_mask, token_row_ids
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.ecosystems._layout import Layout, Origin, StoredSample, last_and_aux, slots_then
from eagle3lib.errors import InputError

FLAG = "hidden_states_prenorm"
NO_FLAG = (
    f"The files lack the flag {FLAG}: ModelOpt's reader then takes the last state as normed, and its writer with vLLM"
    " stores it un-normed; reconstruction tells which it is."
)


class ModelOptLayout(Layout):
    """One file a conversation."""

    name = "modelopt"
    label = "ModelOpt (.pt with aux_hidden_states)"

    def fits(self, glance: Glance) -> bool:
        """`aux_hidden_states`, or a conversation's id where they were left out."""
        keys = glance.pickled_keys
        return {"hidden_states", "input_ids"} <= keys and bool({"aux_hidden_states", "conversation_id"} & keys)

    def files(self, folder: Path) -> Iterator[Path]:
        return named(folder, "", ".pt")

    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        data = dictionary(pickles.read(file), file)
        token_ids = token_row_ids(entry(data, "input_ids", file), file)
        mask = token_mask(entry(data, "loss_mask", file), file, len(token_ids)) if "loss_mask" in data else None
        states = last_and_aux(data, ("hidden_states", "aux_hidden_states"), len(token_ids), known, file)
        note = "" if FLAG in data else NO_FLAG
        if not isinstance(data.get(FLAG, False), bool):
            raise InputError(f"Expected {FLAG} as True or False in {file}, found {type(data[FLAG]).__name__}.")
        yield StoredSample(file.name, token_ids, states, mask, last_normed=not data.get(FLAG), note=note)

    def boundaries(self, stored: StoredSample, origin: Origin) -> tuple[Boundary, ...] | None:
        if stored.last_normed:
            return slots_then(FINAL_NORMED, stored, origin)
        return slots_then(origin.target.n_layers, stored, origin) if origin.target else None


LAYOUTS = (ModelOptLayout(),)
