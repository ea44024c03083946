"""The wiring bench: what any wiring and any flags of the pass are worth, at once on few tokens and then on all.

The quick answer is on the first response tokens of a few samples, the same for every state; the refined one on every
sample. Both are of the draft's step 0 against the recorded tokens (cross-entropy, accuracy) and of its acceptance
length along the walk: chain, greedy, bonus included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from eagle3lib.acceptance import acceptance
from eagle3lib.bootstrap import Estimate
from eagle3lib.boundaries import Boundary, Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.rollout import Rollout
from eagle3lib.sample import Sample
from eagle3lib.scores import Score, columns
from eagle3lib.until_miss import rollout_until_miss

#: The quick answer's positions, about so many, and of how many samples at most.
QUICK_TOKENS, QUICK_SAMPLES = 400, 8


@dataclass(frozen=True)
class Answer:
    """What one state of the bench is worth on `tokens` positions; `excess` is cross-entropy above the best's."""

    wiring: Wiring
    tokens: int
    accuracy: Estimate
    cross_entropy: Estimate
    excess: Estimate
    length: Estimate


class Bench:
    """One draft on fixed samples, and the wiring that is shown beside every other.

    Attributes:
        slots: the boundaries that each slot may be fed.
        flags: the values that each flag may take with the weights that the draft holds, the config's own first.
    """

    def __init__(
        self, draft: Draft, samples: Sequence[Sample], boundaries: Sequence[Boundary], best: Wiring, steps: int
    ) -> None:
        self.draft, self.best, self.steps = draft, best, steps
        self.slots = [tuple(boundaries)] * draft.config.n_slots
        self.flags = allowed_flags(draft)
        self._samples = list(samples)
        self._few = first_tokens(self._samples, QUICK_TOKENS, QUICK_SAMPLES)
        self._quick: dict[Wiring, list[Rollout]] = {}
        self._whole: dict[tuple[Wiring, int], Rollout | None] = {}

    def quick(self, wiring: Wiring) -> Answer:
        """The answer on the few tokens.

        Raises:
            InputError: as `fusion.fuse`.
        """
        for one in (self.best, wiring):
            if one not in self._quick:
                self._quick[one] = rollout_until_miss(self.draft, self._few, one, self.steps)
        return _answer(wiring, self._quick[wiring], self._quick[self.best], self.steps)

    def refine(self, wiring: Wiring, stopped: Callable[[], bool] = lambda: False) -> Iterator[Answer]:
        """Answers on more and more samples, each further one at a time, the last on all; ends early once `stopped`."""
        mine, best = [], []
        for i in range(len(self._samples)):
            if stopped():
                return
            found = self._of(wiring, i), self._of(self.best, i)
            if found[0] is not None:
                mine.append(found[0])
                best.append(found[1])
                yield _answer(wiring, mine, best, self.steps)

    def refined(self, wiring: Wiring) -> Answer:
        """The answer on every sample."""
        return list(self.refine(wiring))[-1]

    def table(self, wirings: Mapping[str, Wiring], refined: bool = False) -> pd.DataFrame:
        """One row a wiring under its name, for a figure or a page."""
        answer = self.refined if refined else self.quick
        return answers_table({name: answer(wiring) for name, wiring in wirings.items()})

    def _of(self, wiring: Wiring, i: int) -> Rollout | None:
        if (wiring, i) not in self._whole:
            (found,) = rollout_until_miss(self.draft, [self._samples[i]], wiring, self.steps)
            self._whole[wiring, i] = found if len(found.starts) else None
        return self._whole[wiring, i]


def allowed_flags(draft: Draft) -> dict[str, tuple]:
    """The flags of a wiring that a draft's weights allow, each with its values, the config's own first."""
    config, held = draft.config, len(draft.weights.input_norms)
    norms = ["none"] + ["concat"] * (held == 1) + ["slots"] * (held > 0 and held == config.n_slots)
    values = {
        "input_norm": norms,
        "norm_before_residual": [False, True],
        "norm_output": [False, True],
        "norm_head": [True, False],
        "position_offset": [0, 1],
    }
    own = {name: getattr(config, name) for name in values}
    return {name: (own[name], *(v for v in others if v != own[name])) for name, others in values.items()}


def state(draft: Draft, slots: Sequence[Boundary], flags: Mapping[str, object]) -> Wiring:
    """A wiring with the flags that differ from the draft's own config, which need no saying otherwise."""
    return Wiring(tuple(slots), **{name: v for name, v in flags.items() if v != getattr(draft.config, name)})


def first_tokens(samples: Sequence[Sample], tokens: int, most: int) -> list[Sample]:
    """The first starts of the first samples, about so many in all, each sample cut behind the last one's token."""
    with_starts = [sample for sample in samples if any(len(turn.starts) for turn in sample.turns)][:most]
    few = -(-tokens // max(len(with_starts), 1))
    cut = []
    for sample in with_starts:
        starts = sample.starts[:few]
        if starts:
            end = starts[-1] + 3  # x[t + 2] is the last that is predicted
            states = {boundary: state[:end] for boundary, state in sample.states.items()}
            part = replace(sample, token_ids=sample.token_ids[:end], loss_mask=sample.loss_mask[:end], states=states)
            cut.append(replace(part, logprobs=None, teacher=None))
    return cut


def answers_table(answers: Mapping[str, Answer]) -> pd.DataFrame:
    """One row an answer: values and the ends of their intervals."""
    rows = []
    for name, answer in answers.items():
        row = {"name": name, "wiring": str(answer.wiring), "tokens": answer.tokens}
        for column in ("accuracy", "cross_entropy", "excess", "length"):
            estimate = getattr(answer, column)
            row |= {column: estimate.value, f"{column}_low": estimate.low, f"{column}_high": estimate.high}
        rows.append(row)
    return pd.DataFrame(rows)


def _answer(wiring: Wiring, mine: Sequence[Rollout], best: Sequence[Rollout], steps: int) -> Answer:
    score, other = _score(wiring, mine), _score(wiring, best)
    length = acceptance(mine, steps).walk.length
    tokens = int(score.sums[:, 3].sum())
    return Answer(wiring, tokens, score.accuracy, score.cross_entropy, score.excess(other), length)


def _score(wiring: Wiring, rollouts: Sequence[Rollout]) -> Score:
    """Step 0's sums, as a `Scorer` has them."""
    sums = [columns(found.logprob[:, 0], found.hit[:, 0]).sum(0).numpy() for found in rollouts]
    return Score(wiring.slots, np.stack(sums))
