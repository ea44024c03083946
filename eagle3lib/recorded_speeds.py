"""How fast a real engine served a draft at several lengths, recorded: a small JSON file, a time a request.

passes of the target = tokens - 1 - accepted drafts       the prefill gives a response's first token
ms a pass            = seconds / passes,   of it drafting = draft seconds / passes
AL                   = 1 + accepted drafts / passes
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.errors import InputError
from eagle3lib.tensors import read_json


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TimedRequest(_Record):
    """One response.

    Attributes:
        sample: the dumped sample whose prompt was asked, as `dump/file`.
        turn: which of the repetitions.
        seconds: of generating, the prefill left out; `draft_seconds` of them went to drafting.
    """

    sample: str
    turn: int = Field(ge=0)
    tokens: int = Field(ge=2)
    seconds: float = Field(gt=0, allow_inf_nan=False)
    draft_seconds: float = Field(ge=0, allow_inf_nan=False)
    rounds: int = Field(ge=0)
    drafted: int = Field(ge=0)
    accepted: int = Field(ge=0)

    @property
    def passes(self) -> int:
        """Of the target."""
        return self.tokens - 1 - self.accepted

    @model_validator(mode="after")
    def _adds_up(self) -> TimedRequest:
        if self.passes < 1 or self.accepted > self.drafted or self.draft_seconds > self.seconds:
            raise ValueError(
                f"{self.sample}: expected fewer accepted drafts than tokens, no more than were drafted, and drafting"
                f" within its {self.seconds} s, found {self.accepted} of {self.drafted} accepted for {self.tokens}"
                f" tokens and {self.draft_seconds} s of drafting"
            )
        return self


class TimedLength(_Record):
    """All requests at one draft length K, a chain; 0 is the target alone."""

    steps: int = Field(ge=0)
    requests: tuple[TimedRequest, ...] = Field(min_length=1)

    @property
    def tokens_per_second(self) -> float:
        """As the engine prints it, first tokens included."""
        return sum(r.tokens for r in self.requests) / sum(r.seconds for r in self.requests)

    @property
    def pass_ms(self) -> Estimate:
        """Milliseconds a pass; the interval by bootstrap over requests."""
        return self._a_pass(lambda r: r.seconds * 1e3)

    @property
    def draft_ms(self) -> Estimate:
        """Of these, drafting."""
        return self._a_pass(lambda r: r.draft_seconds * 1e3)

    @property
    def acceptance_length(self) -> Estimate:
        """Over every pass, last ones included."""
        return self._a_pass(lambda r: r.passes + r.accepted)

    def _a_pass(self, of: Callable[[TimedRequest], float]) -> Estimate:
        sums = np.array([(of(r), r.passes) for r in self.requests])
        return estimate(sums, ratio(0, 1), int(sums[:, 1].sum()))


class RecordedSpeeds(_Record):
    """All draft lengths of one session with an engine.

    Attributes:
        flags: what it was started with.
        new_tokens: the limit of a response.
    """

    engine: str
    version: str
    date: str
    device: str
    target: str
    flags: tuple[str, ...]
    new_tokens: int = Field(ge=1)
    points: tuple[TimedLength, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _lengths_differ(self) -> RecordedSpeeds:
        lengths = [point.steps for point in self.points]
        if len(set(lengths)) != len(lengths):
            raise ValueError(f"expected each draft length once, found {lengths}")
        return self


def read_recorded_speeds(path: Path) -> RecordedSpeeds:
    """Read and check a recording of speeds.

    Raises:
        InputError: if the file is missing, is not JSON, or is no such recording.
    """
    try:
        return RecordedSpeeds.model_validate(read_json(path))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the recording"
        raise InputError(f"{path} is no recording of speeds: {where}: {problem['msg']}.") from None
