"""Stages `wiring` and `recurrence`: is `fc` fed in serving as in training, and do later steps hold up."""

from __future__ import annotations

from eagle3lib.acceptance import Acceptance
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Wiring, boundary_name
from eagle3lib.ecosystems import Engine, LayerIds
from eagle3lib.findings import Finding, Severity, quantity
from eagle3lib.search import Search

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK


def check_served_ids(engine: Engine, ids: LayerIds, trouble: str | None, remedy: str = "") -> list[Finding]:
    """The engine feeds `fc` no boundaries by the served ids, or passes over a list that stands elsewhere.

    Args:
        ids, trouble: as `Investigation.served_ids` and `served_trouble` give them.
        remedy: the lines that would make it feed the training wiring, where that is known.
    """
    evidence = {
        "engine": engine.name,
        "ids": None if ids.ids is None else list(ids.ids),
        "spelling": ids.spelling,
        "passed_over": list(ids.ignored),
    }
    found = []
    if trouble:
        title = f"{engine.label} cannot feed fc with states of the target by the served ids"
        found.append(Finding("wiring.served_impossible", FAULT, title, trouble, remedy, evidence))
    if ids.ignored:
        found.append(
            Finding(
                "wiring.served_ids_passed_over",
                RISK,
                f"{engine.label} passes over {' and '.join(ids.ignored)} of the served config",
                f"It says nothing of it and takes what it finds elsewhere ({ids.spelling}), or its default.",
                remedy or f"Give the ids as {engine.key}.",
                evidence,
            )
        )
    return found


def check_wiring(
    trained: Wiring, served: Wiring, trained_length: Estimate, served_length: Estimate, lost: Estimate
) -> Finding:
    """Served and trained wiring are equal, or what the difference costs along the walk."""
    evidence = {
        "trained": list(trained.slots),
        "served": list(served.slots),
        "trained_acceptance_length": trained_length.numbers,
        "served_acceptance_length": served_length.numbers,
        "lost": lost.numbers,
    }
    if trained == served:
        return Finding(
            "wiring.equal",
            OK,
            f"Serving feeds fc as training did: {trained}",
            "The wiring is right.",
            evidence=evidence,
        )
    if lost.low > 0:
        return Finding(
            "wiring.served_differs",
            FAULT,
            f"Serving feeds fc {served}, training fed {trained}: {lost.value:.2f} tokens a round are lost",
            f"The acceptance length falls from {trained_length.value:.2f} to {served_length.value:.2f}"
            " (chain, greedy, bonus included, along the walk).",
            "Change the ids as the verdict shows, or serve the rewired checkpoint.",
            evidence,
        )
    return Finding(
        "wiring.difference_immaterial",
        NOTE,
        f"Serving feeds fc {served}, training fed {trained}; no loss can be told",
        f"The loss {lost} includes zero on {lost.count} rounds.",
        "Capture more held-out responses to tell them apart.",
        evidence,
    )


def check_training_wiring(trained: Wiring, exhaustive: Search | None, deep: Search | None) -> list[Finding]:
    """Whether the wiring that the files imply fits the states best, or ties with what does, by the search that had most
    boundaries to choose from; and whether two searches agree as far as both could."""
    judged = deep or exhaustive
    if judged is None:
        return []
    findings = [_trained_or_better(trained, judged)]
    if exhaustive and deep:
        findings += _disagreement(exhaustive, deep)
    return findings


