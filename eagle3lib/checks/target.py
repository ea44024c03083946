"""Stage `checkpoint`: the target's tables, as far as an investigation reads them."""

from __future__ import annotations

from eagle3lib.findings import Finding, Severity
from eagle3lib.target import Target


def check_padding(target: Target) -> Finding | None:
    """Rows beyond the vocabulary: alignment, or an export that counted its ranks twice."""
    if not target.padding_rows:
        return None
    rows = target.vocab_size + target.padding_rows
    evidence = {"rows": rows, "vocabulary": target.vocab_size}
    if rows == 2 * target.vocab_size:
        return Finding(
            "checkpoint.target_padded_twice",
            Severity.RISK,
            f"The target's embedding has {rows} rows, twice its vocabulary",
            "A tensor-parallel export that multiplies its padding by the number of ranks twice writes that.",
            "Compare the file with the published target, or export it again.",
            evidence,
        )
    return Finding(
        "checkpoint.target_padding",
        Severity.NOTE,
        f"The target's embedding has {target.padding_rows} padding rows",
        "They are no tokens: no argmax here takes them, and an engine must not either.",
        evidence=evidence,
    )
