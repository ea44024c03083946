"""What every engine and trainer says about layer ids, in boundaries.

An engine turns the ids of a draft's config.json into captures of the target's residual stream, each by a
rule of its own: the same list means different boundaries in different engines, and in different versions of
one engine. Subclasses state the rule of one system; they are read from its source and name the file.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle3lib.boundaries import boundary_name
from eagle3lib.ecosystems._config_ids import TOP_LEVEL, LayerIds, config_lines
from eagle3lib.ecosystems._reading import Header, Rules
from eagle3lib.errors import InputError
from eagle3lib.sampling import Sampling

#: The remedy that serves everywhere: the number sizes a table and changes no weight.
RAISE_LIMIT = "Set max_position_embeddings in the draft's config.json to the context that the target is served with."


@dataclass(frozen=True)
class TargetShape:
    """What a rule may depend on besides the ids."""

    n_layers: int
    architecture: str | None = None  # the Hugging Face name, "LlamaForCausalLM"


@dataclass(frozen=True)
class Captures:
    """The ids that make an engine capture given boundaries, or one sentence why none do."""

    ids: tuple[int, ...] | None
    problem: str | None
    note: str


@dataclass(frozen=True)
class Beyond:
    """What an engine does with positions at or past the draft's own `max_position_embeddings`.

    Attributes:
        outcome: "stops" before it serves; "served" with angles as the replay has them; "undrafted", so that no draft
            is accepted; "unsafe", for reads outside the rope table; "unknown", where no source was read.
    """

    outcome: Literal["stops", "served", "undrafted", "unsafe", "unknown"]
    sentence: str
    remedy: str


@dataclass(frozen=True)
class Patch:
    """Lines for a draft's config.json; without `ids`, an empty text and a note on what it would take."""

    engine: str
    version: str
    ids: tuple[int, ...] | None
    key: str
    text: str
    note: str


class Engine(ABC):
    """A serving engine. `version=None` everywhere stands for `default_version`."""

    name: str
    label: str
    verified: str  # the newest version whose source was read
    key: str = TOP_LEVEL  # where this engine wants the ids
    temperature_last: bool = False  # tokens are cut by top-k and top-p before the temperature, not after it

    @property
    def default_version(self) -> str:
        return self.verified

    @abstractmethod
    def read_ids(self, config: dict[str, Any]) -> LayerIds:
        """The ids this engine uses of a draft's config.json."""

    @abstractmethod
    def boundaries(self, ids: LayerIds, target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        """The boundaries captured, in the order in which they reach `fc`.

        Raises:
            InputError: where the engine stops or feeds something else than a boundary.
        """

    @abstractmethod
    def problem(self, boundaries: Sequence[int], target: TargetShape, version: str | None = None) -> str | None:
        """One sentence why this version cannot feed `fc` with these boundaries in this order, or None."""

    @abstractmethod
    def encode(self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        """The ids of boundaries without a problem."""

    def sampling(self, temperature: float, top_k: int | None = None, top_p: float = 1.0) -> Sampling:
        """How this engine draws from the target: top-k, then top-p of what is left, ties kept.

        vLLM: v1/sample/ops/topk_topp_sampler.py. SGLang: speculative/eagle_info.py, `verify`.
        """
        return Sampling(temperature, top_k, top_p, self.temperature_last)

    def draft_sampling(self, sampling: Sampling) -> Sampling:
        """How it draws from a draft, where it draws at all: at the request's temperature, nothing cut.

        vLLM: v1/spec_decode, `compute_probs_and_sample_next_token`. SGLang: speculative/spec_utils.py,
        `renorm_draft_probs`.
        """
        return Sampling(sampling.temperature)

    def rules(self, draft: Header) -> Rules:
        """What this engine does with such a draft besides its layer ids, as of `verified`."""
        return Rules({}, (), ())

    def stops(self, draft: Header) -> list[str]:
        """Why this engine would not load the draft at all, as of `verified`; [] where it would."""
        return []

    def beyond(self, limit: int, version: str | None = None) -> Beyond:
        """What happens where the target serves a longer context than `limit`, the draft's max_position_embeddings."""
        return Beyond("unknown", f"What {self.label} does beyond {limit} positions was not read.", RAISE_LIMIT)

    def note(self, target: TargetShape, version: str | None = None) -> str:
        """What the rule is and which version it was read in."""
        return self.as_of(version)

    def as_of(self, version: str | None) -> str:
        if version is None or version == self.verified:
            return f"as of {self.label} {self.verified}"
        return f"for {self.label} {version}, by its source up to {self.verified}"

    def ids(self, boundaries: Sequence[int], target: TargetShape, version: str | None = None) -> Captures:
        """The inverse of `boundaries`."""
        problem = self.problem(boundaries, target, version) if boundaries else "No boundary was given."
        encoded = None if problem else self.encode(tuple(boundaries), target, version)
        return Captures(encoded, problem, self.note(target, version))

    def patch(
        self,
        config: dict[str, Any],
        boundaries: Sequence[int],
        target: TargetShape,
        version: str | None = None,
    ) -> Patch:
        """The lines of config.json that make this engine feed `fc` with these boundaries."""
        captures = self.ids(boundaries, target, version)
        text, note = "", captures.note
        if captures.ids is None:
            note = (
                f"{captures.problem} ({note}) Its model code would have to capture, and concatenate in this "
                f"order: {_in_words(boundaries, target)}. Or serve the rewired checkpoint: fc's column "
                "blocks moved to the slots where their boundaries are served, and the engine left as it is."
            )
        else:
            text = config_lines(config, self.settings(captures.ids))
        return Patch(self.name, version or self.default_version, captures.ids, self.key, text, note)

    def settings(self, ids: tuple[int, ...]) -> dict[str, Any]:
        """Key paths of config.json and the values they need."""
        return {self.key: list(ids)}


class Trainer(ABC):
    """A training library: what its ids mean, and what its dumps hold."""

    name: str
    label: str
    verified: str

    @abstractmethod
    def read_ids(self, config: dict[str, Any]) -> LayerIds:
        """The ids in a draft's config.json, as this trainer writes them."""

    @abstractmethod
    def boundaries(self, ids: LayerIds, target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        """The boundaries `fc` was trained on, in order."""

    @abstractmethod
    def dump_boundaries(
        self, layout: Literal["current", "list"], ids: LayerIds, target: TargetShape
    ) -> tuple[int, ...]:
        """The boundaries of a dump's states in stored order, by the layout's own rule."""

    def slots_and_teacher(self, stored: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """How the trainer splits stored states: all but the last feed `fc`, the last is the teacher."""
        if len(stored) < 2:
            raise InputError(f"A dump needs a state for fc and one for the teacher; found {len(stored)}.")
        return stored[:-1], stored[-1]


def release(version: str) -> tuple[int, ...]:
    """(0, 5, 12) of "0.5.12.post1": enough to order releases."""
    numbers = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if numbers is None:
        raise InputError(f"An engine version looks like 0.5.23; found {version!r}.")
    return tuple(int(n or 0) for n in numbers.groups())


def _in_words(boundaries: Sequence[int], target: TargetShape) -> str:
    words = {0: "the embedding output", target.n_layers: "the last block's output, before the final norm"}
    return ", ".join(
        f"{boundary_name(b)} ({words.get(b, f'the input of block {b}, counted from 0')})" for b in boundaries
    )
