"""What a draft's first layer is fed: the states of each slot, normed and fused.

aux    = cat(h[slot_1], ..., h[slot_A])                     [P, A*Ht]
aux    = rms(aux) | cat(rms_i(chunk_i)) | aux               norm_before_fc | fc_norm | neither
g      = fc(aux)                                            [P, H]
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft
from eagle3lib.errors import InputError
from eagle3lib.norm import rms_norm
from eagle3lib.sample import Sample


def slot_states(draft: Draft, sample: Sample, wiring: Wiring) -> list[Float[Tensor, "P Ht"]]:
    """What each slot of `fc` is fed: the states of its boundary for every pair, in the draft's dtype.

    Raises:
        InputError: if the wiring has not the draft's number of slots, the sample lacks a boundary, or a
            state has another width than the draft's slots.
    """
    if len(wiring.slots) != draft.config.n_slots:
        raise InputError(
            f"The draft's fc has {draft.config.n_slots} slots, the wiring {wiring} names {len(wiring.slots)}."
        )
    states = [sample.state(boundary)[: sample.n_pairs] for boundary in wiring.slots]
    for boundary, state in zip(wiring.slots, states, strict=True):
        if state.shape[1] != draft.config.target_hidden_size:
            raise InputError(
                f"{sample.name} holds states of width {state.shape[1]} at {boundary}, the draft's fc takes slots of"
                f" {draft.config.target_hidden_size}; is the dump another target's?"
            )
    return [state.to(draft.device, draft.dtype) for state in states]


def fuse(draft: Draft, states: list[Float[Tensor, "P Ht"]], wiring: Wiring) -> Float[Tensor, "P H"]:
    """g = fc(aux), with the input norm that the wiring's flags ask for; the one state itself without fc.

    Raises:
        InputError: if the wiring asks for a norm whose weights the draft does not hold.
    """
    config = draft.config.under(wiring)
    norms = draft.weights.input_norms
    if config.input_norm == "slots":
        _expect_norms(draft, len(states))
        states = [rms_norm(s, w, config.norm_eps) for s, w in zip(states, norms, strict=True)]
    aux = torch.cat(states, dim=-1)  # [P, A*Ht]
    if config.input_norm == "concat":
        _expect_norms(draft, 1)
        aux = rms_norm(aux, norms[0], config.norm_eps)
    return linear(aux, draft.weights.fc, draft.weights.fc_bias) if config.uses_fc else aux


def _expect_norms(draft: Draft, n: int) -> None:
    if len(draft.weights.input_norms) != n:
        raise InputError(f"The wiring asks for {n} input norm(s), {draft.path} holds {len(draft.weights.input_norms)}.")
