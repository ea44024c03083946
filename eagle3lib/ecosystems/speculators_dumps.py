"""speculators' two dump layouts.

Current: `hidden_states/hs_{i}.safetensors` (`hidden_states` [S, m, H], `token_ids` [S]) beside an Arrow data
set whose row i holds `input_ids` and `loss_mask` (speculators 0.9.0, train/data.py ArrowDataset).
A file may also hold `token_logprobs` [S], the target's log-probability of each token, which is no part of the
library's layout and which its reader passes over.
Old: `data_{i}.pt`, a dictionary of `input_ids` [S], `hidden_states` (a list of m tensors [S, H]) and
`loss_mask` [S] (removed in April 2026).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from eagle3lib import pickles
from eagle3lib.axes import HIDDEN, STATES, TOKENS, Known, split_states
from eagle3lib.boundaries import Boundary
from eagle3lib.ecosystems._files import dictionary, entry, number, numbered, token_mask, token_row, token_row_ids
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.ecosystems._layout import Layout, Origin, StoredSample
from eagle3lib.ecosystems.speculators import OLD
from eagle3lib.errors import InputError
from eagle3lib.tensors import open_safetensors

#: [S, m, H], as the writer has it.
DOCUMENTED = (TOKENS, STATES, HIDDEN)


class CurrentLayout(Layout):
    """`hs_{i}.safetensors` with an Arrow data set."""

    name = "speculators"
    label = "speculators (hidden_states/hs_0.safetensors beside data-*.arrow)"
    ordered = True

    def fits(self, glance: Glance) -> bool:
        return next(self.files(glance.folder), None) is not None

    def files(self, folder: Path) -> Iterator[Path]:
        return numbered(folder / "hidden_states", "hs_{}.safetensors")

    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        token_ids, states, logprobs = states_and_tokens(file, known)
        row, folder = number(file), file.parent.parent
        table = _arrow_rows(folder, max((f.stat().st_mtime_ns for f in folder.glob("data-*.arrow")), default=0))
        if row >= len(table):
            raise InputError(
                f"{file} has no row {row} in the data set beside it, which has {len(table)}; the dump is incomplete."
            )
        ids, mask = (_numbers(table[name][row], file) for name in ("input_ids", "loss_mask"))
        mask = token_mask(mask, f"Row {row} of the data set beside {file}", len(ids))
        if not torch.equal(ids.long(), token_ids):
            raise InputError(
                f"{file} holds {len(token_ids)} token ids, which row {row} of the data set beside it ({len(ids)} ids)"
                " does not match; the states are another sample's."
            )
        yield StoredSample(file.name, token_ids, states, mask, logprobs)

    def boundaries(self, stored: StoredSample, origin: Origin) -> tuple[Boundary, ...] | None:
        """The draft's ids and n, once and from low to high, since vLLM made them."""
        if origin.target is None:
            return None
        return tuple(sorted({*origin.trainer.boundaries(origin.ids, origin.target), origin.target.n_layers}))


class ListLayout(Layout):
    """`data_{i}.pt` with a list of states."""

    name = "speculators-list"
    label = "speculators' old lists (data_0.pt)"
    ordered = True

    def fits(self, glance: Glance) -> bool:
        """By its names; where the first files can be read, not what other systems give such names."""
        named = any(re.fullmatch(r"data_\w+\.pt", name) for name in glance.names)
        states = glance.pickled.get("hidden_states") if glance.pickled_keys else None
        return named and (glance.pickled is None or isinstance(states, list))

    def files(self, folder: Path) -> Iterator[Path]:
        return numbered(folder, "data_{}.pt")

    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        data = dictionary(pickles.read(file), file)
        token_ids = token_row_ids(entry(data, "input_ids", file), file)
        stored = entry(data, "hidden_states", file, list)
        mask = token_mask(entry(data, "loss_mask", file), file, len(token_ids))
        for state in stored:
            found = list(state.shape) if isinstance(state, Tensor) else type(state).__name__
            if not isinstance(state, Tensor) or state.ndim != 2 or len(state) != len(token_ids):
                raise InputError(
                    f"Expected states [{len(token_ids)}, hidden size] in {file}, found {found}; rows must match tokens."
                )
        yield StoredSample(file.name, token_ids, tuple(stored), mask)

    def boundaries(self, stored: StoredSample, origin: Origin) -> tuple[Boundary, ...] | None:
        """The states after the blocks that the draft's ids number, taken as those that the dump was made with."""
        return OLD.stored(origin.ids, origin.target) if origin.target else None


LAYOUTS = (CurrentLayout(), ListLayout())


def states_and_tokens(file: Path, known: Known) -> tuple[Tensor, tuple[Tensor, ...], Tensor | None]:
    """Token ids, states and perhaps log-probabilities of a file that vLLM's connector wrote.

    Raises:
        InputError: if a tensor is missing, or its sizes do not fit the tokens.
    """
    with open_safetensors(file) as handle:
        names = set(handle.keys())
        if not {"hidden_states", "token_ids"} <= names:
            raise InputError(f"Expected hidden_states and token_ids in {file}, found {', '.join(sorted(names))}.")
        tensor, ids = handle.get_tensor("hidden_states"), handle.get_tensor("token_ids")
        logprobs = handle.get_tensor("token_logprobs") if "token_logprobs" in names else None
    token_ids = token_row_ids(ids, file)
    if logprobs is not None:
        logprobs = token_row(logprobs, "log-probabilities", file, len(token_ids)).float()
    states = split_states(tensor, len(token_ids), known, f"hidden_states of {file}", documented=DOCUMENTED)
    return token_ids, states, logprobs


def _numbers(cell: pa.Scalar, file: Path) -> Tensor:
    """A list of whole numbers from an Arrow table."""
    values = cell.values
    if (
        values is None
        or values.null_count
        or not (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type))
    ):
        raise InputError(f"Expected whole numbers in the data set's row for {file}, found {cell.type}.")
    return torch.tensor(values.to_numpy(zero_copy_only=False))


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
        for name in {"input_ids", "loss_mask"} & set(table.column_names):
            table[name].validate(full=True)  # offsets within the data; the numbers themselves are not looked at
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"The Arrow data set in {folder} cannot be read ({error}); copy it again.") from error
    for name in ("input_ids", "loss_mask"):
        kind = table.schema.field(name).type if name in table.column_names else None
        if kind is None or not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise InputError(
                f"Expected the column {name} of lists in the Arrow data set in {folder}, found {table.column_names}."
            )
    return table
