"""`output_hidden_states` of transformers, saved with its tokens: a tuple or a stack in `.pt` or safetensors.

A file holds `input_ids` and `hidden_states`: a list of n + 1 tensors [S, H], or one tensor of all, stacked on any
axis or concatenated on the last; in safetensors also `hidden_states.0` and so on. A `loss_mask` [S] may be
beside them. transformers returns B(0), ..., B(n - 1) and, in the last place, B(n) behind the final norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3lib import pickles
from eagle3lib.axes import HIDDEN, TOKENS, Known, split_states
from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.ecosystems._files import entry, named, token_mask, token_row_ids
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.ecosystems._layout import Layout, Origin, StoredSample
from eagle3lib.errors import InputError
from eagle3lib.tensors import open_safetensors

NUMBERED = "hidden_states."


class OutputLayout(Layout):
    """One file a sequence."""

    name = "huggingface"
    general = True
    label = "Hugging Face (input_ids, hidden_states)"

    def fits(self, glance: Glance) -> bool:
        keys = {key.split(".")[0] for key in glance.pickled_keys or glance.safetensors}
        bare = isinstance(glance.pickled, list | tuple | Tensor)
        return bare or "hidden_states" in keys

    def files(self, folder: Path) -> Iterator[Path]:
        return named(folder, "", (".pt", ".safetensors"))

    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        data = _content(file)
        token_ids = token_row_ids(entry(data, "input_ids", file), file)
        n, where = len(token_ids), f"hidden_states of {file}"
        stored = data.get("hidden_states")
        if isinstance(stored, Tensor):
            states = split_states(stored, n, known, where)
        elif isinstance(stored, list | tuple) and stored and all(isinstance(state, Tensor) for state in stored):
            single = {"documented": (TOKENS, HIDDEN), "count": 1}
            states = tuple(split_states(state, n, known, where, **single)[0] for state in stored)
        else:
            raise InputError(f"Expected tensors as the {where}, found {type(stored).__name__}.")
        mask = token_mask(entry(data, "loss_mask", file), file, n) if "loss_mask" in data else None
        yield StoredSample(file.name, token_ids, states, mask)

    def boundaries(self, stored: StoredSample, origin: Origin) -> tuple[Boundary, ...] | None:
        """All of them or none: a selection is not told by its number."""
        last = len(stored.states) - 1
        if last < 1 or (origin.target is not None and origin.target.n_layers != last):
            return None
        return (*range(last), FINAL_NORMED)


LAYOUTS = (OutputLayout(),)


def _content(file: Path) -> dict[str, Any]:
    """The file as a dictionary of `hidden_states` and what is beside them."""
    if file.suffix == ".pt":
        data = pickles.read(file)
        if not isinstance(data, dict):
            raise InputError(
                f"{file} holds states without their tokens, a bare {type(data).__name__}; save a dictionary of"
                " input_ids and hidden_states."
            )
        return data
    with open_safetensors(file) as handle:
        data = {name: handle.get_tensor(name) for name in handle.keys()}
    places = sorted((int(i), name) for name in data if (i := name.removeprefix(NUMBERED)).isdecimal() and i != name)
    if places and "hidden_states" not in data:
        if [i for i, _ in places] != list(range(len(places))):
            raise InputError(f"Expected hidden_states.0, .1 and so on in {file}, without a gap.")
        data["hidden_states"] = [data[name] for _, name in places]
    return data
