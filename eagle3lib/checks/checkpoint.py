"""Stage `checkpoint`, from the values: weights, embedding, head and vocabulary map."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lib.findings import Finding, Severity
from eagle3lib.vocabulary import Vocabulary
from eagle3lib.weights import Likeness

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK


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


#: A median cosine with the target's rows below which an embedding was never copied nor trained: of random
#: rows of width H the cosine has the standard deviation 1 / sqrt(H).
RANDOM_COSINE = 0.2
#: From this cosine on, own and target's rows point the same way.
SAME_COSINE = 0.999
#: How far the ratio of norms of the same embedding may be from 1.
NORM_MARGIN = 0.05


def check_embedding(likeness: Likeness) -> Finding:
    """The draft's own embedding is the target's, or was trained from it; not random, not scaled."""
    cosine, ratio = likeness.cosine, likeness.norm_ratio
    evidence = {"rows": likeness.rows, "cosine": round(cosine, 4), "norm ratio": round(ratio, 4)}
    if abs(cosine) < RANDOM_COSINE:
        return Finding(
            "checkpoint.embedding_random",
            FAULT,
            "The draft's embedding has nothing in common with the target's",
            "It was written as it was initialised. An engine that takes the target's instead (SGLang, TensorRT-LLM)"
            " serves well, one that keeps the file's (vLLM) does not.",
            "Copy the target's embedding into the file, or drop the tensor.",
            evidence,
        )
    if cosine >= SAME_COSINE and abs(ratio - 1) > NORM_MARGIN:
        return Finding(
            "checkpoint.embedding_scaled",
            FAULT,
            f"The draft's embedding is the target's times {ratio:.3g}",
            "The direction is right and the size is not: a factor such as Gemma's sqrt(hidden size) was applied on one"
            " side only. The cosine alone hides it.",
            "Export the embedding again from the table that the draft was trained with.",
            evidence,
        )
    if cosine >= SAME_COSINE:
        return Finding(
            "checkpoint.embedding",
            OK,
            "The draft's embedding is the target's",
            "It makes no difference which one an engine takes.",
            evidence=evidence,
        )
    return Finding(
        "checkpoint.embedding_trained",
        NOTE,
        "The draft has an embedding of its own",
        "SGLang and TensorRT-LLM put the target's in its place; what training changed in it is lost there.",
        evidence=evidence,
    )


def check_head(likeness: Likeness) -> Finding | None:
    """The draft's head is its own, or the target's rows of the right tokens."""
    evidence = {"rows": likeness.rows, "equal": round(likeness.equal, 4), "equal unmapped": round(likeness.unmapped, 4)}
    if likeness.unmapped > 0.5:
        return Finding(
            "checkpoint.head_unmapped",
            FAULT,
            "The draft's head holds the target's first rows, not those of the tokens in d2t",
            "Every logit is scored under another token's name.",
            "Cut the target's head with d2t instead, or export the trained head.",
            evidence,
        )
    if likeness.equal > 0.5:
        return Finding(
            "checkpoint.head_is_the_target_s",
            NOTE,
            f"{likeness.equal:.0%} of the head's rows are the target's own",
            "Meant where training left the head as it was copied; otherwise the trained one was not saved.",
            evidence=evidence,
        )
    return None


def check_map(vocabulary: Vocabulary) -> list[Finding]:
    """d2t says which tokens the draft can say, as t2d does, in the form that engines read."""
    size, n = vocabulary.size, len(vocabulary)
    evidence = {"draft vocabulary": n, "vocabulary": size, "read as": vocabulary.reading, "why": vocabulary.why}
    found = []
    if vocabulary.reading == "absolute ids" and not vocabulary.by_form:
        found.append(
            Finding(
                "checkpoint.vocabulary_absolute",
                FAULT,
                "d2t holds target ids, not offsets",
                "SGLang, vLLM and TensorRT-LLM add the draft id to each, so nearly every choice becomes another token.",
                "Store d2t - arange(len(d2t)).",
                evidence,
            )
        )
    if vocabulary.all_zero and n < size and (vocabulary.t2d_differs or vocabulary.t2d_marks is None):
        found.append(
            Finding(
                "checkpoint.vocabulary_zero",
                FAULT if vocabulary.t2d_differs else RISK,
                f"d2t is all zeros, though the draft says {n} of {size} tokens",
                "It was never filled in, unless the draft's vocabulary is the first part of the target's.",
                "Export the map that the data preparation wrote.",
                evidence,
            )
        )
    elif vocabulary.t2d_differs:
        found.append(
            Finding(
                "checkpoint.vocabulary_contradicts",
                FAULT,
                f"d2t and t2d disagree on {vocabulary.t2d_differs} target tokens",
                "One of them is of another run or corpus; every choice that they disagree on is a wrong token.",
                "Export both again from one training state; compare with the trainer's vocabulary files.",
                evidence,
            )
        )
    if not found:
        with_t2d = "and t2d agrees" if vocabulary.t2d_marks is not None else "and there is no t2d to hold against it"
        title = f"The draft says {n} of {size} tokens, {with_t2d}"
        found.append(Finding("checkpoint.vocabulary", OK, title, f"Read as {vocabulary.reading}.", evidence=evidence))
    return found


def check_coverage(vocabulary: Vocabulary, share: float, n_tokens: int) -> Finding:
    """The share of the given tokens that the draft can say: no acceptance is higher."""
    return Finding(
        "checkpoint.coverage",
        NOTE,
        f"The draft can say {share:.1%} of {n_tokens} recorded tokens: over all starts no S_k is higher",
        "A target token outside the draft's vocabulary is a miss whatever the draft has learned.",
        evidence={"coverage": share, "tokens": n_tokens, "draft vocabulary": len(vocabulary)},
    )
