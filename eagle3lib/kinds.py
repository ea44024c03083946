"""What a file is that is no EAGLE-3 draft: recognised by its tensors, named in one sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eagle3lib.tensors import TensorInfo

_FIRST_Q = ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.q_a_proj.weight")


def other_kind(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> str | None:
    """What the tensors are, where they are no EAGLE-3 draft's; None where they may be one.

    `tensors` have the names of `dialects`. The words of config.json are not asked: they lie more often.
    """

    def has(pattern: str) -> bool:
        return any(re.search(pattern, name) for name in tensors)

    if not has(r"^(fc\.|layers\.0\.)") and not has(r"eh_proj|medusa|hydra|^mtp\.|^head\.0\.|linear\.weight$"):
        first = next((info.name for info in tensors.values()), None)
        return f"{len(tensors)} tensors, none of them a draft's" + (f" ({first}, ...)" if first else "")
    fc, q = tensors.get("fc.weight"), next((tensors[name] for name in _FIRST_Q if name in tensors), None)
    hidden = tensors["norm.weight"].shape[0] if "norm.weight" in tensors else fc.shape[0] if fc else None
    if "mask_hidden" in tensors:
        return "a P-EAGLE draft (mask_hidden), which drafts all tokens at once"
    if has(r"(^|\.)parallel_draft_heads\."):
        return "ModelOpt's EAGLE with parallel Medusa heads (parallel_draft_heads)"
    if has(r"(^|\.)medusa_head") or has(r"^\d+\.\d+\.linear\.weight$"):
        return "Medusa heads, which have no layer of their own"
    if has(r"hydra_(head|mlp)"):
        return "Hydra heads"
    if "fc.weight" in tensors and has(r"(^|\.)eh_proj\."):
        return "TensorRT-LLM's variant that joins embedding and state before a plain layer (eh_proj and fc)"
    if has(r"(^|\.)(eh_proj|enorm|hnorm)\.") or has(r"^mtp\."):
        return "a multi-token-prediction (MTP) module (eh_proj, enorm, hnorm)"
    if "hidden_norm.weight" in tensors and "layers.0.hidden_norm.weight" not in tensors:
        return "a DFlash draft (hidden_norm outside the layers), which drafts a block at once"
    if has(r"^(emb|proj|ln|head)\.0\.") and has(r"^head\.0\."):
        return "an MLP speculator (emb.0, proj.0, head.0)"
    if "layers.0.hidden_norm.weight" in tensors or not q:
        return None
    if fc and fc.shape[1] == 2 * fc.shape[0] and q.shape[1] == fc.shape[0]:
        return "an EAGLE-1 or EAGLE-2 draft (fc joins embedding and state; the layer is one state wide)"
    if fc is None and hidden is not None and q.shape[1] == hidden:
        depth = 1 + max(int(m[1]) for name in tensors if (m := re.match(r"layers\.(\d+)\.", name)))
        return f"a language model of {depth} layers, or a draft without aux states that never sees the embedding"
    return None
