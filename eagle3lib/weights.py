"""What a draft's stored tensors hold: a streamed pass over the values, a bounded piece in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from eagle3lib.config import DraftConfig
from eagle3lib.dialects import Checkpoint, read_checkpoint
from eagle3lib.target import Target
from eagle3lib.tensors import TensorInfo, read_rows, read_tensor
from eagle3lib.vocabulary import Vocabulary

#: Values in memory at a time.
BUFFER = 2**20
#: Rows of the embedding that are looked at, spread over the vocabulary; the rest is as good or as bad.
SAMPLED_ROWS = 1024
INTEGER_TYPES = ("I", "U", "BOOL")


@dataclass(frozen=True)
class Likeness:
    """How a table's rows compare with the target's, over rows sampled evenly.

    Attributes:
        cosine: median over rows; 1 for equal directions, about 0 for random ones.
        norm_ratio: median of |own| / |target's|.
        equal: the share of rows that are the same number for number.
        unmapped: for a head: the share of rows equal to the target's row of the *draft* id.
    """

    rows: int
    cosine: float
    norm_ratio: float
    equal: float
    unmapped: float = 0.0


def stored_tensors(path: Path) -> dict[str, TensorInfo]:
    """Header entries of a draft by canonical name.

    Raises:
        InputError: as `dialects.read_checkpoint`.
    """
    return read_checkpoint(path).tensors


def weight_stats(path: Path) -> pd.DataFrame:
    """One row a floating-point tensor: rms, largest magnitude, how many values are not finite, constant or not.

    Of the embedding `SAMPLED_ROWS` rows are read.

    Raises:
        InputError: as `dialects.read_checkpoint`.
    """
    return pd.DataFrame(
        [
            tensor_stats(name, info)
            for name, info in stored_tensors(path).items()
            if not info.dtype.startswith(INTEGER_TYPES)
        ]
    )


def tensor_stats(name: str, info: TensorInfo) -> dict:
    """A row of `weight_stats`."""
    total, count, non_finite, largest = 0.0, 0, 0, float("nan")
    first: float | None = None
    constant = True
    for piece in _pieces(info, sampled=name == "embed_tokens.weight"):
        values = piece.float().flatten()
        finite = values.isfinite()
        non_finite += int((~finite).sum())
        kept = values if bool(finite.all()) else values[finite]
        if not kept.numel():
            continue
        first = float(kept[0]) if first is None else first
        constant = constant and bool((kept == first).all())
        total += float(kept.square().sum(dtype=torch.float64))
        count += kept.numel()
        top = float(kept.abs().max())
        largest = top if not largest >= top else largest
    return {
        "tensor": name,
        "shape": "×".join(map(str, info.shape)),
        "dtype": info.dtype,
        "rms": (total / count) ** 0.5 if count else float("nan"),
        "largest": largest,
        "non_finite": non_finite,
        "constant": bool(count) and constant,
    }


def _pieces(info: TensorInfo, sampled: bool) -> Iterator[Tensor]:
    """The tensor by runs of rows of at most `BUFFER` values; sampled: some rows, evenly spread."""
    if not info.shape:
        yield read_tensor(info)
        return
    n_rows = info.shape[0]
    width = max(1, torch.Size(info.shape).numel() // max(1, n_rows))
    rows = _spread(n_rows) if sampled else torch.arange(n_rows)
    for chunk in rows.split(max(1, BUFFER // width)):
        yield read_rows(info, chunk)


def _spread(n_rows: int) -> Tensor:
    """Up to `SAMPLED_ROWS` row numbers, evenly spread."""
    n = min(n_rows, SAMPLED_ROWS)
    return torch.linspace(0, n_rows - 1, n).round().long() if n else torch.arange(0)


def embedding_likeness(checkpoint: Checkpoint, target: Target) -> Likeness | None:
    """The draft's own embedding against the target's; None where it has none or the widths differ."""
    info = checkpoint.tensors.get("embed_tokens.weight")
    if info is None or info.shape[1] != target.hidden_size:
        return None
    ids = _spread(min(info.shape[0], target.vocab_size))
    return _likeness(read_rows(info, ids).float(), target.embed(ids))


def head_likeness(checkpoint: Checkpoint, target: Target, vocabulary: Vocabulary) -> Likeness | None:
    """The draft's own head against the target's rows of the tokens it stands for; None as above."""
    info = checkpoint.tensors.get("lm_head.weight")
    if info is None or info.shape[1] != target.hidden_size or vocabulary.size > target.vocab_size:
        return None
    ids = _spread(info.shape[0])
    own = read_rows(info, ids).float()
    moved = vocabulary.target_ids[ids] != ids  # where both ids are one, the rows tell nothing of the map
    unmapped = _equal(own[moved], target.head_rows(ids[moved])) if bool(moved.any()) else 0.0
    found = _likeness(own, target.head_rows(vocabulary.target_ids[ids]))
    return Likeness(found.rows, found.cosine, found.norm_ratio, found.equal, unmapped)


def _likeness(own: Float[Tensor, "R H"], theirs: Float[Tensor, "R H"]) -> Likeness:
    cosine = torch.nn.functional.cosine_similarity(own, theirs, dim=1)
    ratio = own.norm(dim=1) / theirs.norm(dim=1).clamp_min(1e-30)
    return Likeness(len(own), float(cosine.median()), float(ratio.median()), _equal(own, theirs))


def _equal(own: Tensor, theirs: Tensor) -> float:
    """The share of rows that agree up to the rounding of a 16-bit copy."""
    scale = theirs.abs().amax(1, keepdim=True)
    return float(((own - theirs).abs() <= 2**-7 * scale).all(1).double().mean()) if len(own) else 0.0


def slot_column_norms(checkpoint: Checkpoint, config: DraftConfig) -> list[float]:
    """Frobenius norm of each slot's columns of `fc`, none where the draft has no `fc`."""
    if "fc.weight" not in checkpoint.tensors:
        return []
    blocks = read_tensor(checkpoint.tensors["fc.weight"]).float().split(config.target_hidden_size, dim=1)
    return [float(torch.linalg.matrix_norm(block)) for block in blocks]
