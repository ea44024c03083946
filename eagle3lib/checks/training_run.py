"""Stage `training`: does a longer training still help serving."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lib.checkpoints import Contender, verdict_of
from eagle3lib.findings import Finding, Severity

RISK, NOTE, OK = Severity.RISK, Severity.NOTE, Severity.OK


def check_training_run(found: Sequence[Contender]) -> Finding:
    """Acceptance length over training: still rising, flat, or falling while the loss improves.

    Args:
        found: checkpoints of one run, compared on the same samples.
    """
    run = sorted((c for c in found if c.step is not None), key=lambda c: c.step)
    if len(run) < 2:
        return Finding(
            "training.run_unknown",
            NOTE,
            "Cannot tell how acceptance went over training: fewer than two checkpoints",
            "One checkpoint has no course.",
            "Keep a checkpoint every few thousand steps and name them in the case.",
        )
    best, last = next((c for c in run if c.best), max(run, key=lambda c: c.length.value)), run[-1]
    evidence = {
        "steps": [c.step for c in run],
        "acceptance_length": [c.length.value for c in run],
        "loss": [c.loss for c in run],
        "behind": last.behind.numbers,
    }
    known = best.loss is not None and last.loss is not None
    if best is not last and last.behind.low > 0:
        improves = known and last.loss < best.loss
        loss = f" while the loss fell from {best.loss:.4g} to {last.loss:.4g}" if improves else ""
        return Finding(
            "training.stop_earlier",
            RISK,
            f"Acceptance fell after step {best.step}: {best.length.value:.3f} to {last.length.value:.3f}{loss}",
            "The loss rewards what acceptance does not: probabilities at tokens that no round proposes, or the"
            " training texts themselves."
            if improves
            else "Later steps made the draft worse at what is served.",
            f"Serve the checkpoint of step {best.step}, and stop by acceptance on held-out responses.",
            evidence,
        )
    if best is last and run[-2].behind.low > 0:
        return Finding(
            "training.still_rising",
            NOTE,
            f"Acceptance was still rising at step {last.step}: {last.length.value:.3f}",
            f"The last checkpoint is {run[-2].behind} tokens a round above the one before it.",
            "Train longer.",
            evidence,
        )
    return Finding(
        "training.run_flat",
        OK,
        f"Acceptance no longer changes: {last.length.value:.3f} at step {last.step}, best {best.length.value:.3f}",
        "The last checkpoint is the best, or cannot be told from it"
        + ("." if best is last else f": {verdict_of(last.behind)}."),
        evidence=evidence,
    )
