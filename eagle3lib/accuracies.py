"""The accuracy of a case's draft under the training wiring, against each truth and beside what its trainer claims."""

from __future__ import annotations

from functools import cached_property

from eagle3lib.investigation import Investigation
from eagle3lib.sample import Sample
from eagle3lib.training import StepCounts, Truth, step_counts, truth_name
from eagle3lib.truths import Claim, Reproduction, every_truth, search_truth, teachable


class Accuracies:
    """Counted, and held against the claim, when they are first asked for.

    Args:
        steps: draft steps to count.
    """

    def __init__(self, inv: Investigation, steps: int) -> None:
        self.inv, self.steps = inv, steps

    @cached_property
    def claimed(self) -> Claim | None:
        """What the trainer says, None where nothing does."""
        return Claim.of(self.inv)

    @cached_property
    def samples(self) -> list[Sample]:
        """Greedy responses that hold the training wiring and the teacher, with all that their dumps have in common; []
        where the wiring is unknown, or no dump holds it."""
        if self.inv.trained is None:
            return []
        needed = [*self.inv.trained.wiring.slots, self.inv.teacher or 0]
        return self.inv.samples(self.inv.common_boundaries(needed))

    @cached_property
    def counted(self) -> dict[Truth, StepCounts]:
        """Against every truth over the draft's vocabulary; {} without samples."""
        if not self.samples:
            return {}
        truths = every_truth(teachable(self.samples) if self.inv.target else [], full=False)
        return step_counts(self.inv.draft, self.samples, self.inv.trained.wiring, self.steps, truths, self.inv.target)

    @property
    def truths(self) -> dict[str, StepCounts]:
        """The same by the names that pages use."""
        return {truth_name(truth): counts for truth, counts in self.counted.items()}

    @cached_property
    def best(self) -> str:
        """The truth that step 0 gives most often."""
        return max(self.truths, key=lambda name: self.truths[name].full_acc(0).value)

    @property
    def teacher(self) -> str:
        """The truth that taught, as far as that is known, else the best."""
        return truth_name(self.inv.teacher) if self.inv.teacher is not None else self.best

    @cached_property
    def found(self) -> list[Reproduction]:
        """What gives the claim, or comes near; [] without samples or a claim."""
        if not (self.counted and self.claimed):
            return []
        return search_truth(self.inv, self.samples, self.inv.trained.wiring, self.counted, self.claimed)

    @property
    def reproduced(self) -> dict[Truth, bool]:
        """Of each truth under the training wiring, whether the claim comes back."""
        return {r.truth: r.inside for r in self.found if r.wiring == self.inv.trained.wiring}
