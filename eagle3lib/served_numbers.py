"""The numbers of a server that a case holds, each as one record: of logs, of a printed length, of recorded rounds.

Whose counts hold each turn's last round is part of the record, for a replay is then counted the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from eagle3lib.acceptance import Rates
from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.recorded_serving import RecordedServing, ServedRun, measured
from eagle3lib.served_rates import ServedRates
from eagle3lib.served_reading import Served
from eagle3lib.serving import ServedLog


@dataclass(frozen=True)
class RequestCount:
    """One request: its verifications and the drafts that they accepted."""

    rounds: float
    accepted: float

    @property
    def tokens(self) -> float:
        """Tokens of the response, but for the prefill's one."""
        return self.rounds + self.accepted


@dataclass(frozen=True)
class Numbers:
    """What a server showed.

    Attributes:
        label: where it stands, for tables and titles.
        system: whose arithmetic it is; "" for a number without one.
        length: tokens a round, bonus included; with infinite bounds where nothing was counted.
        survival: S_k with intervals; () where nothing was counted by position.
        rates: the same for distances; its rounds are those that the spread of requests or windows leaves.
        steps: drafts that a round can have at most, as the numbers show it; None where they do not.
        last_rounds: whether each response's last round is counted.
        shortened: mean drafts a round, where an engine drafts fewer than `steps` on purpose.
        requests: one by one, where the file tells them so.
    """

    label: str
    system: str
    length: Estimate
    survival: tuple[Estimate, ...] = ()
    rates: ServedRates | None = None
    steps: int | None = None
    last_rounds: bool = True
    shortened: float | None = None
    requests: tuple[RequestCount, ...] = ()

    @property
    def counted(self) -> bool:
        """Whether the length has an interval of its own."""
        return self.length.has_interval

    def of_depth(self, levels: int) -> Numbers | None:
        """The same by so many positions, or None where drafts beyond them were accepted.

        A list ends where nothing was accepted any more, or goes on with zeros up to the nodes of a tree.
        """
        if self.rates is None or len(self.rates.survival) == levels:
            return self
        if any(self.rates.survival[levels:]):
            return None
        missing = levels - len(self.rates.survival)
        none = Estimate(0.0, 0.0, 0.0, self.rates.rounds)
        survival = (*self.rates.survival, *[0.0] * missing)[:levels]
        rates = ServedRates(survival, self.rates.rounds)
        return replace(self, survival=(*self.survival, *[none] * missing)[:levels], rates=rates)


def of_log(log: ServedLog) -> Numbers:
    """The reading of a log that counts most."""
    served = log.best
    by_request = served.shape.over == "requests" and served.tally.counted
    return Numbers(
        f"{log.path.name}, {served.shape.system} {served.shape.name}",
        served.shape.system,
        served.length,
        served.survival,
        _independent(served),
        served.steps or len(served.survival) or None,
        shortened=served.shortened,
        requests=tuple(RequestCount(w.rounds, w.accepted) for w in served.tally.kept) if by_request else (),
    )


def of_length(length: float, system: str) -> Numbers:
    """A printed acceptance length, bonus included, of which nothing else is known."""
    return Numbers("served.acceptance_length", system, Estimate(length, -np.inf, np.inf, 0))


def of_runs(recording: RecordedServing) -> list[tuple[Numbers, ServedRun]]:
    """The greedy runs of a recording, each response's last round left out as along any walk."""
    return [(_of_run(run, recording.engine), run) for run in recording.runs if run.temperature == 0]


def _of_run(run: ServedRun, engine: str) -> Numbers:
    found = measured(run.requests, run.steps, "engine")
    survival = tuple(e.value for e in found.survival)
    rounds = found.length.count
    rates = ServedRates(survival, independent_rounds(survival, rounds, found.length)) if rounds else None
    requests = tuple(RequestCount(len(r.engine), sum(r.engine)) for r in run.requests if r.engine)
    return Numbers(
        f"recorded {run.name}", engine, found.length, found.survival, rates, run.steps, False, None, requests
    )


def replay_of_run(run: ServedRun) -> Rates:
    """The rates of the replay of the engine's own tokens, last rounds left out."""
    found = measured(run.requests, run.steps, "replay")
    histograms = np.stack([np.bincount(r.replay, minlength=run.steps + 1) for r in run.requests])  # [n, K + 1]
    reached = histograms[:, ::-1].cumsum(1)[:, ::-1]
    conditional = (estimate(reached, ratio(k, k - 1), int(reached[:, k - 1].sum())) for k in range(1, run.steps + 1))
    return Rates(found.survival, tuple(conditional), found.length)


def _independent(served: Served) -> ServedRates | None:
    if served.rates is None:
        return None
    survival = served.rates.survival
    return ServedRates(survival, independent_rounds(survival, served.rates.rounds, served.length))


def independent_rounds(survival: Sequence[float], rounds: int, length: Estimate) -> int:
    """How many independent rounds would know the length as well as these do.

    Rounds of one response are alike. With a = drafts accepted a round, Var(a) = Σ_k (2k - 1) S_k - (Σ_k S_k)², and
    n independent rounds leave the mean a variance of Var(a) / n. (Kish 1965, the design effect)
    """
    mean = sum(survival)
    variance = sum((2 * k - 1) * s for k, s in enumerate(survival, 1)) - mean**2
    if not length.has_interval or length.error <= 0 or variance <= 0:
        return rounds
    return max(1, min(rounds, round(variance / length.error**2)))
