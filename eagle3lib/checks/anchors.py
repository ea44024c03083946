"""Stage `dump`: states that the target itself proves, B(0) by its embedding and B(n) by its norm and head."""

from __future__ import annotations

import math
from collections.abc import Sequence

from eagle3lib.anchors import EmbeddingMatch, LastMatch
from eagle3lib.boundaries import Boundary, boundary_name
from eagle3lib.findings import Finding, Severity

FAULT, NOTE, OK = Severity.FAULT, Severity.NOTE, Severity.OK

#: Largest relative difference between a stored B(0) and the embedding row that bfloat16 storage explains:
#: half a unit in the last of 8 significant bits, 2^-8, and float16 needs less.
BF16_RELATIVE = 2.0**-8
#: What a quantised embedding on either side explains: rows in 4 bits are 0.1 off, and no block turns a state by less
#: than 12 degrees (0.2) on SmolLM2; rows of other tokens differ by 1 and more.
NEAR = 0.15
#: Share of recorded tokens that only a last state gives. Of SmolLM2's 30 blocks the last but one gives 60 %, the
#: state before it 52 %, the last state 99.6 %.
LAST_RATE = 0.9


def embedding_boundary(matches: Sequence[EmbeddingMatch]) -> Boundary | None:
    """The stored state that is the embedding output, whatever it is stated as; None where none is."""
    return next((m.boundary for m in matches if m.scaled_difference <= NEAR), None)


def check_embedding(dump: str, matches: Sequence[EmbeddingMatch]) -> list[Finding]:
    """B(0) of a dump, and nothing else in it, is the embedding row of each token, or a fixed multiple of it."""
    found = []
    for match in matches:
        name, scale = boundary_name(match.boundary), match.scale
        evidence = {
            "dump": dump,
            "boundary": match.boundary,
            "relative_difference": match.relative_difference,
            "scale": scale,
            "scaled_difference": match.scaled_difference,
            "rows": match.rows,
        }
        if not math.isfinite(match.relative_difference):
            if match.boundary == 0:
                evidence = {"dump": dump, "boundary": 0, "rows": match.rows}
                found.append(
                    Finding(
                        "dump.embedding_unknown",
                        NOTE,
                        f"Cannot tell whether B(0) of {dump} is the embedding: its values are not all finite",
                        "One value that is not finite spoils the sums.",
                        "Dump again where the values check names the boundary.",
                        evidence,
                    )
                )
        elif match.scaled_difference > NEAR:
            if match.boundary == 0:
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
        elif match.boundary != 0:
            found.append(
                Finding(
                    "dump.hidden_embedding",
                    FAULT,
                    f"The state of {dump} stated as {name} is the embedding output B(0)",
                    "The capture began earlier than stated, so the states after this one may be others too.",
                    "State boundary 0 for it in the case, and check the ids that the dump was made with.",
                    evidence,
                )
            )
        elif match.relative_difference <= BF16_RELATIVE:
            found.append(
                Finding(
                    "dump.embedding_proved",
                    OK,
                    f"B(0) of {dump} is the embedding row of each token, to {match.relative_difference:.1e}",
                    "The tokens belong to the states, and the first state is the embedding output.",
                    evidence=evidence,
                )
            )
        elif match.scaled_difference > BF16_RELATIVE:
            found.append(
                Finding(
                    "dump.embedding_near",
                    NOTE,
                    f"B(0) of {dump} is the embedding row of each token to {match.scaled_difference:.1%}, which is more"
                    " than rounding",
                    "The tokens belong to the states; the run or the target's file here has its embedding in other"
                    " numbers, as quantised ones.",
                    "Point the case at the target's files that the run used.",
                    evidence,
                )
            )
        else:
            square = scale * scale
            root = f", the square root of {round(square)}" if abs(square - round(square)) < 0.01 * square else ""
            found.append(
                Finding(
                    "dump.embedding_scaled",
                    NOTE,
                    f"B(0) of {dump} is {scale:.4g} times the embedding row of each token{root}",
                    "The target scales its embedding (Gemma by the square root of its width), or the dump was scaled;"
                    " the tokens belong to the states.",
                    "Where a draft takes B(0), see that the engine hands it on at this scale, not as the bare row.",
                    evidence,
                )
            )
    return found


def check_last_as_aux(dump: str, matches: Sequence[LastMatch]) -> list[Finding]:
    """No state that is stated as another boundary is the last one, or its norm."""
    return [
        Finding(
            "dump.last_state_as_aux",
            FAULT,
            f"The state of {dump} stated as {boundary_name(match.boundary)} is the last one"
            + (", already normed" if match.normed else ""),
            f"The head gives {match.rate:.0%} of {match.rows} recorded tokens from it, which no earlier state can;"
            " the last state stands in an auxiliary slot, as when an id counts from the end or names the output.",
            "Capture the boundary that the draft was trained on; or state n for this one in the case"
            + (" as final_normed." if match.normed else "."),
            {
                "dump": dump,
                "boundary": match.boundary,
                "normed": match.normed,
                "rate": match.rate,
                "tokens": match.rows,
            },
        )
        for match in matches
        if match.rate >= LAST_RATE
    ]
