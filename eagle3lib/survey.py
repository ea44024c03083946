"""What a draft, dumps, a target and a server's files tell of a case before it is written.

A case is made of what was given and opened as the notebooks open it, so that what is said here is what they will
read. Headers, a first sample of each dump, the target's small tensors and the server's logs are all that is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from eagle3lib.anchors import is_embedding, last_matches
from eagle3lib.axes import Known
from eagle3lib.boundaries import FINAL_NORMED, Boundary
from eagle3lib.case import Case, DraftSection, DumpSection, ServedSection, TargetSection, TrainingSection
from eagle3lib.checks.anchors import LAST_RATE
from eagle3lib.dialects import read_checkpoint
from eagle3lib.dumps import count_files, first_sample, recognise_layout
from eagle3lib.ecosystems import StoredSample
from eagle3lib.errors import InputError
from eagle3lib.findings import quantity
from eagle3lib.investigation import Derived, Investigation
from eagle3lib.sample import Sample
from eagle3lib.serving import ServedLog, read_served
from eagle3lib.target import Target

#: A target of fewer blocks may be a draft given in its place.
SHALLOW = 8


@dataclass(frozen=True)
class DumpSeen:
    """A dump before the case says anything of it.

    Attributes:
        label: of its layout.
        stored: its first sample, None where none can be read yet; then `trouble` says why.
        boundaries: of its states, by its files or its layout's rule; None where `trouble` says why not.
        trouble: one sentence on what the case must state before the dump can be read, "" where nothing.
        proved: place in stored order → what the target tells of the state there: B(0); or B(n) and its norm, the
            likelier of the two first.
    """

    section: DumpSection
    label: str
    n_files: int
    stored: StoredSample | None
    boundaries: tuple[Boundary, ...] | None
    trouble: str
    proved: dict[int, tuple[Boundary, ...]] = field(default_factory=dict)

    @property
    def masked(self) -> bool:
        """Whether its files say which tokens the target generated."""
        return self.stored is not None and self.stored.loss_mask is not None

    @property
    def usable(self) -> bool:
        """Whether the notebooks can read it as it is."""
        return self.boundaries is not None and self.masked and not self.contradicted

    @property
    def contradicted(self) -> bool:
        """Whether a state that the target tells stands elsewhere than its files or its layout's rule say."""
        return self.boundaries is not None and not self.agrees(self.boundaries)

    def agrees(self, boundaries: Sequence[Boundary]) -> bool:
        """Whether these could be its boundaries, by their number and by what is proved."""
        fits = (boundaries[place] in possible for place, possible in self.proved.items())
        return len(boundaries) == len(self.stored.states) and all(fits)


@dataclass(frozen=True)
class Survey:
    """What was given, opened.

    Attributes:
        investigation: of a case that states nothing but what was given.
        trained, served: what fed `fc`, None where the files do not tell; then the sentence beside it may say why.
        logs: of the server, read.
    """

    investigation: Investigation
    dumps: tuple[DumpSeen, ...]
    trained: Derived | None
    trained_trouble: str
    served: Derived | None
    logs: tuple[ServedLog, ...]

    @property
    def case(self) -> Case:
        """What was given and nothing more."""
        return self.investigation.case

    @property
    def usable(self) -> list[DumpSeen]:
        """The dumps that can be read as they are."""
        return [dump for dump in self.dumps if dump.usable]


def survey(
    draft: Path,
    dumps: list[Path] | None = None,
    target: Path | None = None,
    training: TrainingSection | None = None,
    served: ServedSection | None = None,
) -> Survey:
    """Open what was given.

    Raises:
        InputError: if a path leads nowhere, holds another of the three than it was given as, or cannot be read; or if
            a log tells nothing of speculation.
    """
    logs = tuple(map(read_served, served.logs if served else ()))
    draft, target = _whole(draft), target and _whole(target)
    sections = _dump_sections([_whole(path) for path in dumps or []])
    case = Case(
        name=draft.stem if draft.is_file() else draft.name,
        draft=DraftSection(path=draft),
        target=TargetSection(path=target) if target else None,
        training=training or TrainingSection(),
        dumps=sections,
        served=served,
    )
    inv = Investigation(case, "cpu")
    _open_draft(inv, draft)
    if target is not None:
        _open_target(inv, target)
    trained, trouble = _trained(inv)
    seen = tuple(_dump(section, inv) for section in sections)
    return Survey(inv, seen, trained, trouble, inv.served, logs)


def _whole(path: Path) -> Path:
    """From the root, its links left as they were given."""
    return Path(os.path.abspath(path))


