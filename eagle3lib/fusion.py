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

from eagle3lib.boundaries import Boundary, Wiring, boundary_name
from eagle3lib.checkpoint import Draft
from eagle3lib.config import DraftConfig
from eagle3lib.errors import InputError
from eagle3lib.norm import rms_norm
from eagle3lib.sample import Sample


def slot_state(draft: Draft, sample: Sample, boundary: Boundary) -> Float[Tensor, "P Ht"]:
    """The states that a slot is fed, for every pair, in the draft's dtype.

    Raises:
        InputError: if the sample lacks the boundary, or its states have another width than the draft's slots.
    """
    state = sample.state(boundary)[: sample.n_pairs]
    if state.shape[1] != draft.config.target_hidden_size:
        raise InputError(
            f"{sample.name} holds states of width {state.shape[1]} at {boundary_name(boundary)}, the draft's fc takes"
            f" slots of {draft.config.target_hidden_size}; is the dump another target's?"
        )
    return state.to(draft.device, draft.dtype)


def fc_input(draft: Draft, sample: Sample, wiring: Wiring) -> Float[Tensor, "P C"]:
    """aux of every pair: the slots side by side, with the input norm that the wiring's flags ask for.

    Raises:
        InputError: if the wiring has not the draft's number of slots, or asks for a norm whose weights the
            draft does not hold, and as `slot_state`.
    """
    if len(wiring.slots) != draft.config.n_slots:
        raise InputError(
            f"The draft's fc has {draft.config.n_slots} slots, the wiring {wiring} names {len(wiring.slots)}."
        )
    config, norms = draft.config.under(wiring), draft.weights.input_norms
    expect_input_norms(draft, config)
    states = [slot_state(draft, sample, boundary) for boundary in wiring.slots]
    if config.input_norm == "slots":
        states = [rms_norm(s, w, config.norm_eps) for s, w in zip(states, norms, strict=True)]
    aux = torch.cat(states, dim=-1)  # [P, A*Ht]
    return rms_norm(aux, norms[0], config.norm_eps) if config.input_norm == "concat" else aux


def fuse(draft: Draft, sample: Sample, wiring: Wiring) -> Float[Tensor, "P H"]:
    """g = fc(aux) of every pair; the one state without fc.

    Raises:
        InputError: as `fc_input`.
    """
    aux = fc_input(draft, sample, wiring)
    return linear(aux, draft.weights.fc, draft.weights.fc_bias) if draft.config.uses_fc else aux


def paired(
    config: DraftConfig, g: Float[Tensor, "P H"], embedding: Float[Tensor, "T H"]
) -> tuple[Float[Tensor, "P H"], Float[Tensor, "T-1 H"]]:
    """The states, and the embeddings beside them: pair i reads row i at step 0 and row i + k at step k.

    A pair is (h[i], x[i + 1]) and predicts x[i + 2]. Misaligned by `token_shift`, still predicting x[i + 2]:
    (h[i], x[i]) where the ids were not shifted against the states, (h[i - 1], x[i + 1]) where a state lags, the
    first pair's being zero. No shift shows a pair the token that it predicts.

    Raises:
        ValueError: for a shift of more than one.
    """
    match config.token_shift:
        case 0:
            return g, embedding[1:]
        case -1:
            return g, embedding[:-1]
        case 1:
            return torch.cat([torch.zeros_like(g[:1]), g[:-1]]), embedding[1:]
    raise ValueError(f"token_shift must be -1, 0 or 1, found {config.token_shift}")


def expect_input_norms(draft: Draft, config: DraftConfig) -> None:
    """Check that the draft holds the input norms that a config asks for.

    Raises:
        InputError: if it does not.
    """
    wanted = {"none": None, "concat": 1, "slots": config.n_slots}[config.input_norm]
    found = len(draft.weights.input_norms)
    if wanted is not None and wanted != found:
        raise InputError(f"The wiring asks for {wanted} input norm(s), {draft.path} holds {found}.")
