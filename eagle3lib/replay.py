"""What a case allows to be replayed: which wirings, on which samples, and other drafts on the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagle3lib.boundaries import Boundary, Wiring, boundary_name
from eagle3lib.checkpoints import Contender, compare
from eagle3lib.investigation import Investigation
from eagle3lib.rewire import rewire
from eagle3lib.rollout import Rollout, rollout
from eagle3lib.rounds import Chances, chances
from eagle3lib.sample import Sample
from eagle3lib.until_miss import rollout_until_miss

Rollouts = list[Rollout] | list[Chances]


@dataclass(frozen=True)
class Replayable:
    """What can be replayed of a case.

    Attributes:
        wirings: by name, "trained" and "served", as far as they are known and held; the first is the reference.
        samples: greedy responses that hold what they need.
        left_open: for each wiring that is known and cannot be replayed, the question and what it needs.
    """

    wirings: dict[str, Wiring]
    samples: list[Sample]
    left_open: tuple[tuple[str, str], ...]

    @property
    def first(self) -> str | None:
        """The reference's name, None where nothing can be replayed."""
        return next(iter(self.wirings), None)


def replayable(inv: Investigation, searched: Sequence[Boundary] | None) -> Replayable:
    """The wirings of a case that its dumps hold, and the samples.

    Args:
        searched: what the search says fed `fc` in training; it wins over what the files imply.
    """
    fed = inv.trained.wiring if inv.trained else None
    if searched:
        fed = replace(fed, slots=tuple(searched)) if fed else Wiring(tuple(searched))
    known = {"trained": fed, "served": inv.served.wiring if inv.served else None}
    wirings = {name: wiring for name, wiring in known.items() if wiring}
    n_slots, left_open = inv.draft.config.n_slots, []

    def leave_open(name: str, needs: str) -> None:
        wirings.pop(name)
        left_open.append((f"What acceptance length does the {name} wiring yield?", needs))

    for name, wiring in tuple(wirings.items()):
        if len(wiring.slots) != n_slots:
            leave_open(name, f"one boundary for each of fc's {n_slots} slots; {wiring} is {len(wiring.slots)}")
    samples = inv.replay_samples([b for w in wirings.values() for b in w.slots]) if wirings else []
    held = next((name for name, w in wirings.items() if inv.sections(w.slots)), None)
    if not samples and held:  # the dumps do not hold both, so one is replayed alone
        for name in set(wirings) - {held}:
            leave_open(name, f"a greedy dump that holds {', '.join(map(boundary_name, wirings[name].slots))}")
        samples = inv.replay_samples(wirings[held].slots)
    return Replayable(wirings, samples, tuple(left_open))


def replay(inv: Investigation, chosen: Replayable, steps: int) -> dict[str, Rollouts]:
    """Rollouts of every wiring, and "rewired" where the served one differs and holds a trained boundary.

    The reference is rolled out whole, the others up to each start's first miss, which is all that acceptance asks.
    """
    if not chosen.samples:
        return {}
    draft, wirings, samples = inv.draft, chosen.wirings, chosen.samples
    first, *others = wirings

    def until_miss(of, wiring: Wiring) -> list[Chances]:
        return [chances(found) for found in rollout_until_miss(of, samples, wiring, steps)]

    rollouts: dict[str, Rollouts] = {first: [rollout(draft, s, wirings[first], steps) for s in samples]}
    rollouts |= {name: until_miss(draft, wirings[name]) for name in others}
    trained, served = (wirings.get(name) for name in ("trained", "served"))
    if trained and served and trained != served and set(trained.slots) & set(served.slots):
        rollouts["rewired"] = until_miss(rewire(draft, trained, served).draft, served)
    return rollouts


def contenders(inv: Investigation, chosen: Replayable, own: Sequence[Rollout], steps: int) -> list[Contender]:
    """The case's other drafts on the same samples under the reference wiring, its own draft first.

    Args:
        own: the reference's rollouts.
    """
    runs, training = {inv.case.draft.path.name: own}, {}
    for section in inv.case.drafts:
        draft = inv.contender(section)
        runs[section.name] = [rollout(draft, s, chosen.wirings[chosen.first], steps) for s in chosen.samples]
        if section.step is not None:
            training[section.name] = (section.step, section.loss)
    return compare(runs, steps, training)
