"""Rollouts that follow each chain up to its first miss: all that an acceptance length needs, in less time.

Step 0 is made where a round may start and nowhere else, and step k only of the chains that were right so far, several
samples laid end to end. After its first miss a chain counts as missed at every step, with probability 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from eagle3lib import draft_head, forward, fusion
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.rollout import Rollout
from eagle3lib.sample import Sample
from eagle3lib.starts import starts_of

#: Bytes of one [P, H] block: longer lists of samples are passed pack by pack.
PACK_BYTES = 2**26


def rollout_until_miss(draft: Draft, samples: Iterable[Sample], wiring: Wiring, steps: int) -> list[Rollout]:
    """Of each sample the rollout of `steps` steps; survival and step 0 are those of `rollout`.

    Raises:
        InputError: as `fusion.fuse`.
    """
    most = max(PACK_BYTES // (4 * draft.config.hidden_size), 1)
    every: list[Rollout] = []
    pack: list[tuple[Sample, Rollout]] = []
    pairs = 0
    for sample in samples:
        every.append(blank := _blank(sample, steps))
        if not len(blank.starts):
            continue
        if pack and pairs + sample.n_pairs > most:
            _roll_out(draft, wiring, pack)
            pack, pairs = [], 0
        pack.append((sample, blank))
        pairs += sample.n_pairs
    if pack:
        _roll_out(draft, wiring, pack)
    return every


@torch.inference_mode()
def _roll_out(draft: Draft, wiring: Wiring, pack: Sequence[tuple[Sample, Rollout]]) -> None:
    """Fill in the predictions of some samples laid end to end."""
    config, device = draft.config.under(wiring), draft.device
    paired = [fusion.paired(config, fusion.fuse(draft, s, wiring), draft.embed(s.token_ids)) for s, _ in pack]
    blank, lengths = [found for _, found in pack], [len(g) for g, _ in paired]
    g = torch.cat([own for own, _ in paired])
    first = torch.cat([following[:n] for (_, following), n in zip(paired, lengths, strict=True)])
    own = [found.starts.to(device) for found in blank]
    u, prefixes = forward.packed_first_step(draft, config, g, first, lengths, own)
    rows = [torch.arange(len(found.starts)) for found in blank]  # of the chains that go on
    steps = blank[0].hit.shape[1]
    for k in range(steps):
        counts = [len(r) for r in rows]
        recorded = torch.cat([found.recorded[r, k] for found, r in zip(blank, rows, strict=True)])
        choices = draft_head.choose(draft, u, recorded.to(device), config)
        told = zip(choices.predicted.cpu().split(counts), choices.logprob.cpu().split(counts), strict=True)
        for found, r, (predicted, logprob) in zip(blank, rows, told, strict=True):
            found.predicted[r, k], found.logprob[r, k] = predicted, logprob
            found.hit[r, k] = predicted == found.recorded[r, k]
        if k + 1 == steps:
            break
        going = [found.hit[r, k] & found.valid[r, k + 1] for found, r in zip(blank, rows, strict=True)]
        if not torch.cat(going).any():
            break
        u = forward.feedback(draft, config, u[torch.cat(going).to(device)])
        rows = [r[g] for r, g in zip(rows, going, strict=True)]
        for prefix, kept in zip(prefixes, going, strict=True):
            prefix.keep(kept.to(device))
        pairs = [found.starts[r].to(device) for found, r in zip(blank, rows, strict=True)]
        embedding = torch.cat([following[p + k + 1] for (_, following), p in zip(paired, pairs, strict=True)])
        u = forward.packed_next_step(draft, config, u, embedding, prefixes, pairs)


def _blank(sample: Sample, steps: int) -> Rollout:
    """The sample's starts and recorded tokens, with no prediction yet."""
    found = starts_of(sample, steps)
    hit, predicted = torch.zeros_like(found.valid), torch.full_like(found.recorded, -1)
    logprob = torch.full(hit.shape, -torch.inf)
    return Rollout(sample.name, found.pairs, found.turns, found.recorded, predicted, hit, logprob, found.valid)
