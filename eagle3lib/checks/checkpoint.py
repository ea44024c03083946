"""Stage `checkpoint`: is the draft whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagle3lib.checkpoint import Draft
from eagle3lib.findings import Finding, Severity
from eagle3lib.tensors import TensorInfo, read_tensor

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK


def check_ledger(draft: Draft) -> list[Finding]:
    """Every expected tensor is there, or something stands in for it."""
    missing = [e for e in draft.ledger if e.status == "missing" and e.name != "t2d"]
    unused = [e for e in draft.ledger if e.status == "unused" and e.name != "t2d"]
    found = [
        Finding(
            "checkpoint.tensor_absent",
            NOTE,
            f"The file holds no {entry.name}",
            f"{entry.note[0].upper()}{entry.note[1:]} stands in for it here, as in most engines.",
            evidence={"tensor": entry.name},
        )
        for entry in missing
    ]
    if unused:
        names = [entry.name for entry in unused]
        found.append(
            Finding(
                "checkpoint.tensor_unused",
                RISK,
                f"{len(unused)} tensors are no part of an EAGLE-3 pass",
                "An engine drops names that it does not know without a word; what they were trained to do is lost.",
                "Look the names up in the trainer; an unfamiliar norm or bias means another pass than this one.",
                {"tensors": names},
            )
        )
    used = sum(e.status == "used" for e in draft.ledger)
    if not unused:
        found.append(
            Finding(
                "checkpoint.whole",
                OK,
                f"All {used} tensors of the pass are used and none is left over",
                "The weights are whole and of an EAGLE-3 draft.",
                evidence={"used": used, "substituted": [e.name for e in missing]},
            )
        )
    return found


def check_finite(stats: Sequence[dict]) -> Finding:
    """No weight is NaN, infinite, or constant where it should vary."""
    broken = [row["tensor"] for row in stats if row["non_finite"]]
    constant = [row["tensor"] for row in stats if row["constant"]]
    if broken:
        return Finding(
            "checkpoint.non_finite",
            FAULT,
            f"{len(broken)} tensors hold NaN or infinity",
            "Every logit that they touch is NaN; engines then accept nothing or everything.",
            "Export the checkpoint again from the last sound training state.",
            {"tensors": broken},
        )
    if constant:
        return Finding(
            "checkpoint.constant",
            RISK,
            f"{len(constant)} tensors are constant",
            "A matrix of one value was never trained or never saved; a norm of ones may be meant.",
            "Compare with the training state.",
            {"tensors": constant},
        )
    return Finding("checkpoint.finite", OK, "Every weight is finite and varies", "No tensor was left unwritten.")


def check_vocabulary(draft: Draft, t2d: TensorInfo | None) -> Finding:
    """d2t and t2d say the same."""
    evidence = {"draft_vocabulary": draft.config.draft_vocab_size, "vocabulary": draft.config.vocab_size}
    if t2d is None:
        return Finding(
            "checkpoint.vocabulary_alone",
            NOTE,
            "There is no t2d to check d2t against",
            "The map is in range and without repeats, which is all that it tells of itself.",
            evidence=evidence,
        )
    marked = read_tensor(t2d).bool().nonzero().flatten()
    if torch.equal(marked, draft.target_ids.cpu().sort().values):
        return Finding(
            "checkpoint.vocabulary",
            OK,
            f"d2t and t2d name the same {len(marked)} target tokens",
            "The draft's ids map to the target's as the trainer meant.",
            evidence=evidence,
        )
    differing = len(set(marked.tolist()) ^ set(draft.target_ids.tolist()))
    return Finding(
        "checkpoint.vocabulary_contradicts",
        FAULT,
        f"d2t and t2d disagree on {differing} target tokens",
        "One of them is of another run or corpus; every choice that they disagree on is a wrong token.",
        "Export both again from one training state; compare with the trainer's vocabulary files.",
        {**evidence, "tokens_named_by_one_only": differing},
    )
