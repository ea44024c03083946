"""Statistics of a draft's stored tensors, one tensor in memory at a time."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from eagle3lib.checkpoint import Draft
from eagle3lib.tensors import TensorInfo, checkpoint_files, read_headers, read_tensor


def stored_tensors(path: Path) -> dict[str, TensorInfo]:
    """Header entries of a draft's folder by name.

    Raises:
        InputError: if a file is missing or broken.
    """
    return read_headers(checkpoint_files(path))


def weight_stats(path: Path) -> pd.DataFrame:
    """One row a floating-point tensor: rms, largest magnitude, how many values are not finite, constant or not.

    Raises:
        InputError: if a file is missing or broken.
    """
    rows = []
    for name, info in stored_tensors(path).items():
        tensor = read_tensor(info)
        if not tensor.is_floating_point():
            continue
        values = tensor.float()
        finite = values.isfinite()
        kept = values[finite]
        rows.append(
            {
                "tensor": name,
                "shape": "×".join(map(str, info.shape)),
                "dtype": info.dtype,
                "rms": float(kept.square().mean().sqrt()) if kept.numel() else float("nan"),
                "largest": float(kept.abs().max()) if kept.numel() else float("nan"),
                "non_finite": int((~finite).sum()),
                "constant": bool(kept.numel() and (kept == kept.flatten()[0]).all()),
            }
        )
    return pd.DataFrame(rows)


def slot_column_norms(draft: Draft) -> list[float]:
    """Frobenius norm of each slot's columns of `fc`."""
    blocks = draft.weights.fc.float().split(draft.config.target_hidden_size, dim=1)
    return [float(torch.linalg.matrix_norm(block)) for block in blocks]
