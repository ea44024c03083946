"""The draft: read from its folder, its tensors accounted for one by one, its weights ready for the pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eagle3lib.config import DraftConfig
from eagle3lib.device import resolve_device
from eagle3lib.dialects import read_checkpoint
from eagle3lib.draft_weights import DraftWeights, gather
from eagle3lib.errors import InputError
from eagle3lib.infer import infer_config
from eagle3lib.ledger import TensorEntry, tensor_ledger
from eagle3lib.target import Target
from eagle3lib.tensors import TensorInfo, read_tensor
from eagle3lib.vocabulary import read_vocabulary


@dataclass(frozen=True)
class Draft:
    """A loaded draft. `target_ids[d]` is the target id of draft id d; `draft_ids[t]` the inverse, -1 outside.

    Attributes:
        raw_config: config.json as found, for what an engine would read from it.
        tensors: where each tensor lies, by canonical name.
        ledger: every tensor of the file, and every expected tensor that it lacks.
        embedding: the target, or the draft's own table, mapped: rows are copied when asked for, never the whole.
    """

    path: Path
    raw_config: dict
    config: DraftConfig
    weights: DraftWeights
    target_ids: Int[Tensor, " Vd"]
    draft_ids: Int[Tensor, " V"]
    tensors: dict[str, TensorInfo]
    ledger: tuple[TensorEntry, ...]
    embedding: Float[Tensor, "V H"] | Target = field(repr=False)
    embedding_scale: float = 1.0  # of every row; targets such as Gemma's scale by sqrt(H), a draft's table never

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.norm.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the pass computes in."""
        return self.weights.norm.dtype

    def embed(self, token_ids: Int[Tensor, " T"]) -> Float[Tensor, "T H"]:
        """Embedding rows of target ids, in the draft's dtype; only these rows are read.

        Raises:
            InputError: if an id is outside the embedding.
        """
        if isinstance(self.embedding, Target):
            return self.embedding_scale * self.embedding.embed(token_ids).to(self.device, self.dtype)
        if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < len(self.embedding):
            raise InputError(
                f"Token ids reach from {int(token_ids.min())} to {int(token_ids.max())}, the draft at {self.path} has"
                f" a vocabulary of {len(self.embedding)}; are they another model's?"
            )
        return self.embedding_scale * self.embedding[token_ids.cpu()].to(self.device, self.dtype)


def load_draft(
    path: Path | str, target: Target | None = None, device: str = "auto", dtype: torch.dtype = torch.float32
) -> Draft:
    """Read a draft in any form that `dialects` knows.

    An embedding or head that the draft lacks comes from `target`. Weights are mapped and copied tensor by
    tensor; an own embedding stays mapped and is read by rows.

    Raises:
        InputError: if a file is missing or broken, a required tensor is absent, shapes contradict each other,
            or the embedding or head is absent and no target was given.
    """
    path = Path(path)
    checkpoint = read_checkpoint(path)
    tensors = checkpoint.tensors
    config = infer_config(path, checkpoint.config, {name: info.shape for name, info in tensors.items()})
    where = resolve_device(device)

    def weight(name: str) -> Tensor | None:
        return read_tensor(tensors[name]).to(where, dtype) if name in tensors else None

    vocabulary = read_vocabulary(checkpoint)
    target_ids = vocabulary.target_ids
    head = weight("lm_head.weight")
    if head is None:
        head = _from_target(path, target, "lm_head.weight").head_rows(target_ids).to(where, dtype)
    if "embed_tokens.weight" in tensors:
        embedding = read_tensor(tensors["embed_tokens.weight"])
    else:
        embedding = _from_target(path, target, "embed_tokens.weight")
    return Draft(
        path,
        checkpoint.raw_config,
        config,
        gather(config, weight, head),
        target_ids.to(where),
        vocabulary.draft_ids().to(where),
        tensors,
        tensor_ledger(checkpoint),
        embedding,
    )


def _from_target(path: Path, target: Target | None, name: str) -> Target:
    if target is None:
        raise InputError(f"{path} holds no {name}; name the target, whose own stands in for it.")
    return target
