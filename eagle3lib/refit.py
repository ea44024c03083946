"""Repair without retraining, second rung: `fc` fitted anew from the served states to the fused state of training.

With x the served states side by side (after the input norm, where the draft has one) and g = fc(aux) of the training
wiring on the same tokens, the columns are those of `normal_equations`, shrunk towards the rewired ones. The penalty
is chosen on prompts that were not fitted, by what acceptance depends on: the cross-entropy of the draft's first step,
whose keys all later steps read too.

Attention sinks have states of a norm a hundred times the others': such rows are scaled down to `BOUND` times the
median row, or they would set the scale of their channels and the whole fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from eagle3lib import fusion
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.device import free_bytes
from eagle3lib.errors import InputError
from eagle3lib.material import Material
from eagle3lib.normal_equations import Rows, bytes_needed, collect
from eagle3lib.plain_file import DTYPES
from eagle3lib.rewire import move_columns, with_fc
from eagle3lib.sample import Sample

#: A row with a state so many times the median row's of its slot is scaled down to that.
BOUND = 4.0
#: λ that are tried, the strongest first; channels of one size make them comparable between targets.
PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)


@dataclass(frozen=True)
class Fit:
    """A refitted draft and how it fits.

    Attributes:
        penalty: λ, as chosen; `tried` holds what each λ gave on the validation prompts, in nats a token.
        tokens: rows that were fitted, of which `bounded` were bounded; `inputs` of `fc`.
        condition: largest over smallest eigenvalue of the matrix that was solved.
        residual: Σ‖g - ĝ‖² / Σ‖g - mean g‖² over the validation prompts' starts: 0 is perfect, 1 no better than the
            mean.
        scale_ratio: rms ‖ĝ‖ / rms ‖g‖ over them: what shrinkage takes from the fused state's size.
    """

    draft: Draft
    penalty: float
    tried: dict[float, float]
    tokens: int
    bounded: int
    inputs: int
    condition: float
    residual: float
    scale_ratio: float

    @property
    def tokens_per_input(self) -> float:
        """Rows for each input of `fc`; about 3 are needed for full recovery."""
        return self.tokens / self.inputs

    def to_json(self) -> dict:
        """Plain data for a results file; the draft is left out."""
        names = ("penalty", "tokens", "bounded", "inputs", "tokens_per_input", "condition", "residual", "scale_ratio")
        return {name: getattr(self, name) for name in names}


def memory_needed(draft: Draft) -> int:
    """Bytes that a refit takes beside the draft and one sample: 11.1 GB for 3 slots of 7168."""
    return bytes_needed(draft.config.n_slots * draft.config.target_hidden_size, draft.config.hidden_size)


def refit(draft: Draft, trained: Wiring, served: Wiring, fit: Material, validation: Material) -> Fit:
    """The draft with `fc` fitted to the served states, and the penalty that predicts the validation prompts best.

    Args:
        fit: prompts whose every pair is fitted.
        validation: other prompts, on which λ is chosen.

    Raises:
        InputError: if the memory does not reach, the draft has no `fc`, a boundary is not held, or a state is not
            finite.
    """
    start = move_columns(draft, trained, served).draft
    _expect_memory(draft)
    equations = collect(_rows(draft, start, trained, served, fit), start.weights.fc)
    tried: dict[float, float] = {}
    for penalty in PENALTIES:
        candidate = with_fc(start, as_stored(draft, equations.solve(penalty)))
        tried[penalty] = validation.nats(candidate, served)
        if tried[penalty] == min(tried.values()):
            best = candidate
    chosen = min(tried, key=tried.__getitem__)
    residual, ratio = goodness(draft, best, trained, served, validation)
    condition = equations.condition(chosen)
    inputs = len(equations.gram)
    return Fit(best, chosen, tried, equations.rows, equations.bounded, inputs, condition, residual, ratio)


def as_stored(draft: Draft, fc: Float[Tensor, "H D"]) -> Float[Tensor, "H D"]:
    """Columns as the checkpoint will hold them, so that what is judged is what is written."""
    return fc.to(DTYPES.get(draft.tensors["fc.weight"].dtype, torch.float32)).float()


@torch.inference_mode()
def goodness(draft: Draft, fitted: Draft, trained: Wiring, served: Wiring, prompts: Material) -> tuple[float, float]:
    """Residual and scale ratio of the fused state over all starts, as `Fit` has them."""
    squares = dict.fromkeys(("rest", "g", "found"), 0.0)
    total, count = torch.zeros(draft.config.hidden_size, dtype=torch.float64, device=draft.device), 0
    for own, truth in zip(prompts.served, prompts.trained, strict=True):
        starts = [t for t in own.starts if t < truth.n_pairs]
        g = fusion.fuse(draft, truth, trained)[starts].double()
        found = fusion.fuse(fitted, own, served)[starts].double()
        total, count = total + g.sum(0), count + len(starts)
        for name, value in (("rest", g - found), ("g", g), ("found", found)):
            squares[name] += float(value.square().sum())
    spread = squares["g"] - float(total.square().sum()) / max(count, 1)
    return squares["rest"] / spread, (squares["found"] / squares["g"]) ** 0.5


def _rows(draft: Draft, start: Draft, trained: Wiring, served: Wiring, fit: Material) -> Iterator[Rows]:
    """x, g without its bias, and ω of each prompt. The samples are read twice: norms alone first, for their medians."""
    norms = [_slot_norms(start, own, served) for own in fit.served]  # [P, A] each
    limit = BOUND * torch.cat(norms).median(0).values
    for own, truth, norm in zip(fit.served, fit.trained, norms, strict=True):
        n = min(own.n_pairs, truth.n_pairs)
        x = fusion.fc_input(start, own, served)[:n]
        g = linear(fusion.fc_input(draft, truth, trained)[:n], draft.weights.fc)
        yield x, g, (limit / norm[:n].clamp_min(1e-30)).clamp(max=1).amin(1)


def _slot_norms(draft: Draft, sample: Sample, wiring: Wiring) -> Float[Tensor, "P A"]:
    """‖x‖ of every slot, as `fc` is fed; the input norm makes them all alike."""
    return fusion.fc_input(draft, sample, wiring).unflatten(1, (len(wiring.slots), -1)).float().norm(dim=-1)


def _expect_memory(draft: Draft) -> None:
    needed, free = memory_needed(draft), free_bytes(draft.device)
    if free is not None and needed > free:
        inputs = draft.config.n_slots * draft.config.target_hidden_size
        raise InputError(
            f"A refit of fc with {inputs} inputs takes {needed / 1e9:.1f} GB for its normal matrix and the factor, in"
            f" float64; {draft.device} has {free / 1e9:.1f} GB free. Run it on a larger machine, or stay with rewiring."
        )
