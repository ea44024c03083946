"""TensorRT-LLM: id i is the output of block i, so B(i+1), ascending; ids are an argument of the engine.

Sources, in NVIDIA/TensorRT-LLM: tensorrt_llm/_torch/speculative/eagle3.py (captures), models/
modeling_speculative.py (names: `midlayer.`, fused `qkv_proj` and `gate_up_proj`; `fc_norm` before `norm_before_fc`;
the residual is always un-normed), llmapi/llm_args.py (`eagle3_layers_to_capture`). Whether the list in the
draft's own config.json is read was not verified; it is taken as not read.
"""

from __future__ import annotations

from eagle3lib.ecosystems._base import RAISE_LIMIT, Beyond, Engine, TargetShape
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, share
from eagle3lib.ecosystems._reading import Header, Rules
from eagle3lib.ecosystems.tensorrt_llm_flags import FLAGS

ARGUMENT = "eagle3_layers_to_capture"


class TensorRT(Form):
    name = "tensorrt_llm"
    label = "TensorRT-LLM names"

    def evidence(self, seen: Seen) -> list[str]:
        fused = [name for name in seen.names if ".qkv_proj." in name or ".gate_up_proj." in name]
        found = ["fused qkv_proj or gate_up_proj"] * bool(fused)
        if seen.begins("midlayer.") and seen.prefix == "model.":
            found += ["model.midlayer.", "lm_head beside model."]
        architectures = seen.config.get("architectures") or []
        if set(architectures) & {"EAGLE3LlamaForCausalLM", "Eagle3DeepSeekV3ForCausalLM"}:
            found += ["TensorRT-LLM's architecture name"]
        return found


class TensorRTEngine(Engine):
    flags = FLAGS
    name = "tensorrt_llm"
    label = "TensorRT-LLM"
    verified = "as in several commits of 2025 and 2026"
    numbered = False
    key = ARGUMENT
    shift = 1
    takes_argument = True

    def rules(self, draft: Header) -> Rules:
        """models/modeling_speculative.py."""
        drops = [
            (r"t2d", "d2t alone maps ids"),
            (r"layers\.\d+\.self_attn\.[qk]_norm\.weight", "its draft layer has no norm of query and key heads"),
        ]
        if draft.config.get("target_hidden_size") in (None, draft.config.get("hidden_size")):
            drops.append((r"embed_tokens\.weight", "the target's embedding is used where the sizes are equal"))
        if not draft.config.get("bias"):
            drops.append((r"fc\.bias", "fc has a bias only where config.json says bias: true"))
        return Rules(
            {"norm_before_residual": (False, "the residual is always the un-normed state")},
            drops,
            ((r"embed_tokens\.weight", "the target's embedding"), (r"lm_head\.weight", "the target's head")),
        )

    def beyond(self, limit: int, version: str | None = None) -> Beyond:
        """models/modeling_speculative.py: an EAGLE-3 draft's config is its checkpoint's own, and nothing raises it."""
        return Beyond(
            "unknown",
            f"{self.label} sizes the draft's rope table by its own {limit} and raises it nowhere that was read; what"
            " its kernels do past the table was not read.",
            RAISE_LIMIT,
        )

    def note(self, target: TargetShape, version: str | None = None) -> str:
        return f"{self.as_of(version)}: id i is B(i+1), given as {ARGUMENT}; the draft's list is taken as not read."


FORM = TensorRT()
ENGINE = TensorRTEngine()


#: batch_manager/llmRequest.h, `getAvgDecodedTokensPerIter`; _torch/pyexecutor/sampler.py counts the context step too.
METRICS = (
    Metric(
        "TensorRT-LLM",
        "avg_decoded_tokens_per_iter",
        "of each request: generated tokens / iterations, the context step counted as one with one token",
        "requests",
        True,
        lambda run: run.mean_of_requests(lambda committed: (1 + committed.sum()) / (1 + len(committed))),
    ),
    Metric(
        "TensorRT-LLM",
        "acceptanceRate",
        "accepted drafts / drafted tokens",
        "rounds",
        None,
        lambda run: share(run.all_accepted.sum(), run.rounds * run.steps),
    ),
)
