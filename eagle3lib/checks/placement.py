"""Stage `dump`: is each state of the boundary that it is said to be of."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np

from eagle3lib.boundaries import FINAL_NORMED, Boundary, boundary_name
from eagle3lib.depth_order import Order, misplaced, order
from eagle3lib.findings import Finding, Severity
from eagle3lib.placement import FEW_ROWS, Identity, Placement

FAULT, NOTE, OK = Severity.FAULT, Severity.NOTE, Severity.OK

# The thresholds come from SmolLM2's 31 boundaries, all of them and 600 random choices of 3 to 8.
#: States of one token this close, in degrees, are one state: storage in 8 bits turns by 0.1, a block by 12.6 and more.
SAME_ANGLE = 1.0
#: Norms this close are equal: storage in 8 bits changes a norm by less than 0.4 %.
SAME_NORM = 0.02
#: A state that no other predicts better than this share of chance is of other tokens. Sound ones reached 0.91 at
#: most (512 rows, B(28) beside B(0), B(3) and B(16) alone), ones of another sample's rows 0.97 at least.
UNRELATED = 0.95
#: Another order must save this share of the legs in which it differs. Of 600 sound choices three were undercut, by
#: 0.9 % at most; of 600 with two states exchanged 99 in 100 were by more than 3.5 %, half by more than 55 %.
GAIN = 0.03
#: States that all lie this far apart, in degrees, say nothing of an order; random ones lie at 90.
ORTHOGONAL = 80.0
#: How many ids a title lists.
LISTED = 6


def check_placement(
    dump: str,
    found: Placement | None,
    n_layers: int | None = None,
    embedding: Boundary | None = 0,
    *,
    ids_proved: bool = False,
) -> list[Finding]:
    """Duplicates, states of other tokens, and states out of order; or what the order proves.

    Args:
        n_layers: of the target; an order of all boundaries 0 .. n fixes every id.
        embedding: the state that is the embedding output, as `checks.anchors.embedding_boundary` tells it.
        ids_proved: whether `check_identity` proved the ids, so that the order need not.
    """
    if found is None:
        return [
            Finding(
                "dump.placement_unknown",
                NOTE,
                f"Cannot tell which boundaries {dump} holds: no row is finite and not zero in all of its states",
                "Angles and norms need values.",
                "Dump again, and look at what the values check says of each boundary.",
                {"dump": dump},
            )
        ]
    unrelated = _unrelated(found)
    twins = _twins(found)
    path = order(found, {embedding, *unrelated})
    turned = len(path.stated) > 1 and path.best == path.stated[::-1]
    elsewhere = path.nearest < ORTHOGONAL and (path.gain > GAIN or turned)
    moved = misplaced(path.best, set(itertools.chain(*twins))) if elsewhere else {}
    findings = [_twin_finding(dump, found, pair, moved) for pair in twins]
    findings += [_unrelated_finding(dump, found, b) for b in unrelated]
    moved = {b: between for b, between in moved.items() if all(b not in pair for pair in twins)}
    if moved:
        findings.append(_misplaced_finding(dump, path, moved))
    return findings or ([] if ids_proved else _what_order_proves(dump, found, path, n_layers))


def check_identity(dump: str, reference: str, found: Sequence[Identity]) -> Finding | None:
    """The states of a dump are those of the same ids in a dump of more boundaries; None without common tokens.

    Call it with a reference whose own order is proved.
    """
    if not found:
        return None
    wrong = [i for i in found if i.boundary != i.nearest and i.angle < i.next_angle / 2]
    lost = [i for i in found if i.boundary == i.nearest and i.angle > i.next_angle / 2]
    evidence = {
        "dump": dump,
        "reference": reference,
        "boundaries": [i.boundary for i in found],
        "nearest": [i.nearest for i in found],
        "angles": [i.angle for i in found],
        "next_angles": [i.next_angle for i in found],
        "tokens": found[0].rows,
    }
    if wrong:
        pairs = ", ".join(f"B({i.boundary}) is B({i.nearest})" for i in wrong[:LISTED])
        return Finding(
            "dump.other_boundary",
            FAULT,
            f"Of the states of {dump}, {pairs}, as {reference} shows",
            "Over the tokens with which both dumps begin, the state equals another id's.",
            f"State {[i.nearest for i in found]} for {[i.boundary for i in found]} in the case, or dump again.",
            evidence,
        )
    if lost or any(i.boundary != i.nearest for i in found):
        names = ", ".join(boundary_name(i.boundary) for i in found if i in lost or i.boundary != i.nearest)
        return Finding(
            "dump.identity_unclear",
            NOTE,
            f"Cannot tell {names} of {dump} by {reference}: they equal none of its states",
            "The dumps are of different numerics, prompts in other batches, or the boundary is not in the reference.",
            "Dump both with one engine and dtype.",
            evidence,
        )
    return Finding(
        "dump.boundaries_proved",
        OK,
        f"Each state of {dump} is the same id's in {reference}, over the {found[0].rows} tokens that both begin with",
        f"The largest angle to it is {max(i.angle for i in found):.2f} degrees, the next id is"
        f" {min(i.next_angle for i in found):.0f} degrees away or more: the ids are proved, not only their order.",
        evidence=evidence,
    )


def _unrelated(found: Placement) -> list[Boundary]:
    """States that neither predict nor are predicted by any other."""
    if found.residuals is None or len(found.boundaries) < 2:
        return []
    own = np.eye(len(found.boundaries), dtype=bool)
    others = np.where(own, np.inf, np.minimum(found.residuals, found.residuals.T)).min(1)
    return [b for b, residual in zip(found.boundaries, others, strict=True) if residual > UNRELATED]


def _unrelated_finding(dump: str, found: Placement, boundary: Boundary) -> Finding:
    i = found.boundaries.index(boundary)
    residual = float(np.delete(found.residuals[i], i).min())
    return Finding(
        "dump.unrelated_state",
        FAULT,
        f"The state of {dump} stated as {boundary_name(boundary)} is not of the tokens that the others are of",
        f"A least-squares map from it leaves {residual:.2f} of what chance would of the state that it fits best.",
        "Its rows are shuffled, or of another sequence: look at the batch order in which the dump was written.",
        {"dump": dump, "boundary": boundary, "residual_over_chance": residual, "tokens": found.rows},
    )


def _twins(found: Placement) -> list[tuple[Boundary, Boundary]]:
    """Pairs of states that are equal, or equal but for a scale."""
    pairs = zip(*np.triu_indices(len(found.boundaries), 1), strict=True)
    return [(found.boundaries[i], found.boundaries[j]) for i, j in pairs if found.angles[i, j] <= SAME_ANGLE]


def _twin_finding(dump: str, found: Placement, pair: tuple[Boundary, Boundary], moved: Collection[int]) -> Finding:
    first, second = pair if pair[0] not in moved else pair[::-1]
    i, j = found.boundaries.index(first), found.boundaries.index(second)
    ratio = float(found.ratios[i, j])
    times = "" if abs(ratio - 1) <= SAME_NORM else f" but for a factor of {ratio:.3g}"
    which = f"it is {boundary_name(second)} that does not fit its place." if second in moved else "one id is wrong."
    return Finding(
        "dump.duplicate_state",
        FAULT,
        f"{dump} holds one state twice{times}: as {boundary_name(first)} and as {boundary_name(second)}",
        f"No block leaves every token's direction unchanged; {which}",
        "Check the capture list for an id that was clamped or repeated, and dump again.",
        {
            "dump": dump,
            "boundaries": [first, second],
            "angle": float(found.angles[i, j]),
            "norm_ratio": ratio,
            "tokens": found.rows,
        },
    )


def _misplaced_finding(dump: str, path: Order, moved: dict[int, tuple[int | None, int | None]]) -> Finding:
    evidence = {"dump": dump, "stated": list(path.stated), "best": list(path.best)}
    evidence |= {"gain": path.gain, "norm_growth": path.norm_growth}
    exchanged = [a for a, b in zip(path.stated, path.best, strict=True) if a != b]
    if len(exchanged) == 2:
        first, second = map(boundary_name, exchanged)
        return Finding(
            "dump.states_swapped",
            FAULT,
            f"The states of {dump} stated as {first} and {second} are swapped",
            f"Exchanged, they make the path through the depth {path.gain:.0%} shorter where it changes."
            if path.gain
            else f"The residual stream grows with depth, and norms from {first} to {second} fall.",
            "Exchange the two in the case's boundaries: engines store ascending ids whatever order was asked for.",
            evidence,
        )
    if path.best == path.stated[::-1]:
        first, last = boundary_name(path.stated[0]), boundary_name(path.stated[-1])
        return Finding(
            "dump.order_reversed",
            FAULT,
            f"The states of {dump} are in reversed order: norms fall to {path.norm_growth:.2f} from {first} to {last}",
            "The residual stream grows with depth; the states lie side by side as stated, but deep ones first.",
            "Reverse the dump's boundaries in the case.",
            evidence,
        )
    places = ", ".join(f"{boundary_name(b)} {_between(*between)}" for b, between in list(moved.items())[:LISTED])
    more = f" and {len(moved) - LISTED} more" if len(moved) > LISTED else ""
    return Finding(
        "dump.state_misplaced",
        FAULT,
        f"States of {dump} do not lie where their ids say: {places}{more}",
        f"The order {list(path.best)} makes the path through the depth {path.gain:.0%} shorter where it changes.",
        "Correct the dump's boundaries in the case to the order in which the states lie, or dump again.",
        evidence,
    )


def _between(low: int | None, high: int | None) -> str:
    if low is None or high is None:
        return f"lies before B({high})" if low is None else f"lies beyond B({low})"
    return f"is B({low + 1})" if high == low + 2 else f"lies between B({low}) and B({high})"


def _what_order_proves(dump: str, found: Placement, path: Order, n_layers: int | None) -> list[Finding]:
    evidence = {
        "dump": dump,
        "stated": list(path.stated),
        "gain": path.gain,
        "margin": path.margin if np.isfinite(path.margin) else None,
        "norm_growth": path.norm_growth,
        "tokens": found.rows,
    }
    if path.gain or path.margin < GAIN or len(path.stated) > 1 and path.nearest >= ORTHOGONAL:
        rivals = path.stated if path.nearest >= ORTHOGONAL else path.rivals or tuple(misplaced(path.best))
        return [
            Finding(
                "dump.order_unclear",
                NOTE,
                f"Cannot tell the order of {', '.join(map(boundary_name, rivals))} in {dump}",
                "Exchanged they make a path through the depth about as short.",
                "Dump the boundaries between them too, or more tokens.",
                evidence,
            )
        ]
    held = set(found.boundaries)
    few = "" if found.residuals is not None else f" Fewer than {FEW_ROWS} tokens: whether rows match was not asked."
    if n_layers is not None and held >= set(range(n_layers + 1)):
        return [
            Finding(
                "dump.order_proved",
                OK,
                f"The {n_layers + 1} states of {dump} lie in the order of their ids",
                "Every boundary is held, so the order fixes each id; the closest other order is"
                f" {path.margin:.0%} longer where it differs.{few}",
                evidence=evidence,
            )
        ]
    inner = [b for b in path.stated if b != n_layers]
    if not inner:
        return []
    names = ", ".join(map(boundary_name, inner[:LISTED])) + (" and more" if len(inner) > LISTED else "")
    return [
        Finding(
            "dump.ids_unproved",
            NOTE,
            f"Cannot tell {names} of {dump} from the boundaries beside them",
            "Their order is right, but a state one block off would lie in the same order: these ids are claims." + few,
            "Dump every boundary of one short sample that begins with the same tokens, with the same capture.",
            evidence | {"held": [str(b) for b in held if b == FINAL_NORMED] + sorted(held - {FINAL_NORMED})},
        )
    ]
