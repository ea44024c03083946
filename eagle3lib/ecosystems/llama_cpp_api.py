"""llama.cpp's server: tools/server/README.md, `/completion`; its counters need `--metrics`.

A cached prefix can keep a stale draft entry, so the prompt is computed whole.
"""

from __future__ import annotations

from eagle3lib.ecosystems._api import Api, inner

API = Api(
    "llama.cpp",
    "/completion",
    lambda prompt, limit, model: {
        "prompt": prompt, "n_predict": limit, "temperature": 0.0, "cache_prompt": False, "return_tokens": True,
        "samplers": ["temperature"],
    },
    lambda reply: inner(reply, "tokens"),
    lambda reply: inner(reply, "timings", "predicted_n"),
)  # fmt: skip
