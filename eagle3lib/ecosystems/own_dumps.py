"""This package's own layout, as `own_layout` describes and writes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from eagle3lib.axes import HIDDEN, TOKENS, Known, split_states
from eagle3lib.boundaries import in_depth_order
from eagle3lib.ecosystems._files import numbered, token_mask, token_row, token_row_ids
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.ecosystems._layout import Layout, StoredSample
from eagle3lib.errors import InputError
from eagle3lib.own_layout import FILE_NAME, FORMAT, STATE, VERSION, state_boundary, state_key
from eagle3lib.tensors import open_safetensors


class OwnLayout(Layout):
    """One file a sample; the boundaries are in the names of its tensors."""

    name = "eagle3lib"
    label = "our own (sample_000000.safetensors)"
    ordered = True

    def fits(self, glance: Glance) -> bool:
        named = any(name.startswith("sample_") and name.endswith(".safetensors") for name in glance.names)
        return named and (not glance.safetensors or any(state_boundary(key) is not None for key in glance.safetensors))

    def files(self, folder: Path) -> Iterator[Path]:
        return numbered(folder, FILE_NAME)

    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        with open_safetensors(file) as handle:
            notes = handle.metadata() or {}
            if notes.get("format") != FORMAT or notes.get("version") != VERSION:
                found = {key: notes.get(key) for key in ("format", "version")}
                raise InputError(f"Expected format {FORMAT!r}, version {VERSION!r} in {file}, found {found}.")
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}
        for name in tensors:
            if name.startswith(STATE) and (state_boundary(name) is None or state_key(state_boundary(name)) != name):
                raise InputError(f"Expected names such as {STATE}3 for the states in {file}, found {name[:60]!r}.")
        named = {boundary: name for name in tensors if (boundary := state_boundary(name)) is not None}
        boundaries = in_depth_order(named)
        if not boundaries or not {"token_ids", "loss_mask"} <= set(tensors):
            raise InputError(
                f"Expected token_ids, loss_mask and boundary.K in {file}, found {', '.join(sorted(tensors))}."
            )
        token_ids = token_row_ids(tensors["token_ids"], file)
        n = len(token_ids)
        states = [
            split_states(tensors[named[b]], n, known, f"{named[b]} of {file}", documented=(TOKENS, HIDDEN), count=1)[0]
            for b in boundaries
        ]
        logprobs = tensors.get("token_logprobs")
        yield StoredSample(
            file.name,
            token_ids,
            tuple(states),
            token_mask(tensors["loss_mask"], file, n),
            None if logprobs is None else token_row(logprobs, "log-probabilities", file, n).float(),
            boundaries=boundaries,
            temperature=_temperature(notes.get("temperature"), file),
        )


LAYOUTS = (OwnLayout(),)


def _temperature(text: str | None, file: Path) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"Expected a temperature of 0 or more in the metadata of {file}, found {text[:40]!r}.")
    return value
