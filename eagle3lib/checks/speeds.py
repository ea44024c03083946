"""Stage `cost`: speeds that contradict each other, of which nothing can be concluded."""

from __future__ import annotations

from eagle3lib.findings import Finding, Severity
from eagle3lib.throughput import CostModel

#: By how much two speeds have to contradict each other, which were measured one after the other.
NOISE = 0.05


def below_a_token(model: CostModel) -> list[Finding]:
    """A round that took less than a pass of the target, which it holds."""
    token = model.token_ms
    short = [(shape, ms) for shape, ms in model.measured.items() if ms.high < (1 - NOISE) * token.low]
    if not short:
        return []
    (_, _, nodes), took = min(short, key=lambda known: known[1].value)
    return [
        Finding(
            "cost.round_below_token",
            Severity.RISK,
            f"Cannot tell whether speculation pays: a round of {nodes} nodes took {took.value:.1f} ms, and a token"
            f" without a draft {token.value:.1f}",
            "A round holds a whole pass of the target, so the two speeds are of two servers: another batch, build or"
            " graph setting, prefills counted in one of them, or an acceptance length that is too low.",
            "Measure both with the same requests, as many at once, and nothing but the draft changed.",
            {"draft_tokens": nodes, "round_ms": took.numbers, "token_ms": token.numbers},
        )
    ]


def falling(model: CostModel) -> list[Finding]:
    """A round that took less than one of fewer steps and nodes."""
    known = [(nodes, steps, ms) for (steps, _, nodes), ms in model.measured.items() if steps is not None]
    known.sort(key=lambda shape: shape[:2])
    for few, many in zip(known, known[1:], strict=False):
        if many[0] > few[0] and many[1] >= few[1] and many[2].high < (1 - NOISE) * few[2].low:
            return [
                Finding(
                    "cost.rounds_fall",
                    Severity.NOTE,
                    f"Cannot tell what a node costs: a round of {many[0]} nodes took {many[2].value:.1f} ms, one of"
                    f" {few[0]} {few[2].value:.1f}",
                    "More drafts and nodes take no less on one server: kernels or graphs serve some sizes only, or the"
                    " two speeds are of different loads.",
                    "Measure both again and a length between them; look whether the shorter ran without graphs.",
                    {"draft_tokens": [few[0], many[0]], "round_ms": [few[2].numbers, many[2].numbers]},
                )
            ]
    return []
