"""A draft changed as an engine or a trainer changes it: another embedding, head, vocabulary map or numerics.

Each function gives a new draft on the same folder; nothing of the original is touched, and what does not change
is shared.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from eagle3lib.checkpoint import Draft
from eagle3lib.config import Rope
from eagle3lib.draft_weights import HeadsWeights
from eagle3lib.target import Target
from eagle3lib.tensors import read_tensor

MapReading = Literal["offsets", "absolute ids", "none"]


def with_embedding(draft: Draft, target: Target | None = None, scale: float = 1.0) -> Draft:
    """Rows from the target's table instead of the draft's, or the same ones scaled; scale 0 reads no token at all."""
    return replace(draft, embedding=draft.embedding if target is None else target, embedding_scale=scale)


def with_target_head(draft: Draft, target: Target) -> Draft:
    """The target's head, cut to the draft vocabulary, in place of the draft's own."""
    head = target.head_rows(draft.target_ids).to(draft.device, draft.dtype)
    return replace(draft, weights=replace(draft.weights, head=head))


def stored_map(draft: Draft) -> Tensor | None:
    """d2t as the file holds it; None where it holds none."""
    return read_tensor(draft.tensors["d2t"]).long().flatten().to(draft.device) if "d2t" in draft.tensors else None


def with_vocabulary(draft: Draft, reading: MapReading) -> Draft:
    """d2t added to the draft id, taken for the target id itself, or ignored; an id that is none is never right.

    Args:
        draft: with a d2t in its file.
    """
    stored, own = stored_map(draft), torch.arange(draft.config.draft_vocab_size, device=draft.device)
    ids = {"offsets": own + stored, "absolute ids": stored, "none": own}[reading]
    inside = (ids >= 0) & (ids < draft.config.vocab_size)
    inverse = torch.full_like(draft.draft_ids, -1)
    inverse[ids[inside]] = own[inside]
    return replace(draft, target_ids=torch.where(inside, ids, -1), draft_ids=inverse)


def without_head_norms(draft: Draft) -> Draft:
    """Queries and keys un-normed, as an engine leaves them whose class knows no q_norm and k_norm."""

    def bare(heads: HeadsWeights) -> HeadsWeights:
        return replace(heads, q_norm=None, k_norm=None)

    layers = tuple(replace(layer, attention=bare(layer.attention)) for layer in draft.weights.layers)
    return replace(draft, weights=replace(draft.weights, layers=layers))


def has_head_norms(draft: Draft) -> bool:
    """Whether queries or keys are normed head by head."""
    attentions = [layer.attention for layer in draft.weights.layers]
    return all(isinstance(a, HeadsWeights) for a in attentions) and any(
        a.q_norm is not None or a.k_norm is not None for a in attentions
    )


def with_rope(draft: Draft, rope: Rope) -> Draft:
    """Positions turned as another config says, such as the target's."""
    return replace(draft, config=replace(draft.config, rope=rope))


def in_dtype(draft: Draft, dtype: torch.dtype) -> Draft:
    """The whole pass in another dtype: weights, states and activations, norms' statistics and softmax in float32."""
    return replace(draft, weights=_cast(draft.weights, dtype))


def _cast(value: object, dtype: torch.dtype) -> object:
    """A tree of dataclasses and tuples with its tensors in a dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype)
    if is_dataclass(value):
        return replace(value, **{f.name: _cast(getattr(value, f.name), dtype) for f in fields(value)})
    if isinstance(value, tuple):
        parts = [_cast(part, dtype) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
