"""Norms of recorded states by boundary: the fingerprint that tells an embedding from a deep state."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch

from eagle3lib.boundaries import Boundary
from eagle3lib.sample import Sample

#: A channel is an outlier where its rms exceeds this many times the median channel's.
OUTLIER_RATIO = 10.0


def norm_profile(samples: Sequence[Sample], boundaries: Sequence[Boundary]) -> pd.DataFrame:
    """One row a boundary: quantiles of the token norms ‖h‖, outlier channels, values that are not finite.

    Sums of squares by channel are accumulated sample by sample; only the norms, one number a token, are kept.
    """
    rows = []
    for boundary in boundaries:
        norms, squares, count, non_finite = [], 0.0, 0, 0
        for sample in samples:
            state = sample.state(boundary).float()
            non_finite += int((~state.isfinite()).sum())
            norms.append(state.norm(dim=-1))
            squares = squares + state.square().sum(0)
            count += len(state)
        token_norms = torch.cat(norms)
        channel_rms = (squares / count).sqrt()
        ratio = channel_rms / channel_rms.median()
        quantiles = torch.quantile(token_norms, torch.tensor([0.0, 0.05, 0.5, 0.95, 1.0])).tolist()
        rows.append(
            {
                "boundary": boundary,
                **dict(zip(("smallest", "p5", "median", "p95", "largest"), quantiles, strict=True)),
                "outlier_channels": int((ratio > OUTLIER_RATIO).sum()),
                "largest_channel": int(ratio.argmax()),
                "largest_channel_ratio": float(ratio.max()),
                "non_finite": non_finite,
                "tokens": count,
            }
        )
    return pd.DataFrame(rows)
