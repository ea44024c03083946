"""SGLang's server: srt/managers/io_struct.py, `GenerateReqInput`; `meta_info` counts each request's rounds."""

from __future__ import annotations

from eagle3lib.ecosystems._api import Api, inner

API = Api(
    "SGLang",
    "/generate",
    lambda prompt, limit, model: {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": limit},
    },
    lambda reply: inner(reply, "output_ids"),
    lambda reply: inner(reply, "meta_info", "completion_tokens"),
)
