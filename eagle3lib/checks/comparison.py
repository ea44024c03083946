"""Stage `dump`: two dumps of the same tokens, and whether what differs is rounding, noise, or another state."""

from __future__ import annotations

from eagle3lib.boundaries import boundary_name
from eagle3lib.comparison import Comparison, Cost, StateDifference
from eagle3lib.findings import Finding, Severity, quantity

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK

#: Mean relative difference that storage in bfloat16 explains: 2^-8 at most for each of two roundings.
ROUNDING = 2.0**-7
#: A norm ratio this far from 1, and this many times what the turn of the direction explains, is a scale: noise of a
#: share r of the norm turns by about r and lengthens by r² / 2.
SCALED, SCALE_OVER_TURN = 0.02, 2.0
#: The nearest boundary is another where its angle is below this share of the angle to the same id.
NEARER = 0.5
#: A state that differs while a deeper one agrees is no noise: noise in the residual stream is passed on. The deeper
#: one must be this many times nearer.
PASSED_ON = 4.0


def check_comparison(first: str, second: str, found: Comparison, cost: Cost | None = None) -> list[Finding]:
    """What tells the second dump from the first, the strongest reason alone for each boundary.

    Args:
        cost: what the second's states cost the draft; without one, noise is named without its price.
    """
    findings = _unpaired(first, second, found)
    if not found.states:
        return findings
    exchanged = [s for s in found.states if s.nearest != s.boundary and s.nearest_angle < NEARER * s.angle]
    scaled = [s for s in found.states if s not in exchanged and _is_scaled(s)]
    left = [s for s in found.states if s not in exchanged and s not in scaled and s.relative > ROUNDING]
    alone = [s for s in left if _deeper_agrees(s, found)]
    noise = [s for s in left if s not in alone]
    if exchanged:
        findings.append(_exchanged(first, second, found, exchanged, cost))
    if alone:
        findings.append(_alone(first, second, found, alone, cost))
    if scaled:
        findings.append(_scaled(first, second, found, scaled, cost))
    if noise:
        findings.append(_noise(first, second, found, noise, cost))
    if not exchanged and not alone and not scaled and not noise:
        findings.append(
            Finding(
                "dump.states_agree",
                OK,
                f"The states of {second} are those of {first} to rounding",
                f"The largest mean relative difference is {max(s.relative for s in found.states):.1e}, over"
                f" {found.tokens} tokens.",
                evidence=_evidence(first, second, found, cost),
            )
        )
    return findings


def _is_scaled(state: StateDifference) -> bool:
    off = abs(state.norm_ratio - 1)
    turn = (2 * max(1 - state.cosine, 0.0)) ** 0.5
    return off > SCALED and off > SCALE_OVER_TURN * turn


def _deeper_agrees(state: StateDifference, found: Comparison) -> bool:
    deeper = [s.angle for s in found.states if isinstance(s.boundary, int) and s.boundary > (state.boundary or 0)]
    return isinstance(state.boundary, int) and bool(deeper) and PASSED_ON * min(deeper) < state.angle


def _evidence(first: str, second: str, found: Comparison, cost: Cost | None) -> dict:
    evidence = {
        "first": first,
        "second": second,
        "boundaries": [s.boundary for s in found.states],
        "nearest": [s.nearest for s in found.states],
        "norm_ratios": [s.norm_ratio for s in found.states],
        "cosines": [s.cosine for s in found.states],
        "relative_differences": [s.relative for s in found.states],
        "largest_differences": [s.largest for s in found.states],
        "samples": found.pairs,
        "tokens": found.tokens,
    }
    if cost is not None:
        evidence |= {
            "lost": cost.lost.numbers,
            "steps": cost.steps,
            "rounds": cost.lost.count,
            "same_first_choice": cost.agreement,
        }
    return evidence


def _price(cost: Cost | None) -> str:
    if cost is None:
        return ""
    return (
        f" On the same tokens the draft loses {cost.lost} tokens a round by it (K = {cost.steps}, chain, greedy,"
        f" bonus included, along the walk), and {1 - cost.agreement:.1%} of its first choices change."
    )


