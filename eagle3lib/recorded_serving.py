"""What a real engine accepted round by round, recorded beside the replay of the same tokens.

A recording is a small JSON file: for each run (wiring, K, temperature) and each request, how many drafts the
engine accepted in every round, and how many the replay of the engine's own tokens accepts. Rates are made from
the rounds with the last of each response apart, as along any walk: S_k is the share of rounds that accepted at
least k drafts, and AL = 1 + S_1 + ... + S_K is the mean round length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eagle3lib.bootstrap import Estimate, estimate, ratio, share_back
from eagle3lib.boundaries import Boundary
from eagle3lib.errors import InputError
from eagle3lib.tensors import read_json

Accepted = Annotated[int, Field(ge=0)]
TokenId = Annotated[int, Field(ge=0)]
#: A draft as trained, with `fc`'s columns moved to where their boundaries are served, or with them fitted to those.
Mended = Literal["trained", "rewired", "refitted"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Request(_Record):
    """One response. Rounds are given by the drafts that each accepted, in order.

    Attributes:
        sample: the dumped sample whose prompt was asked, as `dump/file`.
        seed: of the engine's sampler.
        as_recorded: how many tokens, from the first on, the engine generated as the dump has them.
        beyond: the engine's tokens after those.
        engine, replay: every round but the last.
        engine_last, replay_last: the last round; None where there was none with a draft, for one token was left.
    """

    sample: str
    seed: int
    as_recorded: int = Field(ge=0)
    beyond: tuple[TokenId, ...]
    engine: tuple[Accepted, ...]
    engine_last: Accepted | None
    replay: tuple[Accepted, ...]
    replay_last: Accepted | None


class Counters(_Record):
    """The engine's own totals over a run, last rounds included."""

    rounds: int
    drafted: int
    accepted: int
    accepted_by_position: tuple[int, ...]


