"""TensorRT-LLM's SaveHiddenStates: `{prefix}_{iteration}.pt`, a list of dictionaries, one a request.

Source, in NVIDIA/TensorRT-LLM: _torch/speculative/save_hidden_state.py. Keys: `id`, `input_ids` [S], `hidden_state`
[S, H], the last state behind the final norm, and `aux_hidden_states` [S, m·H] (`hidden_state_features` in older
versions), which ends with that same state where the user listed it or the version is old. No loss mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from eagle3lib import pickles
from eagle3lib.axes import Known
from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.ecosystems._files import dictionary, entry, named, token_row_ids
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.ecosystems._layout import Layout, Origin, StoredSample, last_and_aux, slots_then
from eagle3lib.errors import InputError

AUX = ("aux_hidden_states", "hidden_state_features")


class SavedLayout(Layout):
    """Several samples a file, without loss masks."""

    name = "tensorrt_llm"
    label = "TensorRT-LLM (PREFIX_1.pt)"

    def fits(self, glance: Glance) -> bool:
        first = glance.pickled[0] if isinstance(glance.pickled, list) and glance.pickled else None
        return isinstance(first, dict) and {"input_ids", "hidden_state"} <= set(first)

    def files(self, folder: Path) -> Iterator[Path]:
        return named(folder, "", ".pt")

    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        saved = pickles.read(file)
        if not isinstance(saved, list):
            raise InputError(f"Expected a list of requests in {file}, found {type(saved).__name__}.")
        for i, data in enumerate(saved):
            where = f"{file} [{i}]"
            token_ids = token_row_ids(entry(dictionary(data, where), "input_ids", where), where)
            aux_key = next((key for key in AUX if key in data), AUX[0])
            *aux, last = last_and_aux(data, ("hidden_state", aux_key), len(token_ids), known, where)
            if aux and torch.equal(aux[-1], last):
                aux.pop()
            yield StoredSample(f"{file.name}[{i}]", token_ids, (*aux, last))

    def boundaries(self, stored: StoredSample, origin: Origin) -> tuple[Boundary, ...] | None:
        return slots_then(FINAL_NORMED, stored, origin)


LAYOUTS = (SavedLayout(),)
