"""What a check concluded: findings, their severities, and the order in which a verdict reads them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding explains. Declared from the strongest to the weakest."""

    FAULT = "fault"  # explains the gap between training and serving
    RISK = "risk"  # would explain a gap, but the evidence does not show that it does here
    NOTE = "note"  # worth knowing, among them what a check could not tell
    OK = "ok"  # checked and found right


#: Stages of the verdict, in the order in which they are believed: a fault in an early stage makes the
#: later ones meaningless. A finding's code starts with its stage: "wiring.served_differs".
STAGES = ("dump", "checkpoint", "training", "wiring", "recurrence", "served", "cost")

Evidence = dict[str, str | int | float | bool | list | None]


@dataclass(frozen=True)
class Finding:
    """One conclusion, with its numbers.

    `evidence` holds numbers (with intervals, as `[low, high]`) and identifiers, never adjectives.
    """

    code: str
    severity: Severity
    title: str
    meaning: str
    remedy: str = ""
    evidence: Evidence = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ValueError(f"finding code {self.code!r} does not start with one of {STAGES}")

    @property
    def stage(self) -> str:
        """The stage of the verdict that this finding belongs to."""
        return self.code.split(".", 1)[0]

    def to_json(self) -> dict:
        """A plain dictionary for a results file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> Finding:
        """The inverse of `to_json`."""
        return cls(**{**data, "severity": Severity(data["severity"])})


def quantity(n: int, one: str, many: str | None = None) -> str:
    """A number and its words, as in "1 sample holds", "12 samples hold"; `many` is `one` with an s unless given."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def verdict_order(findings: list[Finding]) -> list[Finding]:
    """Findings by stage, and within a stage by severity, otherwise in the order given."""
    severities = list(Severity)
    return sorted(findings, key=lambda f: (STAGES.index(f.stage), severities.index(f.severity)))
