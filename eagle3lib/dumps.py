"""Dumps of hidden states, whatever their layout, as one stream of samples.

Nothing is held but the sample in hand, and its states are mapped, not read, where the file allows it. A file that
cannot be used is passed over and remembered with what is wrong with it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from eagle3lib import ecosystems
from eagle3lib.axes import Known
from eagle3lib.boundaries import Boundary, boundary_name
from eagle3lib.ecosystems import Glance, Layout, Origin, StoredSample
from eagle3lib.errors import InputError
from eagle3lib.sample import Sample
from eagle3lib.turns import TurnRule
from eagle3lib.windows import windows

#: Files read in search of a first sample that can be used.
TRIED = 16


@dataclass(frozen=True)
class Choice:
    """Which files of a dump are read, always the same ones, and how long a sample may be.

    Attributes:
        limit: at most this many samples.
        stride: every stride-th file, in the order of their names.
        seed: `limit` files drawn at random by it, instead of the first ones.
        longest: tokens of a sample; a longer sequence is given in windows of this many, whose first half is the
            context of the rest.
    """

    limit: int | None = None
    stride: int = 1
    seed: int | None = None
    longest: int | None = None


@dataclass
class Reading:
    """What the passes over a dump came upon, all of them together.

    Attributes:
        problems: file → why it was passed over.
        windowed: sequences given in windows.
        notes: sentences on what files leave open.
        read, found: files chosen, and files there, where only some are read because there are many.
    """

    problems: dict[str, str] = field(default_factory=dict)
    windowed: set[str] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)
    read: int | None = None
    found: int | None = None


@dataclass(frozen=True)
class Dump:
    """An opened dump: iterate it for samples, as often as wanted; each pass reads the files again.

    Attributes:
        layout: how the files are laid out.
        boundaries: of the stored states, in stored order.
        read: the boundaries that samples carry; the others are not touched.
        told: the stored states' boundaries as the files have them; what was stated for the dump wins over it.
        temperature: at which the responses were generated, None if unknown.
        known: of the tensors' axes.
        turns: where the target's tokens are, for layouts without a loss mask.
        reading: what the passes came upon.
    """

    path: Path
    layout: Layout
    boundaries: tuple[Boundary, ...]
    read: tuple[Boundary, ...]
    told: tuple[Boundary, ...] | None
    temperature: float | None
    choice: Choice
    known: Known
    turns: TurnRule
    reading: Reading = field(default_factory=Reading, compare=False, repr=False)

    def __iter__(self) -> Iterator[Sample]:
        """The chosen samples.

        Raises:
            InputError: after the last file, if none could be used.
        """
        samples = self._samples()
        yield from samples if self.choice.limit is None else islice(samples, self.choice.limit)

    def _samples(self) -> Iterator[Sample]:
        usable, first = False, None
        for file in self._files():
            try:
                for stored in _read(self.layout, file, self.known):
                    sample = self._sample(stored, file)
                    usable = True
                    if self.choice.longest is not None and len(sample.token_ids) > self.choice.longest:
                        self.reading.windowed.add(sample.name)
                    yield from windows(sample, self.choice.longest)
            except InputError as error:
                first = first or error
                self.reading.problems[str(file.relative_to(self.path))] = str(error)
        if first and not usable:
            raise InputError(f"No file of {self.path} can be used, for example: {first}")

    def _files(self) -> Iterator[Path]:
        """The chosen files. A choice among files without numbers takes a list of their names."""
        choice, files = self.choice, self.layout.files(self.path)
        chosen = choice.limit is not None or choice.stride > 1 or choice.seed is not None
        if chosen and not self.layout.ordered:
            files = iter(sorted(files, key=lambda file: (str(file.parent), len(file.name), file.name)))
        files = islice(files, 0, None, choice.stride)
        if choice.seed is None:
            return files
        listed = list(files)
        n = min(choice.limit or len(listed), len(listed))
        return (listed[i] for i in sorted(random.Random(choice.seed).sample(range(len(listed)), n)))

    def _sample(self, stored: StoredSample, file: Path) -> Sample:
        if len(stored.states) != len(self.boundaries):
            raise _count_error(file, len(stored.states), self.boundaries)
        if len(widths := {state.shape[1] for state in stored.states}) > 1:
            raise InputError(f"Expected states of one hidden size in {file}, found {sorted(widths)}.")
        if stored.boundaries != self.told:
            held = ", ".join(map(boundary_name, stored.boundaries or ()))
            raise InputError(f"{file} holds {held}, unlike the first file of the dump.")
        if stored.note:
            self.reading.notes.add(stored.note)
        states = dict(zip(self.boundaries, stored.states, strict=True))
        mask = stored.loss_mask
        return Sample(
            stored.name,
            stored.token_ids,
            self.turns.mask(stored.token_ids, stored.name) if mask is None else mask,
            {boundary: states[boundary] for boundary in self.read},
            stored.logprobs,
            stored.temperature if self.temperature is None else self.temperature,
            stored.teacher,
            stored.first_position,
        )


def open_dump(
    path: Path | str,
    boundaries: Sequence[Boundary] | None = None,
    *,
    read: Sequence[Boundary] | None = None,
    temperature: float | None = None,
    limit: int | None = None,
    choice: Choice | None = None,
    known: Known | None = None,
    turns: TurnRule | None = None,
    reading: Reading | None = None,
) -> Dump:
    """Open a folder of dumped states.

    Args:
        boundaries: of the stored states, in stored order; None where the files themselves say.
        read: the boundaries wanted, None for all; only these are read from disk.
        temperature: at which the responses were generated; None for what the files say.
        limit: at most this many samples; short for `choice`.
        known: the target's hidden size, and how axes stand, for layouts that need it.
        turns: where the target's tokens are, for layouts that hold no loss mask.
        reading: takes what the passes come upon, instead of one of the dump's own.

    Raises:
        InputError: if no layout fits the folder, its first files cannot be used, the number of stored states is not
            the number of stated boundaries, or a wanted boundary is not among the stated ones.
    """
    path, choice, known = Path(path), choice or Choice(limit=limit), known or Known()
    layout = recognise_layout(path)
    known = replace(known, n_states=len(boundaries) if boundaries is not None else known.n_states)
    stored = first_sample(path, layout, known)
    if boundaries is None and stored.boundaries is None:
        raise InputError(
            f"{path} holds {len(stored.states)} states a token and does not say which; state their boundaries in"
            " stored order, as in boundaries = [0, 3, 16, 28, 30]."
        )
    boundaries = stored.boundaries if boundaries is None else tuple(boundaries)
    if len(stored.states) != len(boundaries):
        raise _count_error(path, len(stored.states), boundaries)
    if len(set(boundaries)) != len(boundaries):
        raise InputError(
            f"The boundaries {list(boundaries)} stated for {path} repeat one; state each stored state once."
        )
    read = boundaries if read is None else tuple(read)
    for boundary in read:
        if boundary not in boundaries:
            held = ", ".join(map(boundary_name, boundaries))
            raise InputError(f"{path} holds {held} and not {boundary_name(boundary)}, which was asked for.")
    found = reading or Reading()
    return Dump(
        path, layout, boundaries, read, stored.boundaries, temperature, choice, known, turns or TurnRule(), found
    )


def layout_boundaries(path: Path, known: Known, origin: Origin) -> tuple[Boundary, ...]:
    """The boundaries of a dump's states by what its files say or by its layout's own rule.

    Raises:
        InputError: as `recognise_layout` and `first_sample`, or if neither says.
    """
    layout = recognise_layout(path)
    stored = first_sample(path, layout, known)
    if (found := layout.boundaries(stored, origin)) is None:
        named = "" if origin.target else ", or name the target"
        raise InputError(
            f"State the boundaries of the {len(stored.states)} states in {path}{named}; {layout.label} does not say."
        )
    return found


def first_sample(path: Path, layout: Layout, known: Known) -> StoredSample:
    """The first sample that can be used.

    Raises:
        InputError: that of the first file, if the first `TRIED` are all bad.
    """
    first = None
    for file in islice(layout.files(path), TRIED):
        try:
            for stored in _read(layout, file, known):
                return stored
        except InputError as error:
            first = first or error
    raise first or InputError(f"The files of {path} hold no sample.")


def count_files(path: Path) -> int:
    """How many files of samples a dump has.

    Raises:
        InputError: as `recognise_layout`.
    """
    return sum(1 for _ in recognise_layout(path).files(path))


def _read(layout: Layout, file: Path, known: Known) -> Iterator[StoredSample]:
    """A file's samples, what the operating system refuses in a sentence too."""
    try:
        yield from layout.read(file, known)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror or error}); check its rights and its disk.") from None


def recognise_layout(path: Path) -> Layout:
    """The layout of a dump's folder.

    Raises:
        InputError: if the folder does not exist or no known layout fits it.
    """
    if not path.is_dir():
        raise InputError(
            f"Expected a folder of dumped states at {path}, found {'a file' if path.exists() else 'nothing'}."
        )
    glance = Glance(path)
    for layout in ecosystems.LAYOUTS:
        if layout.fits(glance):
            return layout
    found = ", ".join(glance.names[:5]) or "nothing"
    known = "; ".join(layout.label for layout in ecosystems.LAYOUTS)
    raise InputError(f"No known dump layout fits {path}, which holds {found}.{glance.trouble} Known: {known}.")


def _count_error(where: Path | str, n_states: int, boundaries: tuple[Boundary, ...]) -> InputError:
    stated = ", ".join(map(boundary_name, boundaries))
    return InputError(
        f"Expected {len(boundaries)} states a token in {where}, as stated ({stated}), found {n_states};"
        " correct the boundaries in the case or point it at another dump."
    )
