"""vLLM's server: entrypoints/openai, `CompletionRequest`; the counters are those of /metrics.

Releases that do not know `return_token_ids` pass over it.
"""

from __future__ import annotations

from eagle3lib.ecosystems._api import Api, inner

API = Api(
    "vLLM",
    "/v1/completions",
    lambda prompt, limit, model: {
        "model": model, "prompt": prompt, "max_tokens": limit, "temperature": 0.0, "return_token_ids": True,
    },
    lambda reply: inner(reply, "choices", 0, "token_ids"),
    lambda reply: inner(reply, "usage", "completion_tokens"),
    names_model=True,
)  # fmt: skip