def _unpaired(first: str, second: str, found: Comparison) -> list[Finding]:
    if not found.unpaired:
        return []
    lost = found.unpaired[0]
    where = (
        f"{lost.name} and {lost.other_name} differ first at token {lost.position} ({lost.own} and {lost.other})"
        if lost.other_name is not None
        else f"{lost.name} has nothing beside it"
    )
    total = len(found.unpaired) + found.pairs
    return [
        Finding(
            "dump.tokens_differ",
            NOTE if found.pairs else FAULT,
            f"Other tokens than {second}'s in {len(found.unpaired)} of {quantity(total, 'sample')} of {first}: {where}",
            "States can be compared over common tokens only: another chat template, system prompt or order of prompts.",
            "Send both stacks the token ids of one dump.",
            {
                "first": first,
                "second": second,
                "samples": [u.name for u in found.unpaired[:16]],
                "position": lost.position,
                "tokens": [lost.own, lost.other],
            },
        )
    ]


def _exchanged(first: str, second: str, found: Comparison, states: list[StateDifference], cost: Cost | None) -> Finding:
    steps = {s.nearest - s.boundary for s in states if isinstance(s.nearest, int) and isinstance(s.boundary, int)}
    pairs = ", ".join(f"{boundary_name(s.boundary)} is {first}'s {boundary_name(s.nearest)}" for s in states[:6])
    permuted = {s.boundary for s in states} == {s.nearest for s in states}
    kind = "permuted" if permuted else f"off by {next(iter(steps)):+d}" if len(steps) == 1 else "other boundaries"
    return Finding(
        "dump.compared_permuted" if permuted else "dump.compared_shifted",
        FAULT,
        f"States of {second} are {kind}: {pairs}",
        f"Each is nearer to another id's state of {first} than to its own." + _price(cost),
        "Correct the boundaries stated for one of the two in the case; if both are as captured, correct the engine's"
        " capture list.",
        _evidence(first, second, found, cost),
    )


def _alone(first: str, second: str, found: Comparison, states: list[StateDifference], cost: Cost | None) -> Finding:
    names = ", ".join(f"{boundary_name(s.boundary)} by {s.angle:.0f} degrees" for s in states[:6])
    return Finding(
        "dump.compared_other_state",
        FAULT,
        f"States of {second} differ from {first}'s where deeper ones agree: {names}",
        "Noise in the residual stream is passed on to every deeper boundary, so these are of another boundary under"
        " the same id, such as one block off." + _price(cost),
        "Compare the capture lists of the two stacks; dump every boundary of one sample to name the true id.",
        _evidence(first, second, found, cost),
    )


def _scaled(first: str, second: str, found: Comparison, states: list[StateDifference], cost: Cost | None) -> Finding:
    names = ", ".join(f"{boundary_name(s.boundary)} {s.norm_ratio:.4g} times" for s in states[:6])
    return Finding(
        "dump.compared_scaled",
        FAULT,
        f"States of {second} are {first}'s at another scale: {names}",
        "Every row's norm is off by one factor: a residual multiplier, an embedding scale, or a quantiser's scale is"
        " applied on one side." + _price(cost),
        "Remove the factor where the states are captured; with no norm before fc a draft feels it directly.",
        _evidence(first, second, found, cost),
    )


def _noise(first: str, second: str, found: Comparison, states: list[StateDifference], cost: Cost | None) -> Finding:
    shallow, deep = states[0], states[-1]
    grows = deep.relative > 1.5 * shallow.relative
    if grows:
        course = f"from {shallow.relative:.1%} at {boundary_name(shallow.boundary)} to {deep.relative:.1%} at"
        course += f" {boundary_name(deep.boundary)}"
    else:
        worst = max(states, key=lambda s: s.relative)
        course = f"by up to {worst.relative:.1%}, at {boundary_name(worst.boundary)}"
    told = cost is not None and cost.lost.low > 0
    return Finding(
        "dump.compared_noise",
        FAULT if told else NOTE,
        f"States of {second} differ from {first}'s {course}" + (f": {cost.lost.value:.2f} tokens lost" if told else ""),
        (
            "Noise that grows with depth is other numerics, as a quantised target's or another kernel's."
            if grows
            else "Noise of this size at every depth came after the states were made, as by a coarse storage format."
        )
        + (_price(cost) or " What it costs was not measured: that needs the draft.")
        + ("" if told or cost is None else " That interval includes zero."),
        "Train the draft on states of the target as it is served." if told else "",
        _evidence(first, second, found, cost),
    )
