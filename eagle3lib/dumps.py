"""Dumps of hidden states, whatever their layout, as one stream of samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lib import ecosystems
from eagle3lib.boundaries import Boundary, boundary_name
from eagle3lib.ecosystems import Layout
from eagle3lib.errors import InputError
from eagle3lib.sample import Sample


@dataclass(frozen=True)
class Dump:
    """An opened dump: iterate it for samples, as often as wanted; each pass reads the files again.

    Attributes:
        layout: how the files are laid out.
        boundaries: of the stored states, in stored order.
        read: the boundaries that samples carry; the others are not read.
        temperature: at which the responses were generated, None if unknown.
        limit: at most this many samples, the first ones.
    """

    path: Path
    layout: Layout
    boundaries: tuple[Boundary, ...]
    read: tuple[Boundary, ...]
    temperature: float | None
    limit: int | None

    def __iter__(self) -> Iterator[Sample]:
        columns = [self.boundaries.index(boundary) for boundary in self.read]
        for item in self.layout.items(self.path)[: self.limit]:
            stored = self.layout.load(item, columns)
            if stored.n_states != len(self.boundaries):
                raise _count_error(stored.name, stored.n_states, self.boundaries)
            yield Sample(
                name=stored.name,
                token_ids=stored.token_ids,
                loss_mask=stored.loss_mask,
                states=dict(zip(self.read, stored.states, strict=True)),
                logprobs=stored.logprobs,
                temperature=self.temperature,
            )

    def __len__(self) -> int:
        return len(self.layout.items(self.path)[: self.limit])


def open_dump(
    path: Path | str,
    boundaries: Sequence[Boundary] | None = None,
    *,
    read: Sequence[Boundary] | None = None,
    temperature: float | None = None,
    limit: int | None = None,
) -> Dump:
    """Open a folder of dumped states.

    Args:
        boundaries: of the stored states, in stored order. The layouts do not record them, so None is refused
            with the number of stored states.
        read: the boundaries wanted, None for all; only these are read from disk.
        temperature: at which the responses were generated.
        limit: at most this many samples.

    Raises:
        InputError: if no layout fits the folder, the number of stored states is not the number of stated
            boundaries, or a wanted boundary is not among the stated ones.
    """
    path = Path(path)
    layout = recognise_layout(path)
    n_states = layout.n_states(path)
    if boundaries is None:
        raise InputError(
            f"{path} holds {n_states} states a token and does not say which; state their boundaries in stored order,"
            " as in boundaries = [0, 3, 16, 28, 30]."
        )
    boundaries = tuple(boundaries)
    if n_states != len(boundaries):
        raise _count_error(path, n_states, boundaries)
    if len(set(boundaries)) != len(boundaries):
        raise InputError(
            f"The boundaries {list(boundaries)} stated for {path} repeat one; state each stored state once."
        )
    read = boundaries if read is None else tuple(read)
    for boundary in read:
        if boundary not in boundaries:
            held = ", ".join(map(boundary_name, boundaries))
            raise InputError(f"{path} holds {held} and not {boundary_name(boundary)}, which was asked for.")
    return Dump(path, layout, boundaries, read, temperature, limit)


def recognise_layout(path: Path) -> Layout:
    """The layout of a dump's folder.

    Raises:
        InputError: if the folder does not exist or no known layout fits it.
    """
    if not path.is_dir():
        raise InputError(
            f"Expected a folder of dumped states at {path}, found {'a file' if path.exists() else 'nothing'}."
        )
    for layout in ecosystems.LAYOUTS:
        if layout.fits(path):
            return layout
    found = ", ".join(sorted(p.name for p in path.iterdir())[:5]) or "nothing"
    known = "; ".join(layout.label for layout in ecosystems.LAYOUTS)
    raise InputError(f"No known dump layout fits {path}, which holds {found}. Known: {known}.")


def _count_error(where: Path | str, n_states: int, boundaries: tuple[Boundary, ...]) -> InputError:
    stated = ", ".join(map(boundary_name, boundaries))
    return InputError(
        f"Expected {len(boundaries)} states a token in {where}, as stated ({stated}), found {n_states};"
        " correct the boundaries in the case or point it at another dump."
    )
