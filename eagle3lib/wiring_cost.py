"""What a served wiring costs against that of training, and what moved columns bring back."""

from __future__ import annotations

from functools import cached_property

from eagle3lib.acceptance import Acceptance, acceptance, length_difference
from eagle3lib.bootstrap import Estimate
from eagle3lib.investigation import Investigation
from eagle3lib.rewire import Rewired, rewire
from eagle3lib.rollout import Rollout
from eagle3lib.sample import Sample
from eagle3lib.search import Searches
from eagle3lib.until_miss import rollout_until_miss


class WiringCost:
    """The draft as "trained", as "served" and "rewired", on the same samples, replayed when first asked for.

    Args:
        searches: they say what fed `fc` in training.
        steps: draft length K.
    """

    def __init__(self, inv: Investigation, searches: Searches, steps: int) -> None:
        self.inv, self.searches, self.steps = inv, searches, steps

    @cached_property
    def samples(self) -> list[Sample]:
        """Greedy responses that hold both wirings; [] where one of them is unknown, or no dump holds both."""
        fed, served = self.searches.fed, self.inv.served
        return self.inv.replay_samples([*fed.slots, *served.wiring.slots]) if fed and served else []

    @property
    def differs(self) -> bool:
        """Whether there are samples, and two wirings to tell apart on them."""
        return bool(self.samples) and self.searches.fed != self.inv.served.wiring

    @cached_property
    def rewired(self) -> Rewired | None:
        """The draft with its columns moved; None where the wirings do not differ, or no trained boundary is served."""
        if not self.differs:
            return None
        fed, served = self.searches.fed, self.inv.served.wiring
        return rewire(self.inv.draft, fed, served) if set(fed.slots) & set(served.slots) else None

    @cached_property
    def rollouts(self) -> dict[str, list[Rollout]]:
        """Of every sample up to each start's first miss, by name; {} without samples."""
        if not self.samples:
            return {}
        draft, served = self.inv.draft, self.inv.served.wiring
        runs = {"trained": (draft, self.searches.fed), "served": (draft, served)}
        if self.rewired:
            runs["rewired"] = (self.rewired.draft, served)
        return {name: rollout_until_miss(d, self.samples, wiring, self.steps) for name, (d, wiring) in runs.items()}

    @cached_property
    def lengths(self) -> dict[str, Acceptance]:
        """Acceptance of each replay."""
        return {name: acceptance(found, self.steps) for name, found in self.rollouts.items()}

    def gain(self, first: str, second: str) -> Estimate:
        """The acceptance length of `first` less that of `second`, paired by sample."""
        return length_difference(self.rollouts[first], self.rollouts[second], self.steps)
