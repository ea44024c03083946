"""Repair without retraining: a ladder of rungs, each judged on prompts that it has not seen.

    served    the draft as it is, on the states that the engine gives it
    rewire    columns moved to the slots where their boundaries are served; no data
    refit     columns fitted to the served states, shrunk towards the rewired ones
    tune      columns moved along the gradient against the target's distribution

A rung is offered where it beats the last offered one by a paired interval. It suffices where what is still lost is
less than a stated margin: of the rewired draft, where every zeroed slot is worth less; of the others, where the paired
interval against the true wiring stays below. The lowest rung that suffices is chosen, else the highest one offered.

A repaired draft is a bridge until the wiring is mended. Speculation is lossless whatever the draft says, so output
does not change, and no rung is expected to beat the true wiring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from eagle3lib.acceptance import Acceptance, acceptance
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.material import Material
from eagle3lib.refit import Fit, refit
from eagle3lib.rewire import Rewired, move_columns, slot_value
from eagle3lib.rungs import MARGIN, Judge, Rung
from eagle3lib.target import Target
from eagle3lib.tune import Tuned, tune

#: A repair that brings back less of the lost length is none.
WORTHWHILE = 0.5
#: Where so much of the fused state's variance cannot be told from the served states, they do not hold it: a fit then
#: makes another draft, good on prompts like those it saw. On 20,000 tokens SmolLM2 served on [15, 27, 28] leaves 0.10
#: and on three copies of B(30) 0.74, which still brought three quarters of the length back on the held-out prompts.
NOT_HELD = 0.5


@dataclass(frozen=True, eq=False)
class Ladder:
    """All rungs that were climbed, the served draft's own first.

    Attributes:
        true: the acceptance of the true wiring on the judged prompts.
        zeroed: what each trained slot that is not served is worth, by slot.
    """

    trained: Wiring
    served: Wiring
    steps: int
    margin: float
    true: Acceptance
    rungs: tuple[Rung, ...]
    rewired: Rewired
    zeroed: dict[int, Estimate]
    fit: Fit | None = None
    tuned: Tuned | None = None

    @property
    def broken(self) -> Rung:
        """The draft as it is served."""
        return self.rungs[0]

    @property
    def chosen(self) -> Rung | None:
        """The lowest rung that suffices, else the highest offered one that is worth it; None without one."""
        offered = [rung for rung in self.rungs if rung.offered and (self.held or rung.name == "rewire")]
        best = next((rung for rung in offered if rung.suffices), offered[-1] if offered else None)
        return best if best and (best.suffices or best.recovered.value >= WORTHWHILE) else None

    @property
    def held(self) -> bool:
        """Whether the served states hold the fused state, as far as a refit asked."""
        return self.fit is None or self.fit.residual < NOT_HELD

    @property
    def sentence(self) -> str:
        """The conclusion, in words."""
        if not self.broken.lost.low > 0:
            return (
                f"Serving {self.served} instead of {self.trained} loses {self.broken.lost} tokens a round, which is not"
                " told apart from nothing: there is nothing to repair."
            )
        if self.chosen is None:
            best = max((rung.recovered.value for rung in self.rungs[1:]), default=0.0)
            told = (
                ""
                if self.held
                else (
                    f" {self.fit.residual:.0%} of the fused state's variance cannot be told from them, with"
                    f" {self.fit.tokens_per_input:.1f} tokens an input."
                )
            )
            return (
                f"The served boundaries {self.served} do not hold what fc needs.{told} The best rung brings back"
                f" {best:.0%} of the lost acceptance length on these prompts. Nothing is written; the engine must"
                " capture other boundaries."
            )
        left = "" if self.chosen.suffices else f", which still loses {self.chosen.lost}"
        return (
            f"{self.chosen.name} brings {self.chosen.found.walk.length} tokens a round at K = {self.steps}, against"
            f" {self.broken.found.walk.length} as served and {self.true.walk.length} with the true wiring:"
            f" {self.chosen.recovered.value:.0%} of the loss{left}."
        )

    def table(self) -> pd.DataFrame:
        """One row a rung and the true wiring's: length, gain over the rung below, share of the loss that came back."""
        rows = [_row(rung.name, rung.found, rung) for rung in self.rungs]
        return pd.DataFrame([*rows, _row("true wiring", self.true, None)])

    def to_json(self) -> dict:
        """Plain data for a results file."""
        rungs = {rung.name: rung.to_json() for rung in self.rungs}
        return {
            "trained": list(self.trained.slots),
            "served": list(self.served.slots),
            "steps": self.steps,
            "margin": self.margin,
            "true": {
                "length": self.true.walk.length.to_json(),
                "conditional": [c.value for c in self.true.walk.conditional],
            },
            "rungs": rungs,
            "zeroed_slots": {str(slot): value.to_json() for slot, value in self.zeroed.items()},
            "fit": self.fit.to_json() if self.fit else None,
            "tune_nats": list(self.tuned.nats) if self.tuned else None,
            "chosen": self.chosen.name if self.chosen else None,
        }


