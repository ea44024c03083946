"""A case, opened: its draft, target and dumps, and the wirings that its files imply, each with its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from eagle3lib import ecosystems
from eagle3lib.axes import Known
from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.case import Case, ContenderSection, DumpSection
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.config import DraftConfig
from eagle3lib.dialects import Checkpoint, read_checkpoint
from eagle3lib.dumps import (
    Choice,
    Dump,
    Reading,
    count_files,
    first_sample,
    layout_boundaries,
    open_dump,
    recognise_layout,
)
from eagle3lib.ecosystems import Engine, LayerIds, Origin, TargetShape, Trainer
from eagle3lib.infer import infer_config
from eagle3lib.sample import Sample
from eagle3lib.target import Target, load_target
from eagle3lib.tensors import read_json
from eagle3lib.turns import TurnRule

#: Files of a dump that are read where the case does not choose: lists of samples stay small, as their states are
#: mapped, and passes over them end within an hour.
MANY = 512


@dataclass(frozen=True)
class Derived:
    """A wiring and where it was read: the case, a config file, or a layout's rule."""

    wiring: Wiring
    source: str


class Investigation:
    """Opens what a case names, when it is first asked for."""

    def __init__(self, case: Case, device: str = "auto", dtype: torch.dtype = torch.float32) -> None:
        self.case = case
        self._device, self._dtype = device, dtype
        self.readings: dict[str, Reading] = {}  # by dump: what reading it came upon
        self._boundaries: dict[str, tuple[Boundary, ...]] = {}
        self._temperatures: dict[str, float | None] = {}
        self._counts: dict[str, int] = {}

    @cached_property
    def target(self) -> Target | None:
        """The target's parts, None where the case names no target."""
        return load_target(self.case.target.path) if self.case.target else None

    @cached_property
    def draft(self) -> Draft:
        """The draft, in float32 unless asked otherwise."""
        return load_draft(self.case.draft.path, self.target, self._device, self._dtype)

    def contender(self, section: ContenderSection) -> Draft:
        """Another draft of the case, as `draft` is."""
        return load_draft(section.path, self.target, self._device, self._dtype)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The draft's files as its headers describe them."""
        return read_checkpoint(self.case.draft.path)

    @cached_property
    def pass_config(self) -> DraftConfig:
        """What the draft's pass does, by its headers alone: no target is needed and no weight is read."""
        shapes = {name: info.shape for name, info in self.checkpoint.tensors.items()}
        return infer_config(self.checkpoint.path, self.checkpoint.config, shapes)

    @property
    def draft_config(self) -> dict:
        """The draft's config, as found: config.json, or the header of a GGUF file."""
        return self.checkpoint.raw_config

    @cached_property
    def _told_trainer(self) -> Trainer | None:
        """Whose rule reads the draft's own ids: stated by the case, else who writes its form, None where several do."""
        if self.case.draft.trainer is not None:
            return ecosystems.trainer(self.case.draft.trainer)
        form = ecosystems.FORMS.get(self.checkpoint.form)
        return form.trainer if form else None

    @property
    def trainer(self) -> Trainer:
        """Whose rule reads the draft's own ids; speculators' where neither the case nor the form tells."""
        return self._told_trainer or ecosystems.trainer("speculators")

    @property
    def trainer_is_told(self) -> bool:
        """Whether the case or the draft's form names the trainer."""
        return self._told_trainer is not None

    @property
    def engine(self) -> Engine | None:
        """What serves, None where the case does not say."""
        return ecosystems.engine(self.case.served.engine) if self.case.served else None

    @cached_property
    def shape(self) -> TargetShape | None:
        """Depth and architecture of the target, as far as the case or the target's files tell."""
        section = self.case.target
        if section is None:
            return None
        n_layers = section.n_layers or self.target.n_layers
        return TargetShape(n_layers, section.architecture or self.target.architecture)

    @property
    def training_flags(self) -> Wiring:
        """The flags of the pass in training as the case states them, without slots."""
        return Wiring((), **self.case.training.flags.model_dump())

    @cached_property
    def trained(self) -> Derived | None:
        """What fed `fc` in training: stated by the case, else by the draft's ids, else by the layout's rule where a
        dump holds just the slots and the teacher; None where none says."""
        flags = self.training_flags
        if self.case.training.boundaries is not None:
            return Derived(replace(flags, slots=self.case.training.boundaries), "stated in the case")
        trainer = self.trainer
        ids = trainer.read_ids(self.draft_config)
        if self.shape is None or (ids.ids is None and not trainer.fixed):
            slots, _ = self.by_layout
            return Derived(replace(flags, slots=slots), "the dump layout's own rule") if slots else None
        slots = trainer.boundaries(ids, self.shape)
        if trainer.fixed:
            return Derived(replace(flags, slots=slots), f"{trainer.label}'s own, without ids")
        listed = f"{ids.spelling} = {list(ids.ids)} in the draft's config.json"
        assumed = "" if self.trainer_is_told else ", which neither the case nor its form names as the trainer"
        return Derived(replace(flags, slots=slots), f"{listed}, as {trainer.label} reads them{assumed}")

    @cached_property
    def served_ids(self) -> LayerIds | None:
        """The ids that the engine uses of the served config, None where the case states what was captured, or no
        engine or no target."""
        section = self.case.served
        if section is None or section.boundaries is not None or self.shape is None:
            return None
        return self.engine.read_ids(self.served_config)

    @cached_property
    def served_trouble(self) -> str | None:
        """One sentence why the engine cannot feed `fc` with boundaries by the served ids: it stops, or feeds something
        else, such as zeros. None where it can, or where nothing is known."""
        if self.served_ids is None:
            return None
        return self.engine.trouble(self.served_ids, self.shape, self.case.served.version)

    @cached_property
    def served(self) -> Derived | None:
        """What feeds `fc` in serving: stated by the case, else by the engine's reading of the served config. None
        where neither says, or where that reading feeds no boundaries: see `served_trouble`."""
        section, ids = self.case.served, self.served_ids
        flags = section.flags.model_dump() if section is not None else {}
        if section is not None and section.boundaries is not None:
            return Derived(Wiring(section.boundaries, **flags), "stated in the case")
        if ids is None or self.served_trouble:
            return None
        slots = self.engine.boundaries(ids, self.shape, section.version)
        listed = "no ids" if ids.ids is None else f"ids {list(ids.ids)}"
        passed = f", passing over {' and '.join(ids.ignored)}" if ids.ignored else ""
        version = section.version or self.engine.default_version
        return Derived(
            Wiring(slots, **flags), f"{listed} ({ids.spelling}), as {self.engine.label} {version} reads them{passed}"
        )

    @cached_property
    def served_config(self) -> dict:
        """The config.json that the engine was given."""
        section = self.case.served
        return read_json(section.config) if section and section.config else self.draft_config

    @cached_property
    def teacher(self) -> Boundary | None:
        """The boundary whose norm and head taught: the case, else the training record, else the layout's rule."""
        training = self.case.training
        if training.teacher is not None:
            return training.teacher
        return self.claim.get("teacher", self.by_layout[1])

    @cached_property
    def by_layout(self) -> tuple[tuple[Boundary, ...] | None, Boundary | None]:
        """Slots and teacher by the rule of the first greedy dump that holds exactly one state more than `fc` has
        slots; (None, None) where there is none."""
        for section in self.sections():
            stored = self.stored_boundaries(section)
            if len(stored) == self.pass_config.n_slots + 1:
                return self.trainer.slots_and_teacher(stored)
        return None, None

    @cached_property
    def claim(self) -> dict:
        """The training record, {} where the case names none."""
        record = self.case.training.record
        return read_json(record) if record else {}

    def stored_boundaries(self, section: DumpSection) -> tuple[Boundary, ...]:
        """The boundaries of a dump's states: stated by the case, else by its files or its layout's own rule.

        Raises:
            InputError: if the case does not say and nothing else does.
        """
        if section.boundaries is not None:
            return section.boundaries
        if section.name not in self._boundaries:
            ids = self.trainer.read_ids(self.draft_config)
            origin = Origin(self.trainer, ids, self.shape, self._slots_by_ids)
            self._boundaries[section.name] = layout_boundaries(section.path, self._known(section), origin)
        return self._boundaries[section.name]

    @property
    def _slots_by_ids(self) -> tuple[Boundary, ...] | None:
        """What fed `fc` by the case, or by its trainer's rule where that is told."""
        if self.case.training.boundaries is not None or self.shape is None or not self.trainer_is_told:
            return self.case.training.boundaries
        return self.trainer.trained(self.draft_config, self.shape)

    def _known(self, section: DumpSection) -> Known:
        stated = len(section.boundaries) if section.boundaries else None
        return Known(self.target.hidden_size if self.target else None, stated, section.axes)

    def temperature(self, section: DumpSection) -> float | None:
        """Of a dump's responses: stated by the case, else by its files."""
        if section.temperature is None and section.name not in self._temperatures:
            first = first_sample(section.path, recognise_layout(section.path), self._known(section))
            self._temperatures[section.name] = first.temperature
        return section.temperature if section.temperature is not None else self._temperatures[section.name]

    def open(self, section: DumpSection, read: Sequence[Boundary] | None = None) -> Dump:
        """One dump of the case. Of one with more than `MANY` files an even choice is read, unless the case chooses.

        Raises:
            InputError: as `open_dump`.
        """
        choice = Choice(section.limit, section.stride, section.seed, section.longest)
        reading = self.readings.setdefault(section.name, Reading())
        if not section.model_fields_set & {"limit", "stride", "seed"}:
            choice = self._bounded(section, choice, reading)
        return open_dump(
            section.path,
            self.stored_boundaries(section),
            read=read,
            temperature=section.temperature,
            choice=choice,
            known=self._known(section),
            turns=TurnRule(section.prompt_length, section.turn_begins, section.turn_ends),
            reading=reading,
        )

    def _bounded(self, section: DumpSection, choice: Choice, reading: Reading) -> Choice:
        """An even choice of at most `MANY` files of a dump that has more."""
        if section.name not in self._counts:
            self._counts[section.name] = count_files(section.path)
        n = self._counts[section.name]
        if n <= MANY:
            return choice
        stride = -(-n // MANY)
        reading.read, reading.found = -(-n // stride), n
        return replace(choice, stride=stride)

    def sections(self, needed: Sequence[Boundary] = (), *, greedy: bool = True) -> list[DumpSection]:
        """The dumps that hold every needed boundary, in the case's order; greedy ones only, or all. A dump that
        repeats another's tokens is left out, since they would count twice."""
        return [
            section
            for section in self.case.dumps
            if section.same_tokens_as is None
            and set(needed) <= set(self.stored_boundaries(section))
            and not (greedy and self.temperature(section))
        ]

    def common_boundaries(self, needed: Sequence[Boundary]) -> list[Boundary]:
        """What every greedy dump that holds the needed boundaries holds, in stored order; `needed` without one."""
        stored = [self.stored_boundaries(section) for section in self.sections(needed)]
        return [b for b in stored[0] if all(b in other for other in stored)] if stored else list(needed)

    def replay_samples(self, needed: Sequence[Boundary]) -> list[Sample]:
        """The greedy samples to replay: those that also hold B(n), which shows whether the tokens are the target's
        own, or where no dump does, all that hold the needed boundaries."""
        last = [self.shape.n_layers] if self.shape else []
        return self.samples([*needed, *last]) or self.samples(needed)

    def samples(self, needed: Sequence[Boundary], *, greedy: bool = True) -> list[Sample]:
        """Every sample of the dumps that hold the needed boundaries, carrying those alone. Its name is the dump's and
        the file's, since two dumps may name their files alike."""
        distinct = tuple(dict.fromkeys(needed))
        return [
            replace(sample, name=f"{section.name}/{sample.name}")
            for section in self.sections(distinct, greedy=greedy)
            for sample in self.open(section, distinct)
        ]
