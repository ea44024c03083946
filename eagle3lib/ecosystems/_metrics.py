"""What a system prints about acceptance: each system's own arithmetic, on the counts of one run.

The same run has many "acceptance lengths": with or without the bonus token, with or without the token of the
prefill, over rounds, requests or all starts, of joint counts or of a product of marginal rates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

Value = float | tuple[float, ...]


@dataclass(frozen=True)
class Run:
    """What a replayed run counted, each turn's last round included: servers do not leave it out.

    Attributes:
        steps: K, drafts of a round.
        accepted: of each response, the drafts that the verifier accepted round by round. A round in which the
            response ended counts those up to the end; beyond it a verifier may have accepted more.
        committed: of each response, the tokens of each round that stand in it.
        checked: of each response, how many drafts of each round were held against a token.
        prefix_hits: [K] starts whose drafts up to step k all equal the recorded tokens.
        hits: [K] starts whose draft of step k does, whatever came before.
        starts: [K] starts that have a recorded token at step k.
    """

    steps: int
    accepted: tuple[np.ndarray, ...]
    committed: tuple[np.ndarray, ...]
    checked: tuple[np.ndarray, ...]
    prefix_hits: np.ndarray
    hits: np.ndarray
    starts: np.ndarray

    @property
    def rounds(self) -> int:
        """Verifications of the target."""
        return sum(map(len, self.accepted))

    @property
    def all_accepted(self) -> np.ndarray:
        """[rounds] of all responses."""
        return np.concatenate([*self.accepted, np.zeros(0, dtype=int)])

    @property
    def all_committed(self) -> np.ndarray:
        """[rounds] of all responses."""
        return np.concatenate([*self.committed, np.zeros(0, dtype=int)])

    def mean_of_requests(self, of: Callable[[np.ndarray], float]) -> float:
        """Mean over responses of a number of each one's committed tokens by round."""
        values = [of(committed) for committed in self.committed if len(committed)]
        return share(sum(values), len(values))

    def accepted_at_least(self) -> np.ndarray:
        """[K] rounds whose first k + 1 drafts were all accepted."""
        return (self.all_accepted[:, None] > np.arange(self.steps)).sum(0)

    def reached(self) -> np.ndarray:
        """[K] rounds whose draft of step k was held against a token, all before it accepted."""
        checked = np.concatenate([*self.checked, np.zeros(0, dtype=int)])
        return (checked[:, None] > np.arange(self.steps)).sum(0)


@dataclass(frozen=True)
class Metric:
    """One number as a system prints it.

    Attributes:
        system: who prints it.
        name: as it prints it.
        definition: how it counts, in words.
        over: what it is an average over.
        bonus: whether the bonus token counts; None for rates.
        formula: the arithmetic, on the counts of a run.
    """

    system: str
    name: str
    definition: str
    over: Literal["rounds", "requests", "all starts"]
    bonus: bool | None
    formula: Callable[[Run], Value]


def share(numerator: float, denominator: float) -> float:
    """A quotient, NaN over nothing."""
    return float(numerator) / float(denominator) if denominator else float("nan")


def shares(numerators: np.ndarray, denominators: np.ndarray) -> tuple[float, ...]:
    """Quotients, item by item."""
    return tuple(map(share, numerators, denominators))


def tokens_a_round(run: Run) -> float:
    """Committed tokens over verifications, pooled over responses."""
    return share(run.all_committed.sum(), run.rounds)
