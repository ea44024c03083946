"""Stage `cost`: does a round earn what it costs, at the draft length that is served, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lib.checks.speeds import below_a_token, falling
from eagle3lib.findings import Finding, Severity
from eagle3lib.levers import Lever
from eagle3lib.plans import OFF, Plan, Shape, best, plan_at, told_apart
from eagle3lib.speeds import break_even, shown
from eagle3lib.throughput import CostModel

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK
#: By how much a faster draft length has to be faster to be worth a line.
WORTH = 0.03


def check_cost(
    model: CostModel | None, found: Sequence[Plan], shape: Shape, wiring: str, changes: Sequence[Lever]
) -> list[Finding]:
    """Whether speculation pays, which length would be faster, and what cannot be told.

    Args:
        model: of the server's rounds; None where no speed is known.
        found: every plan of the judged wiring.
        shape: what the server drafts and verifies.
        wiring: whose acceptance length is judged, so that a fault of the wiring is not counted again here.
        changes: as `levers` gives them.
    """
    if model is None or model.token_ms is None:
        return [_unmeasured(model)]
    served = plan_at(found, shape)
    if served is None:
        return [_no_round(shape, model)]
    if not model.measured:
        return [_only_assumed(model, served)]
    return [
        *(below_a_token(model) or [_pays(model, served, found, wiring, changes)]),
        *falling(model),
        *_length(found, served),
        *([] if model.separated else [_not_separated(model)]),
    ]


def _unmeasured(model: CostModel | None) -> Finding:
    batch = f" {model.batch} at once," if model and model.batch > 1 else ""
    return Finding(
        "cost.no_baseline",
        NOTE,
        "Cannot tell whether speculation pays: the speed without a draft is not known",
        "A round is worth its time where it yields more tokens than the target alone would in that time.",
        f"Serve the same requests,{batch} without a draft and state cost.baseline, in tokens a second of all together.",
    )


def _no_round(shape: Shape, model: CostModel) -> Finding:
    known = [nodes for nodes, _ in model.rounds.known]
    if len(known) > 1:
        meaning = "What it costs follows from the speeds that are stated; what it yields takes a replay of this length."
        remedy = (
            f"Run notebook 05 on a greedy dump, with max_steps of {shape.steps} or more, and this notebook after it."
        )
    else:
        meaning = "It takes speeds at two draft shapes, or one of this length, and a replay of this length."
        remedy = (
            f"Serve at two draft lengths, {model.batch} at once, and state each as [[cost.points]]: steps, topk,"
            " draft_tokens, tokens_per_second and acceptance_length."
        )
    return Finding(
        "cost.no_round",
        NOTE,
        f"Cannot tell what a round of {shape.label} costs at batch {model.batch}, or what it yields",
        meaning,
        remedy,
        {**_asked(shape), "batch": model.batch, "draft_tokens_measured": known},
    )


def _only_assumed(model: CostModel, served: Plan) -> Finding:
    needed = break_even(served.round_ms, model.token_ms)
    return Finding(
        "cost.only_assumed",
        NOTE,
        f"Cannot tell whether speculation pays at {served.shape.label}: no round was measured, and by a roofline it"
        f" costs {needed.value:.2f} tokens' time and yields {served.length.value:.2f}",
        "A roofline is the least that reading and multiplying take: launches, synchronisation and slower kernels come"
        " on top, and most often decide.",
        "Serve without a draft and at this draft length, and state both speeds.",
        {**_asked(served.shape), "break_even": needed.numbers, "assumed": list(model.assumed)},
    )


def _pays(model: CostModel, served: Plan, found: Sequence[Plan], wiring: str, changes: Sequence[Lever]) -> Finding:
    token, length, took = model.token_ms, served.length, served.round_ms
    needed = break_even(took, token)
    evidence = {
        "wiring": wiring,
        **_asked(served.shape),
        "acceptance_length": length.numbers,
        "break_even": needed.numbers,
        "round_ms": took.numbers,
        "round_source": str(served.source),
        "token_ms": token.numbers,
        "tokens_per_second": served.speed.numbers,
        "without_speculation": plan_at(found, OFF).speed.numbers,
    }
    if not length.has_interval or (length.low <= needed.high and length.high >= needed.low):
        return Finding(
            "cost.cannot_tell",
            NOTE,
            f"Cannot tell whether speculation pays at {served.shape.label}: a round yields {length:.2f} and has to"
            f" yield {shown(needed, '.2f')}",
            "The two intervals overlap, or the acceptance length has none.",
            "Measure both speeds over more requests, and dump more responses.",
            evidence,
        )
    if length.low > needed.high:
        return Finding(
            "cost.pays",
            OK,
            f"Speculation pays at {served.shape.label}: a round yields {length.value:.2f} tokens and costs"
            f" {needed.value:.2f}",
            f"{served.speed.value / evidence['without_speculation'][0]:.2f} times the speed without a draft.",
            evidence=evidence,
        )
    remedy = _remedy(found, changes)
    root = model.round_ms(0)
    fixed = root.value.value - token.value if root else 0.0
    if root and fixed > (took.value - token.value) / 2:
        evidence |= {"root_alone_ms": root.value.numbers, "root_alone_source": str(root.source)}
        return Finding(
            "cost.fixed_cost",
            FAULT,
            f"The fixed cost of a round is too high, {root.value.value:.1f} of its {took.value:.1f} ms: at"
            f" {served.shape.label} it costs {needed.value:.2f} tokens' time and yields {length.value:.2f} as"
            f" {wiring}",
            f"Most of what a round costs beyond a token's {token.value:.1f} ms is spent before anything is drafted: a"
            " draft that runs without graphs, synchronisation, or a verification that is not served by the decoding"
            " kernel." + (" No draft of this length earns it." if needed.value >= served.shape.steps + 1 else ""),
            remedy,
            evidence,
        )
    return Finding(
        "cost.does_not_pay",
        FAULT,
        f"Speculation does not pay at {served.shape.label}: a round costs {needed.value:.2f} tokens' time and yields"
        f" {length.value:.2f} as {wiring}",
        f"{served.speed.value:.1f} tokens/s with the draft, {evidence['without_speculation'][0]:.1f} without."
        + (
            " What a round costs beyond a token is mostly what its nodes cost, drafted and verified."
            if root and not falling(model)
            else " Whether its nodes or a fixed cost take the time, a speed at another draft length would tell."
        ),
        remedy,
        evidence,
    )


def _remedy(found: Sequence[Plan], changes: Sequence[Lever]) -> str:
    off, fastest = plan_at(found, OFF), best(found)
    drafting = best([p for p in found if p.shape.steps])
    if fastest.shape.steps and told_apart(fastest, off):
        advice = f"Serve {fastest.shape.label}: {shown(fastest.speed)} tokens/s, {off.speed.value:.1f} without a draft."
    elif drafting and not told_apart(drafting, off):
        advice = (
            f"Switch speculation off, {shown(off.speed)} tokens/s, or serve {drafting.shape.label},"
            f" {shown(drafting.speed)}: the two cannot be told apart."
        )
    else:
        advice = f"Switch speculation off: {off.speed.value:.1f} tokens/s."
    lever = max((c for c in changes if c.reachable), key=lambda c: c.plan.speed.value, default=None)
    if lever is not None:
        gained, short = lever.plan.speed.value, " still" if lever.plan.speed.value < off.speed.value else ""
        advice += f" Most is gained if {lever.name}:{short} {gained:.1f} tokens/s at {lever.plan.shape.label}."
    return advice


def _length(found: Sequence[Plan], served: Plan) -> list[Finding]:
    """A length that is too long or too short; nothing where no other is faster, or where serving without a draft is."""
    off, fastest = plan_at(found, OFF), best([p for p in found if p.shape.steps])
    gain = fastest.speed.value / served.speed.value - 1
    better_off = off.speed.value > fastest.speed.value and told_apart(off, fastest)
    if fastest.shape.topk > 1 or gain < WORTH or better_off:
        return []
    longer = served.shape.steps > fastest.shape.steps
    return [
        Finding(
            "cost.too_long" if longer else "cost.too_short",
            RISK if told_apart(fastest, served) else NOTE,
            f"{fastest.shape.label} would be {gain:.0%} faster than {served.shape.label}:"
            f" {fastest.speed.value:.1f} instead of {served.speed.value:.1f} tokens/s",
            "One more draft token pays while its survival, in tokens, is worth more than the time it adds.",
            f"Set the draft length to {fastest.shape.steps}"
            + ("." if served.shape.topk == 1 else ", as a chain (topk 1)."),
            {
                **_asked(served.shape),
                "tokens_per_second": served.speed.numbers,
                "best_steps": fastest.shape.steps,
                "best_tokens_per_second": fastest.speed.numbers,
                "best_source": str(fastest.source),
            },
        )
    ]


def _asked(shape: Shape) -> dict[str, int]:
    """What the engine is told; a chain's steps alone."""
    tree = {"topk": shape.topk, "draft_tokens": shape.nodes} if shape.topk > 1 else {}
    return {"steps": shape.steps, **tree}


def _not_separated(model: CostModel) -> Finding:
    known = [nodes for nodes, _ in model.rounds.known]
    slope = model.rounds.slope
    return Finding(
        "cost.not_separated",
        NOTE,
        "Cannot tell drafting from verification within a round",
        "Whole rounds give their sum alone"
        + (f", {slope.value:.2f} ms a node, drafted and verified." if slope else ".")
        + " Which of the two to make cheaper, and what a tree would cost, is open.",
        "Profile one round and state its draft_ms and verify_ms beside its [[cost.points]].",
        {"draft_tokens_measured": known, "assumed": list(model.assumed)},
    )
