"""The proof of a capture: its stored last states against the model's own logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from eagle3lib.boundaries import FINAL_NORMED
from eagle3lib.capture.states import prefill, row_blocks
from eagle3lib.capture.whole_target import WholeTarget
from eagle3lib.errors import InputError
from eagle3lib.findings import Finding, Severity
from eagle3lib.own_layout import state_key

#: Largest error of a logit where states are stored in the run's own dtype: order of summation only.
LOGIT_ERROR = 1e-4
#: Largest mean error in nats of a recorded token's log-probability where states were rounded to bfloat16.
LOGPROB_ERROR = 0.01


@dataclass(frozen=True)
class OwnLogits:
    """How far norm and head on the stored last state are from the model's own.

    Attributes:
        logit_error: largest |difference| of a logit.
        logprob_error: mean |difference| of the recorded tokens' log-probabilities, in nats.
        tokens: whose log-probabilities were compared.
    """

    logit_error: float
    logprob_error: float
    tokens: int


@torch.inference_mode()
def own_logits(target: WholeTarget, files: Sequence[Path]) -> OwnLogits:
    """Hold the stored last state of captured samples against a new pass of the model over their tokens.

    Raises:
        InputError: if a file holds neither B(n) nor final_normed.
    """
    largest = total = 0.0
    tokens = 0
    for file in files:
        token_ids, last = _last_state(target, file)
        own = prefill(target, token_ids, [FINAL_NORMED])[0][FINAL_NORMED]
        for rows in row_blocks(len(token_ids) - 1, target.vocab_size):
            mine, theirs = target.logits(last[rows]), target.logits(own[rows])
            largest = max(largest, float((mine - theirs).abs().max()))
            following = token_ids[rows.start + 1 : rows.stop + 1, None].to(mine.device)
            difference = mine.log_softmax(-1).gather(1, following) - theirs.log_softmax(-1).gather(1, following)
            total += float(difference.abs().sum())
            tokens += len(following)
    return OwnLogits(largest, total / max(tokens, 1), tokens)


def _last_state(target: WholeTarget, file: Path) -> tuple[Tensor, Tensor]:
    """Token ids, and the normed last state [T, H] as the run's dtype has it."""
    with safe_open(file, framework="pt") as tensors:
        held = tensors.keys()
        token_ids = tensors.get_tensor("token_ids")
        if (name := state_key(target.n_layers)) in held:
            norm_weight = next(target.final_norm.parameters())
            return token_ids, target.final_norm(tensors.get_tensor(name).to(norm_weight.device, target.model.dtype))
        if FINAL_NORMED in held:
            return token_ids, tensors.get_tensor(FINAL_NORMED).to(target.model.dtype)
    raise InputError(
        f"{file} holds neither B({target.n_layers}) nor {FINAL_NORMED}, so its states cannot be held against the"
        " model's logits; capture one of them too."
    )


def check_own_logits(found: OwnLogits, rounded: bool) -> Finding:
    """A capture is sound where its last states give the model's own logits back; `rounded`: stored in fewer bits
    than the run had."""
    evidence = {"tokens": found.tokens, "logit_error": found.logit_error, "logprob_error": found.logprob_error}
    by = f"log-probabilities are {found.logprob_error:.2g} nats off on average, logits at most {found.logit_error:.2g}"
    if found.logprob_error < LOGPROB_ERROR and (rounded or found.logit_error <= LOGIT_ERROR):
        return Finding(
            "dump.capture_proved",
            Severity.OK,
            f"The stored last states give the model's own logits back: {by}",
            "States, tokens and log-probabilities belong together, and B(n) is stored before the norm.",
            evidence=evidence,
        )
    return Finding(
        "dump.capture_unsound",
        Severity.FAULT,
        f"The stored last states do not give the model's own logits back: {by}",
        "The files were made by another model, dtype or version than the one loaded now, or were changed since.",
        "Delete the folder and capture again with this model.",
        evidence,
    )
