"""The recorded tokens by themselves: how many are supervised, in which turns, and what shape the answers have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from eagle3lib.sample import Sample, Turn
from eagle3lib.target import Target

#: A response loops where it ends in one run of tokens at least so many times over, in at least so many tokens; runs
#: up to so long are looked for. Closing tokens (end of turn, line end) may follow.
LOOP_REPEATS, LOOP_TOKENS, LOOP_PERIOD, CLOSING_TOKENS = 3, 16, 64, 2
#: Names of samples that are kept for messages, and tokens looked at on either side of a turn's first.
NAMES, AROUND = 10, 8
#: How a prompt ends where the assistant is to speak, by family; what a template puts into the answer is not in it.
GENERATION_PROMPTS = re.compile(
    r"<\|im_start\|>assistant\n"  # ChatML: Qwen, SmolLM2
    r"|<\|start_header_id\|>assistant<\|end_header_id\|>\n\n"  # Llama 3
    r"|<start_of_turn>model\n"  # Gemma
    r"|<\|im_assistant\|>assistant<\|im_middle\|>"  # Kimi
    r"|<｜Assistant｜>"  # DeepSeek
    r"|<\|start\|>assistant"  # gpt-oss
    r"|<\|assistant\|>\n?"  # GLM, Phi
    r"|\[/INST\]"  # Mistral
)


@dataclass(frozen=True)
class Responses:
    """Counts over a dump's samples.

    Attributes:
        supervised: tokens that the loss mask marks.
        turn_lengths: supervised tokens of each turn, in order.
        without_supervision: names of the first samples whose mask is empty, and how many there are.
        foreign: names of the first samples with ids outside the vocabulary, and how many there are.
        looping: turns that end in a loop.
        edges: where the mask begins against the end of the generation prompt: how many turns by how many tokens (0 is
            right, 1 late, -1 early), as far as the tokens' texts tell.
        unread_edges: turns whose beginning no known template explains.
    """

    samples: int
    tokens: int
    supervised: int
    turn_lengths: Sequence[int] = field(repr=False)
    without_supervision: tuple[int, tuple[str, ...]]
    foreign: tuple[int, tuple[str, ...]]
    looping: int
    edges: dict[int, int]
    unread_edges: int

    @property
    def turns(self) -> int:
        """Assistant turns."""
        return len(self.turn_lengths)

    @property
    def one_token(self) -> int:
        """Turns of a single token: an answer that ended as it began."""
        return sum(length == 1 for length in self.turn_lengths)


def read_responses(target: Target | None, samples: Iterable[Sample]) -> Responses:
    """One pass over the samples' tokens; states are not touched.

    Args:
        target: for the vocabulary's size and the tokens' texts; None where the case names none.
    """
    count = tokens = supervised = looping = unread = 0
    lengths: list[int] = []
    bare, foreign, edges = [], [], Counter()
    for sample in samples:
        count += 1
        tokens += len(sample.token_ids)
        supervised += int(sample.loss_mask.sum())
        if not sample.loss_mask.any():
            bare.append(sample.name)
        if target is not None and _outside(sample, target.vocab_size):
            foreign.append(sample.name)
        for turn in sample.turns:
            lengths.append(turn.end - turn.begin)
            looping += loops(sample.token_ids[turn.begin : turn.end].numpy())
            offset = mask_offset(target, sample, turn)
            if offset is None:
                unread += 1
            else:
                edges[offset] += 1
    return Responses(
        count,
        tokens,
        supervised,
        lengths,
        (len(bare), tuple(bare[:NAMES])),
        (len(foreign), tuple(foreign[:NAMES])),
        looping,
        dict(sorted(edges.items())),
        unread,
    )


def loops(response: np.ndarray) -> bool:
    """Whether a response ends in the same run of tokens over and over."""
    tail = response[-(LOOP_REPEATS * LOOP_PERIOD + CLOSING_TOKENS) :]
    for closing in range(CLOSING_TOKENS + 1):
        ids = tail[: len(tail) - closing]
        for period in range(1, min(LOOP_PERIOD, len(ids) // LOOP_REPEATS) + 1):
            needed = max(LOOP_REPEATS * period, LOOP_TOKENS)
            if len(ids) >= needed and np.array_equal(ids[-needed:-period], ids[period - needed :]):
                return True
    return False


def mask_offset(target: Target | None, sample: Sample, turn: Turn) -> int | None:
    """Tokens between the end of the generation prompt and the mask's beginning; None where no template is seen.

    A template may go on after its role marker (`<think>`), so that only -1 and 1 are near misses of a mask.
    """
    if target is None or target.token_texts is None:
        return None
    first = max(turn.begin - AROUND, 0)
    texts = [target.text(i) for i in sample.token_ids[first : turn.begin + AROUND].tolist()]
    # The prompt may end in the middle of no token: positions are compared at the tokens' ends.
    ends = np.cumsum([len(text) for text in texts])
    matches = list(GENERATION_PROMPTS.finditer("".join(texts)))
    offsets = [
        turn.begin - (first + int(np.searchsorted(ends, match.end())) + 1)
        for match in matches
        if match.end() in set(ends.tolist())
    ]
    return min(offsets, key=abs, default=None)


def _outside(sample: Sample, vocabulary: int) -> bool:
    ids = sample.token_ids
    return bool(((ids < 0) | (ids >= vocabulary)).any())
