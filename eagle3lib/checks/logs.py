"""Stage `served`: what a server's own numbers show before any replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eagle3lib.bootstrap import chi_square
from eagle3lib.checks.served import finite
from eagle3lib.findings import Finding, Severity, quantity
from eagle3lib.served_reading import Served
from eagle3lib.serving import ServedLog

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK

#: Windows that make "on every line" more than chance, and the most that may be otherwise.
FEWEST = 8
#: Accepted drafts a round below which nothing is accepted, and from which on a load is healthy.
NOTHING, SOMETHING = 0.05, 0.3
#: Conditional rate from which survival is flat: healthy drafts lose a tenth to a half a step, loops 1 to 6 %.
FLAT = 0.94
#: Rounds a request below which the slots of first and last rounds, never drafted, weigh in a rate.
FEW_ROUNDS = 40
#: Parts that a log is cut into, and the change of the length between two that matters.
PARTS, DRIFT = 8, 0.1


def check_logs(logs: Sequence[ServedLog]) -> list[Finding]:
    """What each log's most telling reading shows."""
    return [finding for log in logs for finding in check_log(log)]


def check_log(log: ServedLog) -> list[Finding]:
    """Imposed or absent acceptance, a load that breaks it, rates that cannot be compared, drift; else what was read."""
    served = log.best
    found = [check(log, served) for check in (_acceptance, _load, _slots, _policy, _drift)]
    findings = [finding for finding in found if finding]
    if all(finding.severity is NOTE for finding in findings):
        findings.append(_read(log, served))
    return findings


def _acceptance(log: ServedLog, served: Served) -> Finding | None:
    """Nothing, everything, the same on every line, or flat near one."""
    tally, enough = served.tally, served.windows >= FEWEST or (served.rounds or 0) >= 50
    evidence = _evidence(log, served)
    if enough and tally.accepted == 0:
        return Finding(
            "served.accepts_nothing",
            FAULT,
            f"{log.path.name}: no draft was accepted, on any of {quantity(served.windows, 'line')}",
            "Even a wrongly wired draft guesses some tokens. Drafts that are all refused are not the draft's own: its"
            " weights or its token map were not loaded, positions are shifted, or it is served by a method that feeds"
            " it no states of several layers.",
            "Look at the method that the server was told, for weights that it reports as missing, and at its d2t and"
            " positions.",
            evidence,
        )
    if enough and served.steps is not None and tally.everything == served.windows:
        return Finding(
            "served.accepts_everything",
            RISK,
            f"{log.path.name}: every draft accepted on all {served.windows:,} lines, length {served.length.value:.2f}",
            "No draft is always right. Logits of NaN compare as accepted, an engine may be told to simulate acceptance,"
            " and looping text drafts itself.",
            "Read some responses; turn simulated acceptance off; look for NaN in the target's logits.",
            evidence,
        )
    if served.windows >= FEWEST and len(tally.lengths) == 1 and not tally.counted:
        return Finding(
            "served.accepts_the_same",
            RISK,
            f"{log.path.name}: all {served.windows:,} lines say exactly {served.length.value:.2f}",
            "Counts of some hundred rounds vary from line to line. A length that does not was imposed.",
            "Turn simulated acceptance off (SIMULATE_ACC_LEN and the like).",
            evidence,
        )
    last = served.survival[-1].value if served.survival else None
    if last is None and served.steps:
        # With S_1 .. S_(K-1) at most one, S_K is at least the accepted drafts a round less K - 1.
        last = served.length.value - served.steps
    steps = served.steps or len(served.survival)
    if enough and last is not None and steps >= 2 and last >= FLAT**steps:
        return Finding(
            "served.flat_near_one",
            RISK,
            f"{log.path.name}: {last:.0%} of rounds accept even the last position",
            "Rates that hardly fall near 1 are those of repeated text, or of imposed acceptance; they say nothing of"
            " the draft.",
            "Read the responses behind this log, and measure on text that does not loop.",
            evidence,
        )
    return None


def _load(log: ServedLog, served: Served) -> Finding | None:
    """Acceptance that is lost only where all slots run and others wait."""
    if not served.loads or not any(load.queued for load in served.loads):
        return None
    most = max(load.running for load in served.loads)
    busy, calm = [], []
    for load in served.loads:
        (busy if load.running == most and load.queued else calm).append(load)
    (n_busy, at_busy), (n_calm, at_calm) = _pooled(busy), _pooled(calm)
    if min(n_busy, n_calm) < 3 or at_busy > NOTHING or at_calm < SOMETHING:
        return None
    return Finding(
        "served.load_loses_acceptance",
        RISK,
        f"{log.path.name}: length {1 + at_busy:.2f} while {most} requests run and others wait, else {1 + at_calm:.2f}",
        "The same draft is accepted at other loads, so it is not the draft: the engine's state of it is wrong under"
        " load, for instance after aborted requests.",
        "Judge the draft by the lines at other loads, and report the engine's fault with these lines.",
        _evidence(log, served) | {"busy_length": 1 + at_busy, "busy_lines": n_busy, "calm_length": 1 + at_calm,
                                  "calm_lines": n_calm, "running": most},
    )  # fmt: skip