def _trained_or_better(trained: Wiring, judged: Search) -> Finding:
    best, candidates = [score.slots for score in judged.ranking.ties], judged.ranking.candidates
    evidence = {
        "trained": list(trained.slots),
        "best": [list(slots) for slots in best],
        "candidates": candidates,
        "dump": judged.dump,
    }
    missing = [b for b in dict.fromkeys(trained.slots) if b not in judged.boundaries]
    if missing:
        names = ", ".join(map(boundary_name, missing))
        return Finding(
            "wiring.not_captured",
            NOTE,
            f"Cannot tell whether {trained} fits best: the dump {judged.dump!r} lacks {names}",
            f"Of the boundaries that it holds, {Wiring(best[0])} fits best.",
            f"Capture {names} on the same tokens.",
            evidence,
        )
    if not judged.contradicts(trained.slots):
        ties = "" if len(best) == 1 else f", tied with {quantity(len(best) - 1, 'other')}"
        return Finding(
            "wiring.search_confirms",
            OK,
            f"Of {candidates} wirings, the search puts {trained} first{ties}",
            "The states themselves say that the draft was trained on these boundaries in this order.",
            evidence=evidence,
        )
    return Finding(
        "wiring.search_contradicts",
        FAULT,
        f"The files imply {trained}, the states fit {Wiring(best[0])} better",
        "The ids in the checkpoint are not what fed fc in training, or the dump's boundaries are misstated.",
        "Check how the training data was captured; state the true boundaries in the case.",
        evidence,
    )


def _disagreement(exhaustive: Search, deep: Search) -> list[Finding]:
    """Nothing where a wiring is best or tied in both searches; otherwise which of two reasons there may be."""
    few, many = ([score.slots for score in s.ranking.ties] for s in (exhaustive, deep))
    if set(few) & set(many):
        return []
    within = [slots for slots in many if set(slots) <= set(exhaustive.boundaries)]
    evidence = {exhaustive.dump: [list(slots) for slots in few], deep.dump: [list(slots) for slots in many]}
    if within:
        return [
            Finding(
                "wiring.searches_disagree",
                RISK,
                f"The dump {exhaustive.dump!r} fits {Wiring(few[0])} best, the dump {deep.dump!r} {Wiring(many[0])}",
                f"Both hold what {Wiring(within[0])} needs, so one draft should fit both alike: the boundaries of one"
                " are misstated, or one holds few tokens.",
                "Look at the placement of both dumps' states; state the true boundaries in the case.",
                evidence,
            )
        ]
    missing = [b for b in dict.fromkeys(many[0]) if b not in exhaustive.boundaries]
    names = ", ".join(map(boundary_name, missing))
    return [
        Finding(
            "wiring.search_needs_more",
            NOTE,
            f"{Wiring(many[0])} fits best, and the dump {exhaustive.dump!r} lacks {names}",
            f"The best that could be tried there, {Wiring(few[0])}, is only the best of what was captured.",
            evidence=evidence,
        )
    ]


#: Below so many trials a conditional rate is not shown as evidence.
FEW = 30


def check_recurrence(walked: Acceptance) -> Finding:
    """The conditional rates of later steps hold up against the first."""
    rates = walked.all_starts.conditional
    evidence = {f"c_{k + 1}": e.numbers for k, e in enumerate(rates) if e.count >= FEW}
    if len(rates) < 2:
        return Finding("recurrence.unknown", NOTE, "Cannot tell: one step only", "Run with 2 steps or more.")
    if rates[1].count < FEW or not (rates[0].has_interval and rates[1].has_interval):
        return Finding(
            "recurrence.unknown",
            NOTE,
            "Cannot tell whether the first fed-back step holds up: too few starts reach it, or all are of one sample",
            "They give no rate to hold against the first step's.",
            "Dump more responses.",
            evidence | {"starts": rates[1].count},
        )
    if rates[1].high < rates[0].low / 2:
        return Finding(
            "recurrence.collapses",
            RISK,
            f"The first fed-back step keeps {rates[1].value:.0%} where the first step has {rates[0].value:.0%}",
            "A healthy draft's conditional rates are nearly flat; a collapse points at the feedback, the rope"
            " positions or training without test-time steps.",
            "Compare norm_output and the feedback of trainer and engine.",
            evidence,
        )
    return Finding(
        "recurrence.healthy",
        OK,
        f"The first fed-back step holds up: c_1 {rates[0].value:.0%}, c_2 {rates[1].value:.0%}",
        "The draft reads its own states about as well as the target's.",
        evidence=evidence,
    )
