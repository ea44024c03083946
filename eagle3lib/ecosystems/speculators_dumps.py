"""speculators' two dump layouts.

Current: `hidden_states/hs_{i}.safetensors` (`hidden_states` [S, m, H], `token_ids` [S]) beside an Arrow data
set whose row i holds `input_ids` and `loss_mask` (speculators 0.9.0, train/data.py ArrowDataset).
A file may also hold `token_logprobs` [S], the target's log-probability of each token, which is no part of the
library's layout and which its reader passes over.
Old: `data_{i}.pt`, a dictionary of `input_ids` [S], `hidden_states` (a list of m tensors [S, H]) and
`loss_mask` [S] (removed in April 2026).
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from eagle3lib.ecosystems._layout import StoredSample
from eagle3lib.errors import InputError
from eagle3lib.tensors import open_safetensors


class CurrentLayout:
    """`hs_{i}.safetensors` with an Arrow data set."""

    name = "speculators"
    label = "speculators' current layout (hidden_states/hs_0.safetensors beside an Arrow data set)"

    def fits(self, folder: Path) -> bool:
        return next((folder / "hidden_states").glob("hs_*.safetensors"), None) is not None

    def items(self, folder: Path) -> list[Path]:
        return sorted((folder / "hidden_states").glob("hs_*.safetensors"), key=_number)

    def n_states(self, folder: Path) -> int:
        with open_safetensors(self.items(folder)[0]) as handle:
            return self._shape(handle, self.items(folder)[0])[1]

    def load(self, item: Path, columns: list[int]) -> StoredSample:
        with open_safetensors(item) as handle:
            n_tokens, n_states, _ = self._shape(handle, item)
            piece = handle.get_slice("hidden_states")
            states = tuple(piece[:, column] for column in columns if column < n_states)
            token_ids = handle.get_tensor("token_ids").long()
            logprobs = handle.get_tensor("token_logprobs").float() if "token_logprobs" in handle.keys() else None
        row = _number(item)
        folder = item.parent.parent
        table = _arrow_rows(folder, max((file.stat().st_mtime_ns for file in folder.glob("data-*.arrow")), default=0))
        if row >= len(table):
            raise InputError(
                f"{item} has no row {row} in the data set beside it, which has {len(table)}; the dump is incomplete."
            )
        ids, mask = (torch.tensor(table[name][row].as_py()) for name in ("input_ids", "loss_mask"))
        if len(mask) != len(ids):
            raise InputError(
                f"Row {row} of the data set beside {item} holds {len(ids)} ids and a loss mask of {len(mask)}."
            )
        if len(token_ids) != n_tokens or not torch.equal(ids.long(), token_ids):
            raise InputError(
                f"{item} holds {len(token_ids)} token ids and {n_tokens} rows, which row {row} of the data set beside"
                f" it ({len(ids)} ids) does not match; the states are another sample's."
            )
        return StoredSample(item.name, token_ids, mask.bool(), n_states, states, logprobs)

    @staticmethod
    def _shape(handle, item: Path) -> tuple[int, int, int]:
        if not {"hidden_states", "token_ids"} <= set(handle.keys()):
            raise InputError(f"Expected hidden_states and token_ids in {item}, found {', '.join(handle.keys())}.")
        shape = tuple(handle.get_slice("hidden_states").get_shape())
        if len(shape) != 3:
            raise InputError(f"Expected hidden_states [tokens, states, hidden size] in {item}, found {list(shape)}.")
        return shape


class ListLayout:
    """`data_{i}.pt` with a list of states."""

    name = "speculators-list"
    label = "speculators' old list layout (data_0.pt)"

    def fits(self, folder: Path) -> bool:
        return next(folder.glob("data_*.pt"), None) is not None

    def items(self, folder: Path) -> list[Path]:
        return sorted(folder.glob("data_*.pt"), key=_number)

    def n_states(self, folder: Path) -> int:
        return self.load(self.items(folder)[0], []).n_states

    def load(self, item: Path, columns: list[int]) -> StoredSample:
        data = _load_pt(item)
        states, token_ids, mask = (data[name] for name in ("hidden_states", "input_ids", "loss_mask"))
        if len(mask) != len(token_ids):
            raise InputError(f"{item} holds {len(token_ids)} ids and a loss mask of {len(mask)}; they must agree.")
        for state in states:
            found = list(state.shape) if isinstance(state, Tensor) else type(state).__name__
            if not isinstance(state, Tensor) or state.ndim != 2 or len(state) != len(token_ids):
                raise InputError(
                    f"Expected states [{len(token_ids)}, hidden size] in {item}, found {found}; rows must match tokens."
                )
        chosen = tuple(states[column] for column in columns if column < len(states))
        return StoredSample(item.name, token_ids.long(), mask.bool(), len(states), chosen)


LAYOUTS = (CurrentLayout(), ListLayout())


def _number(file: Path) -> int:
    """The i of `hs_{i}.safetensors` and `data_{i}.pt`."""
    digits = file.stem.rsplit("_", 1)[-1]
    if not digits.isdigit():
        raise InputError(f"Expected a number at the end of the name of {file}, found {digits!r}.")
    return int(digits)


@lru_cache(maxsize=4)
def _arrow_rows(folder: Path, changed: int) -> pa.Table:
    """The Arrow data set of a dump's folder, mapped; kept until its files change.

    Raises:
        InputError: if it is absent, broken or lacks a column.
    """
    files = sorted(folder.glob("data-*.arrow"))
    if not files:
        raise InputError(f"Expected the Arrow data set with loss masks (data-*.arrow) in {folder}, found none.")
    try:
        table = pa.concat_tables(pa.ipc.open_stream(pa.memory_map(str(file))).read_all() for file in files)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"The Arrow data set in {folder} cannot be read ({error}); copy it again.") from error
    for name in ("input_ids", "loss_mask"):
        if name not in table.column_names:
            raise InputError(
                f"Expected the column {name} in the Arrow data set in {folder}, found {table.column_names}."
            )
    return table


def _load_pt(file: Path) -> dict:
    """A `.pt` dictionary of tensors; no pickled code runs.

    Raises:
        InputError: if it needs more than tensors, is broken, or lacks an entry.
    """
    try:
        data = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{file} cannot be read as tensors alone ({reason}); save it again as safetensors.") from error
    expected = {"input_ids": Tensor, "hidden_states": list, "loss_mask": Tensor}
    for name, kind in expected.items():
        found = data.get(name) if isinstance(data, dict) else None
        if not isinstance(found, kind):
            raise InputError(f"Expected {name} as a {kind.__name__} in {file}, found {type(found).__name__}.")
    return data
