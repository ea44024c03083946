"""What every engine and trainer says about layer ids, in boundaries, both ways.

The same list means different boundaries to different systems, and in different versions of one. A rule is a shift
(id i is B(i + shift)), an order, a reach and what an absent or an empty list stands for; subclasses state what is
particular to one system, read from its source, and name the file.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle3lib.boundaries import boundary_name
from eagle3lib.ecosystems._config_ids import TOP_LEVEL, LayerIds, default_trio, read_at, unread
from eagle3lib.errors import InputError


@dataclass(frozen=True)
class TargetShape:
    """What a rule may depend on besides the ids."""

    n_layers: int
    architecture: str | None = None  # the Hugging Face name, "LlamaForCausalLM"


@dataclass(frozen=True)
class Captures:
    """The ids that make a system capture given boundaries, or one sentence why none do."""

    ids: tuple[int, ...] | None
    problem: str | None
    note: str


class System(ABC):
    """An engine or a trainer. `version=None` everywhere stands for `default_version`."""

    name: str
    label: str
    verified: str  # the newest version whose source was read
    numbered = True  # whether `verified` is a release, or else says which commits
    key: str = TOP_LEVEL  # where it wants the ids
    shift = 0  # id i is B(i + shift)
    keeps_order = False  # whether states reach fc in the list's order, or else from low to high and once each
    empty_is_default = True  # whether [] stands for the default, as absent and null do

    @property
    def default_version(self) -> str:
        return self.verified

    def read_ids(self, config: dict[str, Any]) -> LayerIds:
        """The ids this system uses of a draft's config.json, as read at `key` alone.

        Raises:
            InputError: if what stands there is no list of integers.
        """
        found = read_at(config, self.key)
        ids = (found.ids or None) if self.empty_is_default else found.ids
        return LayerIds(ids, found.spelling, unread(config, self.key))

    def default(self, target: TargetShape) -> tuple[int, ...]:
        """The boundaries captured where no ids are given."""
        return default_trio(target.n_layers)

    def asked(self, ids: LayerIds, target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        """The boundaries that ids stand for in the order in which they would reach `fc`, captured or not."""
        listed = self.default(target) if ids.ids is None else tuple(i + self.shift for i in ids.ids)
        return listed if self.keeps_order else tuple(sorted(set(listed)))

    def boundaries(self, ids: LayerIds, target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        """The boundaries captured, in the order in which they reach `fc`.

        Raises:
            InputError: where the system stops, or feeds something else than a boundary.
        """
        if problem := self.trouble(ids, target, version):
            raise InputError(problem)
        return self.asked(ids, target, version)

    def trouble(self, ids: LayerIds, target: TargetShape, version: str | None = None) -> str | None:
        """One sentence why `boundaries` would refuse these ids, or None."""
        asked = self.asked(ids, target, version)
        listed = tuple(b - self.shift for b in self.default(target)) if ids.ids is None else ids.ids
        problem = self.refused_list(listed, target)
        problem = problem or (self.problem(asked, target, version) if asked else "An empty list captures nothing.")
        if not problem:
            return None
        named = "its default ids" if ids.ids is None else f"the ids {list(ids.ids)}"
        return f"{self.label} cannot feed fc by {named} ({ids.spelling}): {problem}"

    def ids(self, boundaries: Sequence[int], target: TargetShape, version: str | None = None) -> Captures:
        """The inverse of `boundaries`."""
        problem = self.problem(boundaries, target, version) if boundaries else "No boundary was given."
        encoded = None if problem else self.encode(tuple(boundaries), target, version)
        return Captures(encoded, problem, self.note(target, version))

    def problem(self, boundaries: Sequence[int], target: TargetShape, version: str | None = None) -> str | None:
        """One sentence why this version cannot feed `fc` with these boundaries in this order, or None."""
        where = f"{self.label} {version or self.default_version}" if self.numbered else self.label
        said = [self.refused(b, target, version) for b in boundaries]
        if why := next(filter(None, said), None):
            return f"{where} {why}"
        if not self.keeps_order and any(low >= high for low, high in zip(boundaries, boundaries[1:], strict=False)):
            return f"{where} feeds fc from low to high and once each, whatever the order of the ids."
        why = self.refused_together(tuple(boundaries), target, version)
        return f"{where} {why}" if why else None

    def encode(self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        """The ids of boundaries without a problem."""
        return tuple(b - self.shift for b in boundaries)

    def reach(self, target: TargetShape) -> range:
        """The boundaries that ids from 0 up can name."""
        return range(self.shift, target.n_layers + 1)

    def refused(self, boundary: int, target: TargetShape, version: str | None = None) -> str | None:
        """Why one boundary cannot be captured, as the rest of a sentence; None where it can."""
        reach = self.reach(target)
        if boundary in reach:
            return None
        return (
            f"captures B({reach[0]}) to B({reach[-1]}) of this target, and {boundary_name(boundary)} is none of them."
        )

    def refused_together(
        self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None
    ) -> str | None:
        """Why boundaries that can each be captured cannot be together, as the rest of a sentence."""
        return None

    def refused_list(self, ids: tuple[int, ...], target: TargetShape) -> str | None:
        """One sentence why a list, the default's too, is refused as it stands, whatever it names."""
        return None

    def changes(self, target: TargetShape) -> tuple[str, ...]:
        """The releases from which another rule holds for this target, oldest first, with the one read last."""
        return (self.default_version,)

    def note(self, target: TargetShape, version: str | None = None) -> str:
        """What the rule is and which version it was read in."""
        return self.as_of(version)

    def as_of(self, version: str | None) -> str:
        """Which version the rule was read in."""
        if not self.numbered:
            return f"{self.label} {self.verified}" + (f", not read in {version}" if version else "")
        if version is None or version == self.verified:
            return f"as of {self.label} {self.verified}"
        return f"for {self.label} {version}, by its source up to {self.verified}"


def release(version: str) -> tuple[int, ...]:
    """(0, 5, 12) of "0.5.12.post1": enough to order releases."""
    numbers = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if numbers is None:
        raise InputError(f"An engine version looks like 0.5.23; found {version!r}.")
    return tuple(int(n or 0) for n in numbers.groups())
