"""Stage `dump`: are the stored values, rows and norms those that a model makes."""

from __future__ import annotations

from collections.abc import Callable

from eagle3lib.boundaries import FINAL_NORMED, Boundary, boundary_name
from eagle3lib.findings import Finding, Severity, quantity
from eagle3lib.hygiene import DumpValues, Short, StateValues
from eagle3lib.norms import OUTLIER_RATIO

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK

#: Fewer rows leave a channel constant by chance, or make no profile.
FEW_ROWS = 64
#: A median norm this many times outside those of the boundaries beside it is out of the profile. SmolLM2's norms
#: rise but for a dip of 2.5 % at B(12) and 8 % at B(30).
OUT_OF_PROFILE = 2.0
#: How many boundaries or samples a title lists.
LISTED = 6


def check_values(dump: str, values: DumpValues) -> list[Finding]:
    """Rows, values, channels and norms of a dump; one good word where nothing is wrong with any."""
    found = [
        finding
        for finding in (
            _rows(dump, values),
            _non_finite(dump, values),
            _saturated(dump, values),
            _zero(dump, values),
            _repeated(dump, values),
            _constant(dump, values),
            _profile(dump, values),
        )
        if finding
    ]
    if not values.samples:
        return [Finding("dump.empty", FAULT, f"{dump} holds no sample", "Nothing can be checked.", "Dump again.")]
    if not found:
        n_values = sum(s.rows * len(s.squares) for s in values.states.values() if s.squares is not None)
        title = f"All {n_values:,} values of {dump} are finite, and no row is missing, zero, repeated or saturated"
        evidence = {"dump": dump, "values": n_values, "samples": values.samples, "tokens": values.tokens}
        found = [Finding("dump.values_sound", OK, title, "The numbers are those of a model.", evidence=evidence)]
    return found + [finding for finding in [_outliers(dump, values)] if finding]


def _where(values: DumpValues, count: Callable[[StateValues], int]) -> dict[Boundary, int]:
    """The boundaries at which something was counted."""
    return {boundary: n for boundary, state in values.states.items() if (n := count(state))}


def _names(boundaries: list[Boundary]) -> str:
    more = f" and {len(boundaries) - LISTED} more" if len(boundaries) > LISTED else ""
    return ", ".join(map(boundary_name, boundaries[:LISTED])) + more


def _evidence(dump: str, values: DumpValues, counts: dict[Boundary, int]) -> dict:
    rows = [values.states[b].rows for b in counts]
    return {"dump": dump, "boundaries": list(counts), "counts": list(counts.values()), "rows": rows}


def _rows(dump: str, values: DumpValues) -> Finding | None:
    if not values.short_count:
        return None
    first = values.short[0]
    return Finding(
        "dump.rows_missing",
        FAULT,
        f"States are missing in {values.short_count} of {quantity(values.samples, 'sample')} of {dump}: {first.name}"
        f" holds {quantity(first.rows, 'row')} for {first.tokens} tokens, {_lacking(first)}",
        "Only the last token of a generation may lack a state. Where the first ones do, rows and tokens are out of"
        " step throughout: an engine leaves out what its prefix cache held, or keeps the last chunk of a prefill.",
        "Dump again with prefix caching and chunked prefill off.",
        {
            "dump": dump,
            "samples": [short.name for short in values.short],
            "tokens": [short.tokens for short in values.short],
            "rows": [short.rows for short in values.short],
            "first_tokens": [short.first for short in values.short],
        },
    )


def _lacking(short: Short) -> str:
    if short.first is None:
        return "and which tokens lack one cannot be told without B(0) and the target"
    if short.first == 0:
        return f"the last {short.tokens - short.rows} lack one"
    return f"the first {short.first} lack one"


def _non_finite(dump: str, values: DumpValues) -> Finding | None:
    counts = _where(values, lambda state: state.non_finite)
    if not counts:
        return None
    return Finding(
        "dump.non_finite",
        FAULT,
        quantity(sum(counts.values()), f"value of {dump} is", f"values of {dump} are")
        + f" NaN or infinite, at {_names(list(counts))}",
        "A draft trained or replayed on them learns and shows nothing; one such value spoils its whole row.",
        "Run the target in bfloat16 or float32; look for overflow in float16 or a quantised kernel.",
        _evidence(dump, values, counts),
    )


def _saturated(dump: str, values: DumpValues) -> Finding | None:
    counts = _where(values, lambda state: state.saturated)
    if not counts:
        return None
    return Finding(
        "dump.saturated",
        FAULT,
        quantity(sum(counts.values()), f"value of {dump} stands", f"values of {dump} stand")
        + f" at the limit of float16, at {_names(list(counts))}",
        "The outlier channels of a residual stream exceed 65504, and float16 cut them.",
        "Dump in bfloat16, and serve the target in it.",
        _evidence(dump, values, counts),
    )


