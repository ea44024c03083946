"""What a repair is fitted, chosen and judged on: recorded prompts, in sets that share none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.errors import InputError
from eagle3lib.rollout import Rollout
from eagle3lib.sample import Sample
from eagle3lib.until_miss import rollout_until_miss


@dataclass(frozen=True)
class Material:
    """Prompts with their answers, by the stack that serves and by the one that trained.

    Where one stack made both, they are the same samples. A served target that differs from the training one, such
    as a rotated or quantised copy, has states of its own for the same tokens.
    """

    served: tuple[Sample, ...]
    trained: tuple[Sample, ...]

    def __post_init__(self) -> None:
        if len(self.served) != len(self.trained):
            raise InputError(
                f"The served stack's dump has {len(self.served)} samples, the training one's {len(self.trained)};"
                " both must hold the same ones in the same order."
            )
        for served, trained in zip(self.served, self.trained, strict=True):
            if not torch.equal(served.token_ids, trained.token_ids):
                raise InputError(f"{served.name} and {trained.name} hold other tokens; the two stacks must agree.")

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Material:
        """Samples whose states are those of training and of serving."""
        return cls(tuple(samples), tuple(samples))

    @property
    def tokens(self) -> int:
        """Pairs of all samples: rows for a fit."""
        return sum(sample.n_pairs for sample in self.served)

    def chosen(self, indices: Sequence[int]) -> Material:
        """Some of the prompts."""
        return Material(tuple(self.served[i] for i in indices), tuple(self.trained[i] for i in indices))

    def up_to(self, tokens: int) -> Material:
        """The first prompts, until they hold at least so many pairs."""
        reached, indices = 0, []
        for i, sample in enumerate(self.served):
            if reached >= tokens:
                break
            indices.append(i)
            reached += sample.n_pairs
        return self.chosen(indices)

    def parts(self, shares: Sequence[float], seed: int = 0) -> list[Material]:
        """The prompts in a fixed shuffle, dealt by share: no prompt is in two parts, and no part is empty.

        Raises:
            InputError: if there are fewer prompts than parts.
        """
        n = len(self.served)
        if n < len(shares):
            raise InputError(f"Expected at least {len(shares)} prompts to fit, choose and judge on, found {n}.")
        order = random.Random(seed).sample(range(n), n)
        counts = [max(1, int(share / sum(shares) * n)) for share in shares]
        counts[counts.index(max(counts))] += n - sum(counts)
        begins = [sum(counts[:i]) for i in range(len(counts))]
        return [self.chosen(order[b : b + count]) for b, count in zip(begins, counts, strict=True)]

    def rollouts(self, draft: Draft, served: Wiring, steps: int) -> list[Rollout]:
        """The draft as it is served, each chain up to its first miss."""
        return rollout_until_miss(draft, self.served, served, steps)

    def true_rollouts(self, draft: Draft, trained: Wiring, steps: int) -> list[Rollout]:
        """The draft as it was trained, likewise."""
        return rollout_until_miss(draft, self.trained, trained, steps)

    def nats(self, draft: Draft, served: Wiring) -> float:
        """Cross-entropy of the recorded tokens at step 0 of all starts, tokens outside the draft's vocabulary left out:
        what a penalty or a stop is chosen by."""
        logprobs = torch.cat([r.logprob[:, 0] for r in self.rollouts(draft, served, 1)])
        return float(-logprobs[logprobs.isfinite()].double().mean())
