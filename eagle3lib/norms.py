"""Norms of recorded states by boundary: the fingerprint that tells an embedding from a deep state."""

from __future__ import annotations

import pandas as pd

from eagle3lib.hygiene import DumpValues

#: A channel is an outlier where its rms exceeds this many times the median channel's. Each of SmolLM2's deep
#: boundaries has one, of 15 to 50 times; after a random rotation the largest is at most 5.3 times the median.
OUTLIER_RATIO = 10.0


def norm_profile(values: DumpValues) -> pd.DataFrame:
    """One row a boundary: quantiles of the token norms ‖h‖, outlier channels, values that are not finite."""
    rows = []
    for boundary, state in values.states.items():
        ratio = state.channel_ratio
        rows.append(
            {
                "boundary": boundary,
                "smallest": state.smallest,
                "p5": state.norm_quantile(0.05),
                "median": state.norm_quantile(0.5),
                "p95": state.norm_quantile(0.95),
                "largest": state.largest,
                "outlier_channels": int((ratio > OUTLIER_RATIO).sum()),
                "largest_channel": int(ratio.argmax()),
                "largest_channel_ratio": float(ratio.max()),
                "non_finite": state.non_finite,
                "tokens": state.rows,
            }
        )
    return pd.DataFrame(rows)
