"""The replay of a server's own tokens, and its rounds beside the server's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from server import Verification

from eagle3lib.acceptance import walk
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.recorded_serving import Request
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample


class Prefills:
    """States of whole sequences, float32, from the living target; the last ones are kept, for runs share tokens."""

    def __init__(self, living_target: Callable, boundaries: Sequence[int]) -> None:
        self._living, self._boundaries = living_target, tuple(boundaries)
        self._kept: dict[tuple[int, ...], dict[int, torch.Tensor]] = {}

    def sample(self, name: str, prompt: Sequence[int], answer: Sequence[int], temperature: float) -> Sample:
        """The sequence as a sample; its last token was never an input."""
        ids = (*prompt, *answer)
        if ids not in self._kept:
            self._kept[ids], _ = self._living().prefill(torch.tensor(ids[:-1]), self._boundaries)
        mask = torch.arange(len(ids)) >= len(prompt)
        return Sample(name, torch.tensor(ids), mask, self._kept[ids], None, temperature)


def split_last(rounds: Sequence[Verification], n_tokens: int) -> tuple[list[int], int | None]:
    """Accepted drafts of every round but the last, and of the last: None where it was a pass without a draft.

    The first token comes from the prefill, a round commits its accepted drafts and one token more, and where one
    token is left of the limit the server drafts no more. So the rounds commit all but that one, or all; or more
    than all, where drafts behind the end token were accepted too.

    Raises:
        RuntimeError: if the rounds do not add up to the tokens.
    """
    accepted = [r.accepted for r in rounds]
    before = n_tokens - 1 - sum(a + 1 for a in accepted)  # tokens that no round committed
    if before == 1 or (before == 0 and not accepted):
        return accepted, None
    if before > 1 or (before < 0 and -before > accepted[-1]):
        raise RuntimeError(f"{n_tokens} tokens and rounds of {accepted} accepted drafts do not add up")
    return accepted[:-1], accepted[-1]


def replay(draft: Draft, sample: Sample, slots: Sequence[int], steps: int) -> tuple[list[int], int | None]:
    """The same of the replay."""
    rounds = walk(rollout(draft, sample, Wiring(tuple(slots)), steps), steps)
    inner = [r.accepted for r in rounds if not r.last]
    return inner, next((r.accepted for r in rounds if r.last), None)


def request(
    sample: Sample,
    recorded: Sequence[int],
    seed: int,
    served: Sequence[Verification],
    replayed: tuple[list[int], int | None],
) -> Request:
    """One response for the record.

    Args:
        sample: with the server's tokens.
        recorded: the dumped answer to the same prompt.
    """
    answer = sample.token_ids[sample.turns[0].begin :].tolist()
    engine, engine_last = split_last(served, len(answer))
    inner, last = replayed
    same = common(answer, recorded)
    return Request(
        sample=sample.name, seed=seed, as_recorded=same, beyond=tuple(answer[same:]),
        engine=tuple(engine), engine_last=engine_last, replay=tuple(inner), replay_last=last,
    )  # fmt: skip


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading entries are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
