"""Stage `dump`: are the recorded states what they are said to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagle3lib.boundaries import FINAL_NORMED, Boundary, boundary_name
from eagle3lib.findings import Finding, Severity
from eagle3lib.sample import Sample
from eagle3lib.target import Target

FAULT, NOTE, OK = Severity.FAULT, Severity.NOTE, Severity.OK

#: Share of greedily recorded tokens that the last state's argmax gives back in a sound dump.
ON_POLICY = 0.98
#: Mean error in nats of a sound last state's log-probabilities: bfloat16 storage stays well below it.
LOGPROB_ERROR = 0.05


@dataclass(frozen=True)
class Reconstruction:
    """The recorded tokens as the last state sees them.

    Attributes:
        on_policy: share of recorded response tokens that are the argmax.
        mean_logprob: of the recorded response tokens.
        logprob_error: mean |difference| from the log-probabilities that the dump carries, None without them.
    """

    boundary: Boundary
    on_policy: float
    mean_logprob: float
    logprob_error: float | None
    count: int


def reconstruct(target: Target, samples: Sequence[Sample], boundary: Boundary) -> Reconstruction:
    """Norm and head on a state (head alone on `final_normed`), held against the recorded next tokens."""
    states, recorded, own = [], [], []
    for sample in samples:
        rows = torch.arange(sample.n_pairs)[sample.loss_mask[1 : sample.n_pairs + 1]]
        state = sample.state(boundary)[rows].float()
        states.append(state if boundary == FINAL_NORMED else target.final_norm(state))
        recorded.append(sample.token_ids[rows + 1])
        own.append(sample.logprobs[rows + 1] if sample.logprobs is not None else torch.full((len(rows),), torch.nan))
    next_ids, truth = torch.cat(recorded), torch.cat(own)
    scores = target.score(torch.cat(states), next_ids)
    error = (scores.logprob - truth).abs()
    return Reconstruction(
        boundary,
        on_policy=float((scores.argmax == next_ids).float().mean()),
        mean_logprob=float(scores.logprob.mean()),
        logprob_error=float(error[~truth.isnan()].mean()) if (~truth.isnan()).any() else None,
        count=len(next_ids),
    )


def check_last_state(last: Reconstruction | None, greedy: bool) -> Finding:
    """The state stated as the last one gives the recorded tokens back."""
    if last is None:
        return Finding(
            "dump.no_last_state",
            NOTE,
            "Cannot tell whether the recorded tokens are the target's own: no dump holds B(n)",
            "Wirings can be compared, but no served number can be forecast.",
            "Capture the state after the last block, before the final norm, with the same tokens.",
        )
    evidence = {
        "boundary": last.boundary,
        "on_policy_rate": last.on_policy,
        "mean_logprob": last.mean_logprob,
        "logprob_error": last.logprob_error,
        "tokens": last.count,
    }
    name, error = boundary_name(last.boundary), last.logprob_error
    if (error is not None and error > LOGPROB_ERROR) or (greedy and last.on_policy < ON_POLICY):
        by = "" if error is None else f", log-probabilities {error:.3f} nats off"
        return Finding(
            "dump.last_state_wrong",
            FAULT,
            f"Norm and head on {name} give only {last.on_policy:.1%} of the recorded tokens{by}",
            "The state is of another boundary, already normed, or of other tokens; or the responses are not the"
            " target's own.",
            "Check which state the dump stores last and whether it was normed; regenerate responses on-policy.",
            evidence,
        )
    if not greedy and error is None:
        return Finding(
            "dump.last_state_unproved",
            NOTE,
            f"Cannot tell whether {name} is sound: sampled tokens need not be its argmax",
            "A sampled response says little of the state that made it.",
            "Store the target's log-probabilities with the tokens, or a greedy response beside them.",
            evidence,
        )
    kind = "recorded" if greedy else "sampled"
    by = "" if error is None else f", log-probabilities to {error:.4f}"
    return Finding(
        "dump.last_state",
        OK,
        f"Norm and head on {name} give {last.on_policy:.1%} of the {kind} tokens as argmax{by}",
        "The last state is B(n), before the norm, and the responses are the target's own.",
        evidence=evidence,
    )
