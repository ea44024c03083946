"""Samples that a draft told itself: recorded tokens are its own greedy choices under a planted pass, so that the
planted pass is right everywhere and every other one is wrong somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import toys

from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample

#: Every boundary of the toy target but the last, so that shifted ids have room on both sides.
BOUNDARIES = tuple(range(toys.N_LAYERS + 1))
TRUE = (1, 2, 4)
#: A few long turns: enough starts for the first look, and cheap.
LENGTH, TURNS, N_SAMPLES = 76, ((5, 74),), 8


def confident_draft(folder: Path, input_norm: str = "none", *, head_norms: bool = False, **flags: object) -> Draft:
    """A draft whose choices depend on all that it is fed, over the whole vocabulary map of the toys."""
    tensors = toys.draft_tensors(input_norm)
    tensors["lm_head.weight"] = 2 * tensors["lm_head.weight"]
    if head_norms:
        for name in ("q_norm", "k_norm"):
            tensors[f"layers.0.self_attn.{name}.weight"] = 2 + toys.random_norm(toys.HEAD_DIM, toys.generator(8))
    return load_draft(toys.write_draft(folder, tensors, **flags), device="cpu")


def random_samples(draft: Draft, n: int = N_SAMPLES, boundaries: Sequence[int] = BOUNDARIES) -> list[Sample]:
    """Independent states of one size at every boundary, and recorded tokens that the draft can say."""
    samples = []
    for i in range(n):
        sample = toys.make_sample(60 + i, length=LENGTH, turns=TURNS, boundaries=boundaries, name=f"told {i}")
        drawn = torch.randint(0, len(draft.target_ids), (LENGTH,), generator=toys.generator(90 + i))
        states = {b: state / (1 + j) for j, (b, state) in enumerate(sample.states.items())}
        samples.append(replace(sample, token_ids=draft.target_ids[drawn].clamp_min(0), states=states))
    return samples


def told_by(draft: Draft, sample: Sample, wiring: Wiring, steps: int = 1) -> Sample:
    """The sample with its generated tokens replaced by the draft's own greedy choices, at step 0, or for
    `steps` > 1 in whole rounds of so many steps, as a walk that accepts everything would yield them."""
    token_ids = sample.token_ids.clone()
    for turn in sample.turns:
        start = turn.starts[0] if len(turn.starts) else turn.end
        while start + 2 < turn.end:
            for k in range(min(steps, turn.end - start - 2)):
                found = rollout(draft, replace(sample, token_ids=token_ids), wiring, k + 1)
                row = int((found.starts == start).nonzero())
                token_ids[start + 2 + k] = found.predicted[row, k]
            start += steps
    return replace(sample, token_ids=token_ids)
