"""A replayed toy case, and a server's log whose drafts are accepted by given rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import served_lines as lines
from told import TRUE, confident_draft, random_samples, told_by

from eagle3lib.boundaries import Wiring
from eagle3lib.replay import Rollouts
from eagle3lib.rollout import rollout
from eagle3lib.served_comparison import server_rates
from eagle3lib.served_settings import Replays
from eagle3lib.serving import read_served

OWN, OTHER, STEPS = Wiring(TRUE), Wiring((2, 3, 5)), 3


def replayed_case(folder: Path) -> Replays:
    """A draft, samples that it told but for a tenth of their tokens, and their replays under two wirings."""
    draft = confident_draft(folder)
    samples = []
    for i, sample in enumerate(random_samples(draft, 16)):
        told = told_by(draft, sample, OWN, STEPS)
        noise = np.random.default_rng(i).random(len(told.token_ids)) < 0.1
        tokens = told.token_ids.clone()
        tokens[noise] = sample.token_ids[noise]
        samples.append(replace(told, token_ids=tokens))
    wirings = {"trained": OWN, "served": OWN}
    own, other = (chains(draft, samples, wiring) for wiring in (OWN, OTHER))
    return Replays(draft, wirings, samples, {"trained": other, "served": own}, 2)


def chains(draft, samples, wiring: Wiring) -> Rollouts:
    return [rollout(draft, sample, wiring, STEPS) for sample in samples]


def conditionals(replays: Replays, name: str = "served") -> np.ndarray:
    """c_1 .. c_K, last rounds counted."""
    return np.array([e.value for e in server_rates(replays.rollouts[name], STEPS, True).conditional])


def log_of(folder: Path, rates: Sequence[float], n: int = 4000, requests: int = 40, seed: int = 0):
    """llama.cpp's lines of so many rounds whose drafts are accepted by these conditional rates."""
    drawn = np.random.default_rng(seed).random((n, len(rates))) < np.array(rates)
    accepted = drawn.cumprod(1).sum(1)
    text = [
        line for task, part in enumerate(np.array_split(accepted, requests)) for line in lines.llama_rounds(part, task)
    ]
    (folder / "server.log").write_text("\n".join(text) + "\n")
    return read_served(folder / "server.log")
