"""Repair without retraining, third rung: a few passes of gradient on `fc` alone against the target's distribution.

    p_t  = softmax over the draft vocabulary of head(norm(B(n)))      at the row of x[t + 1]
    loss = mean over starts t of -Σ_v p_t(v) log q_t(v)               q_t: the draft's first step at pair t

The trainer's own loss at its first step, with every weight but `fc` left as it is. Columns are moved in channels of
one size, a step a prompt; it stops where the validation prompts no longer gain, and the best pass is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from eagle3lib import draft_head, forward, fusion
from eagle3lib.boundaries import FINAL_NORMED, Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.material import Material
from eagle3lib.refit import as_stored
from eagle3lib.rewire import with_fc
from eagle3lib.sample import Sample
from eagle3lib.target import Target
from eagle3lib.training import teacher_head

#: At most so many passes over the prompts, and Adam's step as a share of the columns' size (arXiv 1412.6980).
PASSES, STEP = 4, 0.01


@dataclass(frozen=True)
class Tuned:
    """A tuned draft. `nats` holds the validation prompts' cross-entropy before the first pass and after each."""

    draft: Draft
    nats: tuple[float, ...]

    @property
    def passes(self) -> int:
        """The pass whose columns were kept; 0 where none gained."""
        return min(range(len(self.nats)), key=self.nats.__getitem__)


def tune(below: Draft, served: Wiring, target: Target, fit: Material, validation: Material) -> Tuned:
    """The draft of the rung below with `fc` moved along the gradient.

    Args:
        fit: prompts whose training-stack samples hold B(n) or its norm.
        validation: other prompts, by which it stops.

    Raises:
        InputError: if a sample holds no last state, or as `fusion.fuse`.
    """
    head = teacher_head(below, target)
    unit = _column_unit(below, served, fit)
    moved = torch.zeros_like(below.weights.fc, requires_grad=True)
    adam = torch.optim.Adam([moved], lr=STEP)
    best, nats = below, [validation.nats(below, served)]
    for passed in range(PASSES):
        for i in torch.randperm(len(fit.served), generator=torch.Generator().manual_seed(passed)).tolist():
            normed = last_normed(target, fit.trained[i])
            loss = _loss(below, fit.served[i], normed, served, head, below.weights.fc + moved * unit)
            if loss is not None:
                adam.zero_grad()
                loss.backward()
                adam.step()
        candidate = with_fc(below, as_stored(below, below.weights.fc + moved.detach() * unit))
        nats.append(validation.nats(candidate, served))
        if nats[-1] >= min(nats[:-1]):
            break
        best = candidate
    return Tuned(best, tuple(nats))


def last_normed(target: Target, sample: Sample) -> Float[Tensor, "R H"]:
    """norm(B(n)) of a sample that holds it or B(n), float32.

    Raises:
        InputError: if it holds neither.
    """
    if FINAL_NORMED in sample.states:
        return sample.states[FINAL_NORMED].float()
    return target.final_norm(sample.state(target.n_layers))


def _loss(
    draft: Draft, sample: Sample, normed: Tensor, served: Wiring, head: Float[Tensor, "Vd H"], fc: Tensor
) -> Tensor | None:
    """Cross-entropy against the target's distribution over one prompt's starts; None where it has none."""
    config, n = draft.config.under(served), sample.n_pairs
    starts = [t for t in sample.starts if t < len(normed) - 1]
    if not starts:
        return None
    rows = torch.tensor(starts)
    wanted = linear(normed[rows + 1].to(head), head).softmax(-1)  # [R, Vd]
    g = linear(fusion.fc_input(draft, sample, served), fc, draft.weights.fc_bias)
    embedding = draft.embed(sample.token_ids[1 : n + 1])
    u, _ = forward.packed_first_step(draft, config, g, embedding, [n], [rows.to(draft.device)])
    said = draft_head.logits(draft, u, config).float().log_softmax(-1)
    return -(wanted * said).sum(-1).mean()


@torch.no_grad()
def _column_unit(draft: Draft, served: Wiring, fit: Material) -> Float[Tensor, " D"]:
    """What one step of size 1 moves a column by: the columns' own rms in channels of one size, back in each channel's.

    Channels are measured over starts, so that no attention sink counts.
    """
    squares, count = torch.zeros_like(draft.weights.fc[0]), 0
    for sample in fit.served:
        starts = sample.starts
        squares += fusion.fc_input(draft, sample, served)[starts].square().sum(0)
        count += len(starts)
    scale = (squares / max(count, 1)).sqrt()
    own = (draft.weights.fc * scale).square().mean().sqrt()
    return torch.where(scale > 0, own / scale, 0.0)