def _pooled(loads: Sequence) -> tuple[int, float]:
    """Windows, and the drafts accepted a round, lines weighing alike."""
    windows = sum(load.windows for load in loads)
    return windows, sum(load.windows * (load.length - 1) for load in loads) / windows if windows else 0.0


def _slots(log: ServedLog, served: Served) -> Finding | None:
    """A count of drafted tokens that is K times the rounds though requests are short."""
    if served.steps is None or served.drafted is None or served.rounds is None or served.shape.over != "requests":
        return None
    each = served.rounds / served.windows
    if served.steps < 2 or served.drafted != served.steps or each > FEW_ROUNDS:
        return None
    return Finding(
        "served.slots_counted_as_drafted",
        NOTE,
        f"{log.path.name}: drafted is exactly {served.steps} a round, though a request has {each:.0f} rounds",
        "Rounds near a response's end have fewer drafts, so the count holds slots that were never drafted, and accepted"
        " / drafted is too low.",
        "Compare accepted drafts a round, which this page does.",
        _evidence(log, served) | {"rounds_a_request": each},
    )


def _policy(log: ServedLog, served: Served) -> Finding | None:
    """Rounds with fewer drafts than K, or a K that changed."""
    evidence = _evidence(log, served)
    lengths = sorted(served.tally.nodes)
    if served.tally.counted and served.shape.over != "runs" and len(lengths) > 1:
        return Finding(
            "served.draft_length_changed",
            NOTE,
            f"{log.path.name}: the most drafts of a round changed between {lengths[0]} and {lengths[-1]}",
            "Lines of two settings, or an engine that adapts its draft length: the pooled length is of neither.",
            "Compare lines of one setting.",
            evidence | {"steps_seen": lengths},
        )
    if served.shortened is None:
        return None
    return Finding(
        "served.drafts_shortened",
        NOTE,
        f"{log.path.name}: {served.shortened:.2f} drafts a round of up to {served.steps}",
        "Rounds stop where the draft is unsure (a p_min, adaptive lengths). Accepted / drafted is high then and cannot"
        " be compared with full drafts, and later positions were not reached for lack of drafts.",
        "Compare accepted drafts a round, and replay with the same rule.",
        evidence,
    )


def _drift(log: ServedLog, served: Served) -> Finding | None:
    """Parts of the log whose lengths differ by more than their own lines do.

    Q = Σ_p (m_p - m)² / (v_p / n_p) over P parts, χ² with P - 1 degrees of freedom where nothing drifts.
    """
    kept = served.tally.kept
    if len(kept) < PARTS * FEWEST or served.shape.over == "runs":
        return None
    means, errors = _means_and_errors(np.array_split(np.array([(w.rounds, w.accepted) for w in kept]), PARTS))
    errors = np.maximum(errors, max(served.tally.half, 1e-6) / 3**0.5)
    middle = np.average(means, weights=errors**-2)
    statistic = float((((means - middle) / errors) ** 2).sum())
    if statistic <= chi_square(PARTS - 1, 0.999) or means.max() - means.min() < DRIFT:
        return None
    first, last = 1 + means[0], 1 + means[-1]
    return Finding(
        "served.drifts",
        NOTE,
        f"{log.path.name}: the length moves from {first:.2f} to {last:.2f} within the log, between"
        f" {1 + means.min():.2f} and {1 + means.max():.2f}",
        "Parts of the log differ beyond their own noise: other prompts, longer contexts, another load, or a server that"
        " was changed. One mean hides that.",
        "Split the log by what changed, and compare like with like.",
        _evidence(log, served) | {"parts": [float(1 + m) for m in means], "chi_square": statistic},
    )


def _means_and_errors(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Accepted drafts a round of each part, and its standard error as a ratio of sums, the spread of lines pooled."""
    means = np.array([accepted.sum() / rounds.sum() for rounds, accepted in (part.T for part in parts)])
    squares = sum(((part[:, 1] - mean * part[:, 0]) ** 2).sum() for part, mean in zip(parts, means, strict=True))
    spread = squares / sum(len(part) - 1 for part in parts)
    return means, np.array([(len(part) * spread) ** 0.5 / part[:, 0].sum() for part in parts])


def _read(log: ServedLog, served: Served) -> Finding:
    return Finding(
        "served.log_read",
        OK,
        f"{log.path.name}: {served.shape.system} accepted {served.length.value - 1:.2f} drafts a round, length"
        f" {served.length:.2f} with the bonus token",
        f"Its numbers count so: {served.shape.definition}. Interval: {served.interval}.",
        evidence=_evidence(log, served),
    )


def _evidence(log: ServedLog, served: Served) -> dict:
    """What every finding of a log names."""
    return {
        "file": log.path.name,
        "line": f"{served.shape.system} {served.shape.name}",
        "windows": served.windows,
        "rounds": served.rounds,
        "length": finite(served.length),
        "survival": [e.value for e in served.survival],
        "steps": served.steps,
        "drafted_a_round": served.drafted,
    }