def _zero(dump: str, values: DumpValues) -> Finding | None:
    counts = _where(values, lambda state: state.zero_rows)
    if not counts:
        return None
    only_embedding = set(counts) == {0}  # an unused token's embedding row may be zero
    return Finding(
        "dump.zero_rows",
        RISK if only_embedding else FAULT,
        quantity(sum(counts.values()), f"row of {dump} is", f"rows of {dump} are")
        + f" zeros only, at {_names(list(counts))}",
        "A buffer was stored before it was filled, as engines did for layers that their capture does not reach"
        " (hybrid Mamba blocks)."
        if not only_embedding
        else "Tokens without an embedding row: padding, or a special token that was never trained.",
        "Check that the engine captures on this architecture; dump again.",
        _evidence(dump, values, counts),
    )


def _repeated(dump: str, values: DumpValues) -> Finding | None:
    counts = _where(values, lambda state: state.repeated_rows)
    if not counts:
        return None
    return Finding(
        "dump.repeated_rows",
        FAULT,
        quantity(sum(counts.values()), f"row of {dump} repeats", f"rows of {dump} repeat")
        + f" another row of the same sample, at {_names(list(counts))}",
        "Two tokens in different contexts never have one state: rows were copied, or a buffer was not advanced.",
        "Dump again without padding or CUDA graphs, one request at a time, and compare.",
        _evidence(dump, values, counts),
    )


def _constant(dump: str, values: DumpValues) -> Finding | None:
    counts = _where(values, lambda state: len(state.constant_channels) if state.finite_rows >= FEW_ROWS else 0)
    counts = {b: n for b, n in counts.items() if values.states[b].largest > 0}  # of zeros only is said elsewhere
    if not counts:
        return None
    return Finding(
        "dump.constant_channels",
        RISK,
        f"Channels of {dump} never change: {max(counts.values())} at {_names(list(counts))}",
        "A model's channels all vary; these are padding of the width, or a slice that was never written.",
        "Compare the width with the target's hidden size, and check how the states were gathered from the ranks.",
        _evidence(dump, values, counts) | {"channels": values.states[next(iter(counts))].constant_channels[:LISTED]},
    )


def _deep(values: DumpValues) -> list[Boundary]:
    """The residual stream after at least one block, ascending, as far as there are values enough."""
    return sorted(b for b, s in values.states.items() if b not in (0, FINAL_NORMED) and s.finite_rows >= FEW_ROWS)


def _profile(dump: str, values: DumpValues) -> Finding | None:
    """Median norms against the boundaries beside them; the first and the last have none on one side."""
    deep = [b for b in _deep(values) if values.states[b].largest > 0]
    medians = {b: values.states[b].norm_quantile(0.5) for b in deep}
    factors = {}
    for below, boundary, above in zip(deep, deep[1:], deep[2:], strict=False):
        low, high = sorted((medians[below], medians[above]))
        own = medians[boundary]
        if own > high * OUT_OF_PROFILE or own < low / OUT_OF_PROFILE:
            factors[boundary] = own / (high if own > high else low)
    if not factors:
        return None
    boundary = max(factors, key=lambda b: max(factors[b], 1 / factors[b]))
    factor = factors[boundary]
    return Finding(
        "dump.norm_out_of_profile",
        RISK,
        f"Norms of {dump} at {boundary_name(boundary)} are {factor:.3g} times those of the boundary beside it",
        "Norms change little from block to block: the state was scaled or normed, or is of another boundary.",
        "Compare with norm(B(k)) and with the other boundaries; capture before every norm.",
        {
            "dump": dump,
            "boundaries": list(factors),
            "factors": list(factors.values()),
            "medians": [medians[b] for b in deep],
        },
    )


def _outliers(dump: str, values: DumpValues) -> Finding | None:
    deep = _deep(values)
    ratios = {b: float(values.states[b].channel_ratio.max()) for b in deep}
    if not ratios or max(ratios.values()) >= OUTLIER_RATIO:
        return None
    return Finding(
        "dump.no_outlier_channels",
        NOTE,
        f"No channel of {dump} stands out: the largest is {max(ratios.values()):.1f} times the median channel",
        f"Language models have channels of {OUTLIER_RATIO:.0f} times and more; a target rotated for quantisation"
        " (QuaRot, SpinQuant) has none. A draft trained on states that were not rotated fails on these.",
        "Ask whether the served target is rotated; if so, turn the states back or fold the rotation into fc.",
        {"dump": dump, "boundaries": deep, "largest_channel_ratios": list(ratios.values())},
    )
