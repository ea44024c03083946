"""The server's walk: where rounds start, and how many tokens each yields.

A round that starts at pair t and keeps a drafts yields a + 1 tokens, so the next one starts at t + a + 1; each
turn of a conversation is a walk of its own. Where a rule accepts by chance, the rounds are not known one by
one but their expected number is: given the recorded path, step k of the round at t is accepted with chance
a_k(t), each an independent event, and the chance π(t) that a round starts at t follows from those before it:

    P(a drafts kept | t) = a_0 ... a_(a-1) (1 - a_a)         a < K,   and  a_0 ... a_(K-1)  for a = K
    π(first start of the turn) = 1,    π(t + a + 1) += π(t) P(a drafts kept | t)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eagle3lib.rollout import Rollout

MATCH = "match with the recorded token"


@dataclass(frozen=True)
class Chances:
    """Of each start of a sample, the chance that step k's draft is accepted where all before it were.

    A tree's starts come as a chain's: step k stands for depth k + 1 of the recorded path (see `counted`).

    Attributes:
        chance: [n, K] booleans where the recorded path settles it, else float64; 0 where not valid.
        valid: [n, K] whether the recorded token lies in the start's turn.
        rule: how drafts are accepted, in words.
        exact_steps: up to which step `chance` is the served one over all starts; None: every step, and along
            the walk too.
    """

    sample: str
    starts: Int[Tensor, " n"]
    turns: Int[Tensor, " n"]
    chance: Bool[Tensor, "n K"] | Float[Tensor, "n K"]
    valid: Bool[Tensor, "n K"]
    rule: str = MATCH
    exact_steps: int | None = None

    @property
    def settled(self) -> bool:
        """Whether the recorded path alone says which drafts are accepted."""
        return self.chance.dtype == torch.bool

    def limited(self, steps: int) -> Chances:
        """The same for drafts of `steps` tokens.

        Raises:
            ValueError: if there are fewer steps.
        """
        if self.chance.shape[1] < steps:
            raise ValueError(f"the rollout of {self.sample} has {self.chance.shape[1]} steps, {steps} were asked for")
        return Chances(
            self.sample, self.starts, self.turns, self.chance[:, :steps], self.valid[:, :steps],
            self.rule, self.exact_steps,
        )  # fmt: skip


def chances(rollout: Rollout | Chances, rule: str = MATCH) -> Chances:
    """A draft token is accepted exactly where it equals the recorded one."""
    if isinstance(rollout, Chances):
        return rollout
    return Chances(rollout.sample, rollout.starts, rollout.turns, rollout.hit, rollout.valid, rule)


def counted(
    sample: str,
    starts: Int[Tensor, " n"],
    turns: Int[Tensor, " n"],
    accepted: Int[Tensor, " n"],
    valid: Bool[Tensor, "n K"],
    rule: str = MATCH,
) -> Chances:
    """Starts of which only the number of accepted drafts is known, as of a tree of depth K."""
    chance = (torch.arange(valid.shape[1]) < accepted[:, None]) & valid
    return Chances(sample, starts, turns, chance, valid, rule)


@dataclass(frozen=True)
class Round:
    """One round of the walk: it started at pair `start`, and the verifier accepted `accepted` drafts.

    Attributes:
        last: a turn's last round.
        cut: the turn ended before a draft was rejected or K was reached: of the drafts beyond its end the
            verifier may have accepted more, which no recording shows.
        committed: tokens that stand in the response: `length`, or those left in the turn if fewer.
    """

    start: int
    turn: int
    accepted: int
    last: bool
    cut: bool
    committed: int

    @property
    def length(self) -> int:
        """Tokens that the round yields: accepted drafts and the bonus token."""
        return self.accepted + 1


def walk(rollout: Rollout | Chances, steps: int) -> list[Round]:
    """The server's rounds, one by one, for drafts of length `steps`.

    Raises:
        ValueError: if the rollout has fewer steps, or its rule accepts by chance.
    """
    found = chances(rollout).limited(steps)
    if not found.settled:
        raise ValueError(f"{found.rule} accepts by chance: its rounds are known by their expected number only")
    return walk_lengths(found.starts, found.turns, accepted_drafts(found), found.valid.sum(1).numpy(), steps)


def walk_lengths(
    starts: Int[Tensor, " n"],
    turns: Int[Tensor, " n"],
    accepted: Sequence[int] | np.ndarray,
    possible: Sequence[int] | np.ndarray,
    steps: int,
) -> list[Round]:
    """The walk from accepted drafts alone, of a chain or of a tree.

    Args:
        starts: pairs in order; those of one turn are consecutive.
        accepted: drafts of the round at each start that the recorded path confirms.
        possible: recorded tokens that are left in the turn for them, at most `steps`.
        steps: the longest path of a draft.
    """
    pairs, turn_of, rounds, row = starts.tolist(), turns.tolist(), [], 0
    ends = turn_ends(turn_of)
    while row < len(pairs):
        kept, end = int(accepted[row]), ends[row]
        # Starts of one turn are consecutive pairs, so a step of L pairs is a step of L rows.
        following = row + kept + 1
        last = following >= end
        left = end - 1 - row + int(possible[end - 1])  # tokens of the turn that are still to come
        cut = kept == int(possible[row]) < steps
        rounds.append(Round(pairs[row], turn_of[row], kept, last, cut, min(kept + 1, left)))
        row = end if last else following
    return rounds


@dataclass(frozen=True)
class ExpectedRounds:
    """The walk in numbers.

    Attributes:
        starting: [n] π, the chance that a round starts at each start; 0 or 1 where the path settles it.
        histogram: [2, K + 1] rounds by accepted drafts: all but the last of each turn, and the last ones.
    """

    starting: np.ndarray
    histogram: np.ndarray


def expected_rounds(found: Chances, steps: int) -> ExpectedRounds:
    """π of every start, and the expected number of rounds that keep 0 .. K drafts.

    Raises:
        ValueError: if there are fewer steps.
    """
    found = found.limited(steps)
    chance = found.chance.double().numpy()
    reached = np.concatenate([np.ones((len(chance), 1)), chance.cumprod(1)], axis=1)  # [n, K + 1]
    kept = reached - np.concatenate([reached[:, 1:], np.zeros((len(chance), 1))], axis=1)  # P(a drafts kept)
    starting, histogram = np.zeros(len(chance)), np.zeros((2, steps + 1))
    ends, row = turn_ends(found.turns.tolist()), 0
    while row < len(chance):
        end = ends[row]
        starting[row] = 1
        for t in range(row, end):
            if starting[t]:
                rounds = starting[t] * kept[t]
                inner = min(steps + 1, end - t - 1)  # rounds of as many tokens leave a start behind them
                starting[t + 1 : t + 1 + inner] += rounds[:inner]
                histogram[0, :inner] += rounds[:inner]
                histogram[1, inner:] += rounds[inner:]
        row = end
    return ExpectedRounds(starting, histogram)


def accepted_drafts(found: Chances) -> np.ndarray:
    """[n] leading accepted drafts of each start; their expected number where chance decides."""
    return found.chance.to(torch.int64 if found.settled else torch.float64).cumprod(1).sum(1).numpy()


def turn_ends(turns: Sequence[int]) -> list[int]:
    """Of each row, the first row of the next turn."""
    ends, end = [0] * len(turns), len(turns)
    for row in range(len(turns) - 1, -1, -1):
        if row + 1 < len(turns) and turns[row + 1] != turns[row]:
            end = row + 1
        ends[row] = end
    return ends