def climb(
    draft: Draft,
    trained: Wiring,
    served: Wiring,
    sets: Sequence[Material],
    target: Target | None = None,
    *,
    steps: int = 4,
    margin: float = MARGIN,
    every_rung: bool = False,
) -> Ladder:
    """Build and judge rung by rung, up to the first that suffices.

    Args:
        sets: three that share no prompt: to fit, to choose the penalty and the stop by, to judge on.
        target: whose distribution tunes, None to stop at the refit.
        every_rung: climb on where a rung suffices.

    Raises:
        InputError: as `move_columns`, `refit` and `tune`.
    """
    fit, validation, judged = sets
    rewired = move_columns(draft, trained, served)
    judge = Judge(draft, trained, served, judged, steps)
    rungs = [judge.rung("served", draft, margin=margin)]
    zeroed = {slot: slot_value(draft, judged.trained, judge.true, trained, slot) for slot in rewired.lost_slots}
    fitted = tuned = None

    def climb_on() -> bool:
        return every_rung or not any(r.offered and r.suffices for r in rungs)

    def last_offered() -> Rung:
        return next((r for r in reversed(rungs) if r.offered), rungs[0])

    if rewired.moved:
        found = judge.rung("rewire", rewired.draft, rungs[0], margin)
        immaterial = all(value.high < margin for value in zeroed.values())
        rungs.append(replace(found, suffices=immaterial and (rewired.exact or found.suffices)))
    if climb_on():
        fitted = refit(draft, trained, served, fit, validation)
        rungs.append(judge.rung("refit", fitted.draft, last_offered(), margin))
    if climb_on() and fitted and target:
        tuned = tune(fitted.draft, served, target, fit, validation)
        rungs.append(judge.rung("tune", tuned.draft, last_offered(), margin))
    true = acceptance(judge.true, steps)
    return Ladder(trained, served, steps, margin, true, tuple(rungs), rewired, zeroed, fitted, tuned)


def _row(name: str, found: Acceptance, rung: Rung | None) -> dict:
    length, gain = found.walk.length, rung.gain if rung else None
    row = {"rung": name, "length": length.value, "low": length.low, "high": length.high, "rounds": length.count}
    row |= {"gain": gain.value if gain else np.nan, "gain low": gain.low if gain else np.nan}
    row |= {"gain high": gain.high if gain else np.nan}
    share = rung.recovered if rung else None
    row |= {"recovered": share.value if share else 1.0, "recovered low": share.low if share else np.nan}
    row |= {"recovered high": share.high if share else np.nan}
    row |= {f"c_{k + 1}": c.value for k, c in enumerate(found.walk.conditional)}
    return row | {
        "worst quarter loses": rung.worst if rung else 0.0,
        "offered": bool(rung and rung.offered),
        "suffices": rung is None or rung.suffices,
    }
