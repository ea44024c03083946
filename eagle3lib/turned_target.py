"""A served target that is not the training one: turned by a rotation, as quantisers do, its embedding turns too.

A draft that borrows the target's embedding then reads B(0)·Q where it learned B(0), which no columns of `fc` mend: the
repair writes the embedding of training into the draft, where the engine uses a draft's own at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from eagle3lib.anchors import SAME_DIRECTION
from eagle3lib.checkpoint import Draft
from eagle3lib.dialects import read_checkpoint
from eagle3lib.ecosystems import Engine, flat_config
from eagle3lib.sample import Sample
from eagle3lib.tensors import TensorInfo

EMBEDDING = "embed_tokens.weight"


def embedding_cosine(draft: Draft, samples: Sequence[Sample]) -> float | None:
    """Cosine of the served target's B(0) with the embedding the draft was trained with, over all rows; None where no
    sample holds B(0)."""
    sums = torch.zeros(3, dtype=torch.float64)
    for sample in samples:
        if 0 in sample.states:
            h = sample.states[0].double()
            e = draft.embed(sample.token_ids[: len(h)]).cpu().double()
            sums += torch.stack([(h * e).sum(), h.square().sum(), e.square().sum()])
    return float(sums[0] / (sums[1] * sums[2]).sqrt()) if sums[1] > 0 else None


def needs_own_embedding(draft: Draft, samples: Sequence[Sample]) -> bool | None:
    """Whether the served target's embedding is another than the draft learned with; None where it cannot be told."""
    cosine = embedding_cosine(draft, samples)
    return None if cosine is None else cosine < SAME_DIRECTION


def why_embedding_unused(draft: Draft, engine: Engine, config: Mapping[str, Any]) -> str | None:
    """Why an engine does not use a draft's own embedding under such a config.json, None where it does."""
    checkpoint = read_checkpoint(draft.path)
    fc = checkpoint.tensors["fc.weight"]
    shape = (draft.config.vocab_size, draft.config.hidden_size)
    stored = fc.name.removesuffix("fc.weight") + EMBEDDING
    own = {EMBEDDING: TensorInfo(stored, shape, fc.dtype, fc.file), **checkpoint.tensors}
    held = replace(checkpoint, tensors=own, raw_config=dict(config), config=flat_config(dict(config)))
    return next((said.sentence for said in engine.rules(held).dropped(held) if said.about == EMBEDDING), None)
