"""What would make speculation faster: a better draft, a cheaper verification, a lighter draft; by the same model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eagle3lib.bootstrap import Estimate
from eagle3lib.dialects import Checkpoint
from eagle3lib.plans import Lengths, Plan, best, plans
from eagle3lib.speeds import half, within
from eagle3lib.throughput import CostModel, Curve

#: How much is added to each conditional rate of a better draft.
BETTER = 0.05
NOTHING, LIMIT = "nothing changes", "drafting takes no time"


@dataclass(frozen=True)
class Lever:
    """One change, the fastest plan under it, and what it rests on."""

    name: str
    plan: Plan
    rests_on: str

    @property
    def reachable(self) -> bool:
        """Whether someone could do it: not the present state, and no limit."""
        return self.name not in (NOTHING, LIMIT)

    def row(self, now: Plan) -> dict:
        """One row of a table, beside the fastest plan of today."""
        told = self.plan.speed.has_interval
        return {
            "if": self.name, "best shape": self.plan.shape.label, "AL": self.plan.length.value,
            "ms a round": self.plan.round_ms.value, "tokens/s": self.plan.speed.value,
            "low": self.plan.speed.low if told else None, "high": self.plan.speed.high if told else None,
            "gain": self.plan.speed.value / now.speed.value - 1, "rests on": self.rests_on,
        }  # fmt: skip


def better_rates(lengths: Lengths, conditional: Sequence[float | None], more: float = BETTER) -> Lengths:
    """Chains' lengths if each conditional rate c_k were higher by `more`, 1 at most.

        AL(K) · (1 + Σ Π (c_j + more)) / (1 + Σ Π c_j)

    Where rounds start would change too, a little; that is left as it is. Rates that no round reached count as 0.
    """
    found = {}
    for shape, length in lengths.items():
        if shape.topk == 1 and shape.steps <= len(conditional):
            rates = np.array([c or 0.0 for c in conditional[: shape.steps]])
            grown = float((1 + np.minimum(rates + more, 1).cumprod().sum()) / (1 + rates.cumprod().sum()))
            found[shape] = Estimate(length.value * grown, length.low * grown, length.high * grown, length.count)
    return found


def rescaled(model: CostModel, draft: Callable[[int, float], float], rest: Callable[[int, float], float]) -> CostModel:
    """The model with drafting and the rest of a round changed, each from its count and milliseconds.

    Where they are not known apart, `rest` changes whole rounds.
    """
    if not model.separated:
        return replace(model, rounds=model.rounds.changed(rest), measured={})
    drafted, left = model.draft.changed(draft), model.rest.changed(rest)
    counts = {nodes: model.steps.at(nodes) for nodes, _ in model.rounds.known}
    whole = []
    for nodes, took in model.rounds.known:
        parts = drafted.at(round(counts[nodes].value)), left.at(nodes)
        if None not in parts:
            whole.append((nodes, within(sum(p.value for p in parts), (took.high - took.low) / 2, took.count)))
    return replace(model, rounds=Curve(tuple(whole)), draft=drafted, rest=left, measured={})


def levers(
    model: CostModel, lengths: Lengths, conditional: Sequence[float | None], head_share: float | None
) -> list[Lever]:
    """Each change by itself, its fastest chain. Changes of a part that is not known are left out.

    Args:
        conditional: c_1, c_2, ... along the walk.
        head_share: of the weights that a draft step reads, the head's.
    """
    chains = {shape: length for shape, length in lengths.items() if shape.topk == 1}
    now = best(plans(model, chains))
    if now is None:
        return []
    found = [Lever(NOTHING, now, "")]

    def add(name: str, changed: CostModel, with_lengths: Lengths, rests_on: str) -> None:
        plan = best([p for p in plans(changed, with_lengths) if p.shape.steps])
        if plan is not None:
            found.append(Lever(name, plan, rests_on))

    add(
        f"each conditional rate is {BETTER:.2f} higher", model, better_rates(chains, conditional),
        "rounds taking as long, and starting where they do",
    )  # fmt: skip
    alone = model.round_ms(0)
    if alone is not None:
        root = alone.value
        what = "verified node" if model.separated else "node, drafted and verified,"
        cheaper = rescaled(model, _same, lambda n, ms: root.value + (ms - root.value) / 2)
        add(f"each further {what} costs half", cheaper, chains, "the root alone taking as long")
        extra = root.value - model.token_ms.value if model.token_ms is not None else 0.0
        if model.token_ms is not None and extra > np.hypot(half(root), half(model.token_ms)):
            bare = rescaled(model, _same, lambda n, ms: ms - extra)
            add(f"the fixed {extra:.1f} ms beyond a token are gone", bare, chains, "nodes and steps costing as much")
    if model.separated:
        if head_share is not None:
            light = rescaled(model, lambda n, ms: ms * (1 - head_share / 2), _same)
            add(
                "the draft vocabulary is halved", light, chains,
                f"the head being {head_share:.0%} of what a draft step reads, and no token lost with it",
            )  # fmt: skip
        add(LIMIT, rescaled(model, lambda n, ms: 0.0, _same), chains, "nothing: it is the limit")
    return found


def step_weights(draft: Checkpoint) -> int | None:
    """Weights that a draft step reads: the layers' and the head's. None where the header does not tell the head's.

    The embedding gives one row, `fc` is read in the first step only.
    """
    head = _head_weights(draft)
    layers = sum(
        info.shape[0] * info.shape[1]
        for name, info in draft.tensors.items()
        if name.startswith("layers.") and len(info.shape) == 2
    )
    return layers + head if head else None


def head_share(draft: Checkpoint) -> float | None:
    """Of the weights that a draft step reads, the head's; None as `step_weights`."""
    weights = step_weights(draft)
    return _head_weights(draft) / weights if weights else None


def _head_weights(draft: Checkpoint) -> int | None:
    if (own := draft.tensors.get("lm_head.weight")) is not None:
        return own.shape[0] * own.shape[1]
    borrowed = (draft.config.get("draft_vocab_size"), draft.config.get("hidden_size"))
    return None if None in borrowed else borrowed[0] * borrowed[1]


def _same(_: int, ms: float) -> float:
    return ms
