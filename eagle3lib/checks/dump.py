"""Stage `dump`: do the states belong to the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3lib.boundaries import Boundary, boundary_name
from eagle3lib.findings import Finding, Severity
from eagle3lib.sample import Sample
from eagle3lib.target import Target

FAULT, OK = Severity.FAULT, Severity.OK

#: Largest relative difference between a stored B(0) and the embedding row that bfloat16 storage explains:
#: half a unit in the last of 8 significant bits, 2^-8, and float16 needs less.
BF16_RELATIVE = 2.0**-8


@dataclass(frozen=True)
class EmbeddingMatch:
    """How far a stored state is from the tokens' embedding rows: ‖h - e‖ / ‖e‖ over all rows."""

    boundary: Boundary
    relative_difference: float


def embedding_match(target: Target, samples: Sequence[Sample], boundary: Boundary) -> EmbeddingMatch:
    """The relative difference between a boundary's states and the embedding rows of their tokens."""
    difference = scale = 0.0
    for sample in samples:
        state = sample.state(boundary).float()
        rows = target.embed(sample.token_ids[: len(state)])
        difference += float((state - rows).square().sum())
        scale += float(rows.square().sum())
    return EmbeddingMatch(boundary, (difference / scale) ** 0.5)


def check_embedding(dump: str, matches: Sequence[EmbeddingMatch]) -> list[Finding]:
    """B(0) of a dump, and nothing else in it, equals the embedding rows of its tokens."""
    found = []
    for match in matches:
        name, equal = boundary_name(match.boundary), match.relative_difference <= BF16_RELATIVE
        evidence = {"dump": dump, "boundary": match.boundary, "relative_difference": match.relative_difference}
        if match.boundary == 0 and equal:
            found.append(
                Finding(
                    "dump.embedding_proved",
                    OK,
                    f"B(0) of {dump} is the embedding row of each token, to {match.relative_difference:.1e}",
                    "The tokens belong to the states, and the first state is the embedding output.",
                    evidence=evidence,
                )
            )
        elif match.boundary == 0:
            found.append(
                Finding(
                    "dump.not_embedding",
                    FAULT,
                    f"B(0) as stated of {dump} is not the embedding: it differs by {match.relative_difference:.2f}",
                    "The states were captured one boundary later than stated, or belong to other tokens.",
                    "Correct the dump's boundaries in the case, or dump again.",
                    evidence,
                )
            )
        elif equal:
            found.append(
                Finding(
                    "dump.hidden_embedding",
                    FAULT,
                    f"The state of {dump} stated as {name} is the embedding output B(0)",
                    "The capture list started one earlier than stated, so every later state is off by one too.",
                    "State boundary 0 for it in the case, and check the ids that the dump was made with.",
                    evidence,
                )
            )
    return found