def _open_draft(inv: Investigation, path: Path) -> None:
    try:
        _ = inv.checkpoint
    except InputError:
        if (label := _layout_label(path)) is not None:
            raise InputError(
                f"{path} is a dump of hidden states ({label}) and no draft; give it as --dump, and the folder with the"
                " draft's config.json and weights as --draft."
            ) from None
        raise


def _open_target(inv: Investigation, path: Path) -> None:
    try:
        shallow = inv.target.n_layers < SHALLOW
    except InputError:
        if not _is_draft(path):
            if (label := _layout_label(path)) is not None:
                raise InputError(
                    f"{path} is a dump of hidden states ({label}) and no target; give it as --dump."
                ) from None
            raise
        shallow = True
    if shallow and _is_draft(path):
        raise InputError(f"{path} is a draft and no target; give the model that it drafts for as --target.")


def _is_draft(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except InputError:
        return False
    return True


def _layout_label(path: Path) -> str | None:
    """The label of the dump layout that fits a path, None where none does."""
    try:
        return recognise_layout(path).label
    except InputError:
        return None


def _dump_sections(paths: list[Path]) -> tuple[DumpSection, ...]:
    """A section a folder, named by it; the same name a second time gets a number.

    Raises:
        InputError: if a folder was given twice.
    """
    sections: dict[str, DumpSection] = {}
    for path in paths:
        if any(section.path.resolve() == path.resolve() for section in sections.values()):
            raise InputError(f"--dump {path} was given twice; once is enough.")
        name = next(n for i in range(1, len(paths) + 1) if (n := path.name + f"-{i}" * (i > 1)) not in sections)
        sections[name] = DumpSection(name=name, path=path)
    return tuple(sections.values())


def _trained(inv: Investigation) -> tuple[Derived | None, str]:
    """What fed `fc` by the draft's own ids, or one sentence why they do not tell."""
    try:
        ids = inv.trainer.read_ids(inv.draft_config)
        if ids.ids is None and not inv.trainer.fixed:
            return None, f"the draft's config.json holds no layer ids for {inv.trainer.label} ({ids.spelling})"
        if inv.shape is None:
            return None, "the draft's layer ids mean boundaries only where the target's depth is known"
        return inv.trained, ""
    except InputError as error:
        return None, str(error)


def _dump(section: DumpSection, inv: Investigation) -> DumpSeen:
    """A dump's first sample, and what its layout tells of it.

    Raises:
        InputError: if there is no dump at its path.
    """
    path = section.path
    try:
        layout = recognise_layout(path)
    except InputError:
        if path.exists() and _is_draft(path):
            raise InputError(f"{path} is a draft and no dump of hidden states; give it as --draft.") from None
        raise
    n_files = count_files(path)
    try:
        stored = first_sample(path, layout, Known(inv.target.hidden_size if inv.target else None))
    except InputError as error:
        return DumpSeen(section, layout.label, n_files, None, None, str(error))
    proved = _proved(stored, inv.target) if inv.target else {}
    boundaries, trouble = None, ""
    try:
        boundaries = inv.stored_boundaries(section)
    except InputError as error:
        trouble = str(error)
    if boundaries is not None and len(boundaries) != len(stored.states):
        n, held = len(boundaries), len(stored.states)
        trouble = f"Its layout's rule gives {quantity(n, 'boundary', 'boundaries')}, and its files hold {held} states."
        boundaries = None
    return DumpSeen(section, layout.label, n_files, stored, boundaries, trouble, proved)


def _proved(stored: StoredSample, target: Target) -> dict[int, tuple[Boundary, ...]]:
    """Place → boundary of the states that are the embedding output, or give the recorded tokens by the head."""
    places = [i for i, state in enumerate(stored.states) if state.shape[1] == target.hidden_size]
    n_tokens = len(stored.token_ids)
    mask = torch.arange(n_tokens) >= n_tokens // 2 if stored.loss_mask is None else stored.loss_mask
    # Negative names, so that no state passes for one that was stated as the last.
    states = {-1 - i: stored.states[i] for i in places}
    sample = Sample(stored.name, stored.token_ids, mask, states, temperature=0.0)
    try:
        found = {i: (0,) for i in places if is_embedding(target, stored.states[i], stored.token_ids)}
        last = max(last_matches(target, [sample], list(states)), key=lambda m: m.rate, default=None)
    except InputError:  # tokens outside the target's vocabulary, which notebook 02 names
        return {}
    if last is not None and last.rate >= LAST_RATE:
        possible = (target.n_layers, FINAL_NORMED)
        found[-1 - last.boundary] = possible[::-1] if last.normed else possible
    return found