class ServedRun(_Record):
    """One draft served at one K and temperature.

    Attributes:
        draft: as trained, or mended for the boundaries that the engine captures.
        captured: the boundaries that the engine fed to `fc`, slot by slot.
    """

    name: str
    draft: Mended
    captured: tuple[int, ...]
    steps: int = Field(ge=1, le=64)
    temperature: float = Field(ge=0)
    counters: Counters
    requests: tuple[Request, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _within_steps(self) -> ServedRun:
        for request in self.requests:
            for accepted in (*request.engine, *request.replay):
                if accepted > self.steps:
                    raise ValueError(f"{request.sample} has a round of {accepted} drafts in a run of {self.steps}")
        return self


class RecordedServing(_Record):
    """A recording: what served, when, from which versions, and the runs.

    Attributes:
        version: what the engine says of itself.
        command: what made the recording.
        source: the package that its source came from.
        target: which weights, in which numbers.
        flags, request: what the engine was started with, and what every request asked.
        new_tokens: the limit of a response.
        replay: versions of what replayed the tokens.
    """

    engine: str
    version: str
    source: str
    command: str
    date: str
    target: str
    flags: tuple[str, ...]
    request: dict[str, bool | int | float | list[str]]
    new_tokens: int
    replay: dict[str, str]
    runs: tuple[ServedRun, ...] = Field(min_length=1)

    def run(self, name: str) -> ServedRun:
        """The run of that name.

        Raises:
            InputError: if there is none.
        """
        for run in self.runs:
            if run.name == name:
                return run
        names = ", ".join(run.name for run in self.runs)
        raise InputError(f"The recording has no run {name!r}; it has {names}.")


@dataclass(frozen=True)
class Measured:
    """Rates of one side: S_1..S_K, the mean round length, and rounds by accepted drafts; last rounds left out."""

    survival: tuple[Estimate, ...]
    length: Estimate
    histogram: tuple[int, ...]


def read_recorded_serving(path: Path) -> RecordedServing:
    """Read and check a recording.

    Raises:
        InputError: if the file is missing, is not JSON, or is no recording.
    """
    try:
        return RecordedServing.model_validate(read_json(path))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise InputError(f"{path} is no recording of served rounds: {where}: {problem['msg']}.") from None


def measured(requests: Sequence[Request], steps: int, side: Literal["engine", "replay"]) -> Measured:
    """Rates along the rounds of the engine, or of the replay of its tokens; intervals by bootstrap over requests."""
    histograms = np.stack([np.bincount(getattr(r, side), minlength=steps + 1) for r in requests])  # [n, K + 1]
    # Column k holds the rounds that accepted at least k drafts; column 0 is every round.
    reached = histograms[:, ::-1].cumsum(1)[:, ::-1]
    rounds = int(reached[:, 0].sum())

    def length(sums: np.ndarray) -> np.ndarray:
        return 1 + sum(ratio(k, 0)(sums) for k in range(1, steps + 1))

    return Measured(
        survival=tuple(estimate(reached, ratio(k, 0), rounds) for k in range(1, steps + 1)),
        length=estimate(reached, length, rounds),
        histogram=tuple(histograms.sum(0).tolist()),
    )


def differing_rounds(requests: Sequence[Request]) -> int:
    """Rounds in which engine and replay accepted another number of drafts, last rounds left out."""
    return sum(
        sum(a != b for a, b in zip(r.engine, r.replay, strict=False)) + abs(len(r.engine) - len(r.replay))
        for r in requests
    )


def run_rows(recording: RecordedServing) -> list[dict]:
    """One row a run: the engine's acceptance length with its interval, the replay's, and where they differ most."""
    rows = []
    for run in recording.runs:
        engine, replay = (measured(run.requests, run.steps, side) for side in ("engine", "replay"))
        apart = [abs(a.value - b.value) for a, b in zip(engine.survival, replay.survival, strict=True)]
        rows.append(
            {
                "run": run.name,
                "draft": run.draft,
                "fed": str(list(run.captured)),
                "K": run.steps,
                "temperature": run.temperature,
                "engine AL": engine.length.value,
                "low": engine.length.low,
                "high": engine.length.high,
                "replay AL": replay.length.value,
                "largest gap of S_k": max(apart),
                "rounds": engine.length.count,
                "rounds that differ": differing_rounds(run.requests),
            }
        )
    return rows


def recovered_rows(recording: RecordedServing, trained: Sequence[Boundary]) -> list[dict]:
    """What mended drafts bring back by the engine's own rounds: one row for each.

    A mended draft is held against the draft as trained, fed the same boundaries (broken) and the trained ones (true),
    at the same K and temperature, on the prompts that all three answered; without such runs it is left out.
    """
    rows = []
    for mended in recording.runs:
        plain = [r for r in recording.runs if r.draft == "trained" and _alike(r, mended)]
        true = next((r for r in plain if r.captured == tuple(trained)), None)
        broken = next((r for r in plain if r.captured == mended.captured), None)
        if mended.draft == "trained" or true is None or broken is None:
            continue
        runs = {"true": true, "broken": broken, "mended": mended}
        by_sample = {name: {r.sample: r for r in run.requests} for name, run in runs.items()}
        both = [s for s in by_sample["mended"] if s in by_sample["true"] and s in by_sample["broken"]]
        if not both:
            continue
        requests = {name: [found[s] for s in both] for name, found in by_sample.items()}
        sums = np.concatenate([_tokens_rounds(own) for own in requests.values()], axis=1)  # [n, 6]
        back = estimate(sums, share_back, int(sums[:, 5].sum()))
        lengths = {f"{name} AL": measured(own, mended.steps, "engine").length.value for name, own in requests.items()}
        rows.append(
            {"draft": mended.draft, "fed": str(list(mended.captured)), "K": mended.steps, "prompts": len(both)}
            | lengths
            | {"came back": back.value, "low": back.low, "high": back.high}
        )
    return rows


def _alike(one: ServedRun, other: ServedRun) -> bool:
    return (one.steps, one.temperature) == (other.steps, other.temperature)


def _tokens_rounds(requests: Sequence[Request]) -> np.ndarray:
    """[n, 2] tokens that the engine's rounds yielded, and the rounds, last ones left out."""
    return np.array([(sum(r.engine) + len(r.engine), len(r.engine)) for r in requests], dtype=float).reshape(-1, 2)


def repeat_difference(first: ServedRun, second: ServedRun) -> tuple[int, int, int]:
    """How far the engine repeats itself: responses whose tokens differ, responses whose rounds differ, and how many
    both runs answered."""
    again = {request.sample: request for request in second.requests}
    pairs = [(request, again[request.sample]) for request in first.requests if request.sample in again]
    tokens = sum((a.as_recorded, a.beyond) != (b.as_recorded, b.beyond) for a, b in pairs)
    rounds = sum((a.engine, a.engine_last) != (b.engine, b.engine_last) for a, b in pairs)
    return tokens, rounds, len(pairs)
