"""A server's loop of the draft on recorded tokens: one round after another, with a KV cache.

    extend   keys of the pairs since the last round, from target states; u of the last of them, pair t
    draft    d_0 from that u; d_k from the row of (g', d_{k-1}) at position t + k
    verify   a = how many leading d_k equal x[t + 2 + k]; the next round starts at t + a + 1
    rewrite  the fed-back keys of t + 1 .. t + a give way to those of target states

Drafts are fed their own tokens, as a server feeds them, and not the recorded ones. `rollout` and
`acceptance.walk` give the same rounds many times faster; this loop is what they are held against. It also runs
what no replay of all starts can show: an engine that leaves the rewriting out, whose prefix then depends on
how earlier rounds went.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eagle3lib import attention, draft_head, forward, fusion, layer, rope
from eagle3lib.bootstrap import Estimate, estimate, ratio
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.rounds import Round
from eagle3lib.sample import Sample, Turn


@dataclass(frozen=True)
class TracedRound:
    """One round, and the target ids that were drafted in it; the first `round.accepted` of them were kept."""

    round: Round
    drafted: tuple[int, ...]


@dataclass(frozen=True)
class KeptStates:
    """Acceptance length along the walk, chain, greedy, bonus included; `lost` is the first less the second."""

    rewritten: Estimate
    kept: Estimate
    lost: Estimate


@torch.inference_mode()
def trace(
    draft: Draft, sample: Sample, wiring: Wiring, steps: int, *, rewrite: bool = True, up_to_miss: bool = False
) -> list[TracedRound]:
    """The rounds that a greedy server runs over the recorded tokens, each turn a walk of its own.

    Args:
        rewrite: False for an engine that keeps the keys of accepted drafts as made from fed-back states. The
            last of K accepted drafts was never fed to the draft, so its key comes from the target either way.
        up_to_miss: draft no further than the first rejected token, all that the rounds themselves ask. A draft
            that the turn's end cuts is made whole: its accepted tokens are fed back as in any other.

    Raises:
        InputError: as `fusion.fuse`.
        ValueError: if steps is below 1.
    """
    loop, tokens = _Loop(draft, sample, wiring, steps), sample.token_ids.tolist()
    rounds = []
    for i, turn in enumerate(sample.turns):
        starts = _starts(sample, turn)
        t = starts.start
        while t in starts:
            left = turn.end - (t + 2)
            possible = min(left, steps)
            drafted = []
            for token in loop.draft(loop.extend(t + 1)):
                k = len(drafted)
                drafted.append(token)
                if up_to_miss and k < possible and token != tokens[t + 2 + k]:
                    break
            accepted = 0
            while accepted < possible and drafted[accepted] == tokens[t + 2 + accepted]:
                accepted += 1
            loop.crop(t + 1 if rewrite else t + 1 + min(accepted, steps - 1))
            following = t + accepted + 1
            cut = accepted == possible < steps
            done = Round(t, i, accepted, following not in starts, cut, min(accepted + 1, left))
            rounds.append(TracedRound(done, tuple(drafted)))
            t = following
    return rounds


@torch.inference_mode()
def from_every_start(draft: Draft, sample: Sample, wiring: Wiring, steps: int) -> Iterator[tuple[int, list[int]]]:
    """Every start, from the last to the first, with its K drafted target ids.

    The prefix is computed once. In this order a draft's keys overwrite only what no further start sees.

    Raises:
        InputError: as `fusion.fuse`.
        ValueError: if steps is below 1.
    """
    loop = _Loop(draft, sample, wiring, steps)
    starts = [t for turn in sample.turns for t in _starts(sample, turn)]
    u = loop.extend(sample.n_pairs) if starts else None
    for t in reversed(starts):
        loop.crop(t + 1)
        yield t, list(loop.draft(u[t : t + 1]))


def cost_of_kept_states(draft: Draft, samples: Iterable[Sample], wiring: Wiring, steps: int) -> KeptStates:
    """What an engine loses that does not rewrite the keys of accepted drafts: both loops, paired by sample.

    Raises:
        InputError: as `fusion.fuse`.
        ValueError: if there are no samples, or steps is below 1.
    """
    sums = []
    for sample in samples:
        runs = (trace(draft, sample, wiring, steps, rewrite=own, up_to_miss=True) for own in (True, False))
        lengths = [[item.round.length for item in run if not item.round.last] for run in runs]
        sums.append([n for own in lengths for n in (sum(own), len(own))])
    if not sums:
        raise ValueError("the cost of kept states needs at least one sample")
    table = np.array(sums)
    rewritten, kept = ratio(0, 1), ratio(2, 3)
    _, rounds, _, rounds_kept = table.sum(0)
    return KeptStates(
        estimate(table, rewritten, rounds),
        estimate(table, kept, rounds_kept),
        estimate(table, lambda s: rewritten(s) - kept(s), rounds),
    )


def _starts(sample: Sample, turn: Turn) -> range:
    """The turn's starts whose states were recorded."""
    return range(turn.starts.start, min(turn.starts.stop, sample.n_pairs))


