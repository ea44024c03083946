"""What a case allows to be replayed: which wirings, on which samples, and other drafts on the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagle3lib.boundaries import Boundary, Wiring, boundary_name
from eagle3lib.checkpoint import Draft
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
    n_slots, left_open = inv.pass_config.n_slots, []

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


def runs(inv: Investigation, chosen: Replayable) -> dict[str, tuple[Draft, Wiring]]:
    """The draft and the wiring of each replay, the reference first; "rewired" is among them where the served wiring
    differs and holds a trained boundary."""
    draft, wirings = inv.draft, chosen.wirings
    found = {name: (draft, wiring) for name, wiring in wirings.items()}
    trained, served = (wirings.get(name) for name in ("trained", "served"))
    if trained and served and trained != served and set(trained.slots) & set(served.slots):
        found["rewired"] = (rewire(draft, trained, served).draft, served)
    return found


def replay(inv: Investigation, chosen: Replayable, steps: int) -> dict[str, Rollouts]:
    """Rollouts of every one of the `runs`.

    The reference is rolled out whole, the others up to each start's first miss, which is all that acceptance asks.
    """
    if not chosen.samples:
        return {}
    (first, (draft, wiring)), *others = runs(inv, chosen).items()
    rollouts: dict[str, Rollouts] = {first: [rollout(draft, s, wiring, steps) for s in chosen.samples]}
    for name, (other, wiring) in others:
        found = rollout_until_miss(other, chosen.samples, wiring, steps)
        rollouts[name] = [chances(one) for one in found]
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