class _Loop:
    """One sequence's draft with its KV cache: `length` positions are filled, in room for every pair and draft."""

    def __init__(self, draft: Draft, sample: Sample, wiring: Wiring, steps: int) -> None:
        if steps < 1:
            raise ValueError(f"steps must be 1 or more, found {steps}")
        config = draft.config.under(wiring)
        n = sample.n_pairs
        self.model, self.config, self.steps, self.length = draft, config, steps, 0
        self.fused = fusion.fuse(draft, sample, wiring) if n > 0 else None
        self.embedding = draft.embed(sample.token_ids[1 : n + 1])  # row i is that of x[i + 1]
        heads, width = config.n_kv_heads, config.head_dim
        if config.mla:
            heads, width = config.n_heads, config.mla.value_dim
        room = max(n, 0) + steps
        like = draft.weights.norm
        self.k = [like.new_empty(heads, room, config.head_dim) for _ in range(config.n_layers)]
        self.v = [like.new_empty(heads, room, width) for _ in range(config.n_layers)]
        # One rope table a step: kinds that go by the length count the step's own positions too, as `forward` does.
        offset, places = config.position_offset, torch.arange(room, device=draft.device)
        self.turns = [
            rope.cos_sin(places + offset, config.rope, config.rotary_dim, n + step + offset) for step in range(steps)
        ]

    def extend(self, end: int) -> Float[Tensor, "R H"]:
        """Fill the cache up to pair `end` from target states: u of the rows that were added."""
        rows = slice(self.length, end)
        return self._rows(self.fused[rows], self.embedding[rows], 0)

    def draft(self, u: Float[Tensor, "R H"]) -> Iterator[int]:
        """K target ids from the u of the cache's last position, the last row, each drafted when it is asked for."""
        yield (token := int(draft_head.greedy(self.model, u[-1:], self.config)))
        for step in range(1, self.steps):
            g = forward.feedback(self.model, self.config, u[-1:])
            u = self._rows(g, self.model.embed(torch.tensor([token])), step)
            yield (token := int(draft_head.greedy(self.model, u, self.config)))

    def crop(self, length: int) -> None:
        """Forget all but the first so many positions."""
        self.length = length

    def _rows(self, g: Float[Tensor, "R H"], embedding: Float[Tensor, "R H"], step: int) -> Float[Tensor, "R H"]:
        """u of rows that follow the cached positions; their keys and values are appended."""
        config, end = self.config, self.length + len(g)
        rows = slice(self.length, end)
        positions = torch.arange(self.length, end, device=g.device)
        turns = tuple(table[rows] for table in self.turns[step])
        u, scale = g, layer.score_scale(config)
        for i, w in enumerate(self.model.weights.layers):
            x, residual = layer.layer_input(config, w, u, embedding if i == 0 else None)
            self.k[i][:, rows], self.v[i][:, rows] = layer.keys_values(config, w, x, turns)
            # A window that counts from the start keeps the chain's own keys besides.
            window = config.windows[i]
            if window is not None and config.window_from == "start":
                window += step
            k, v = self.k[i][:, :end], self.v[i][:, :end]
            out, _ = attention.rows(layer.queries(config, w, x, turns), positions, k, v, scale, window)
            u = layer.layer_output(config, w, residual, out)
        self.length = end
        return u
