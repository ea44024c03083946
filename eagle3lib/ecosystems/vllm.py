"""vLLM: id k is B(k), sorted and once each.

Sources, in vllm: model_executor/models/interfaces.py (`EagleModelMixin`: `sorted(set(layers))`, captures
before the first block and after each), and where the ids come from, which differs between its two model
runners: v1/worker/gpu/spec_decode/eagle/eagle3_utils.py for runner V2, the default, and
v1/worker/gpu_model_runner.py for runner V1 (`VLLM_USE_V2_MODEL_RUNNER=0`, or no Triton).
"""

from __future__ import annotations

from typing import Any

from eagle3lib.ecosystems._base import RAISE_LIMIT, Beyond, Engine, TargetShape, release
from eagle3lib.ecosystems._config_ids import NESTED, TOP_LEVEL, LayerIds, first_listed
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, share, shares
from eagle3lib.ecosystems._reading import Header, Rules, is_latent, n_slots
from eagle3lib.ecosystems.vllm_flags import FLAGS

#: models/deepseek_v2.py captures before each block and adds a residual that is None before block 0.
_NO_EMBEDDING = {
    "DeepseekForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "GlmMoeDsaForCausalLM",
    "KimiK25ForConditionalGeneration",
    "MistralLarge3ForCausalLM",
}


#: The last release that takes the draft's rope table from its own max_position_embeddings.
LAST_UNRAISED = (0, 24)

#: models/registry.py, the names that stand for an EAGLE-3 draft.
_ARCHITECTURES = {
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3MiniMaxM2ForCausalLM",
    "Eagle3Qwen3ForCausalLM",
    "Eagle3DeepseekV2ForCausalLM",
    "Eagle3DeepseekV3ForCausalLM",
}


_DROPS_STORED = (
    (r"layers\.[1-9]\d*\.hidden_norm\.", "its later layers use input_layernorm, which stays 1 under this name"),
    (r"midlayer\.\d+\.", "midlayer is read as layers.0, which makes this a name it does not have"),
)
_REPLACES = (
    (r"embed_tokens\.weight", "the target's embedding"),
    (r"lm_head\.weight", "the target's head, where the vocabularies are equal"),
    (r"d2t", "zeros: the draft's ids taken as the target's"),
    (r".*norm.*\.weight", "ones"),
    (r".*", "memory as it was found, random"),
)


class Converted(Form):
    """Flat config.json as conversion scripts for vLLM write it: `layers.0.`, ids at the top level."""

    name = "vllm"
    label = "vLLM-converted flat"

    def evidence(self, seen: Seen) -> list[str]:
        if not seen.begins("layers.0.") or "transformer_layer_config" in seen.config:
            return []
        found = ["layers.0."]
        if TOP_LEVEL in seen.config:
            found.append("ids at the top level")
        if set(seen.config.get("architectures") or []) & _ARCHITECTURES:
            found.append("an architecture of vLLM's registry")
        return found

    def flat_config(self, config: dict[str, Any]) -> dict[str, Any] | None:
        """The wrapper of `model_type` "eagle": the draft's own config lies in `model`."""
        inner = config.get("model")
        if config.get("model_type") != "eagle" or not isinstance(inner, dict):
            return None
        return {**inner, **{key: value for key, value in config.items() if key not in ("model", "model_type")}}


class VLLM(Engine):
    flags = FLAGS
    verified = "0.33.0"

    def __init__(self, name: str, label: str, runner: str, paths: tuple[str, ...]) -> None:
        self.name = name
        self.label = label
        self.runner = runner
        self.paths = paths  # key paths in the order this runner tries them

    def read_ids(self, config: dict[str, Any]) -> LayerIds:
        """The top level first, in the flat form as in speculators' own; null and [] count as absent."""
        return first_listed(config, self.paths)

    def refused(self, boundary: int, target: TargetShape, version: str | None = None) -> str | None:
        if boundary == 0 and target.architecture in _NO_EMBEDDING:
            return "cannot capture B(0): before block 0 deepseek_v2.py adds a None residual."
        return super().refused(boundary, target, version)

    def note(self, target: TargetShape, version: str | None = None) -> str:
        reads = ", then ".join(self.paths)
        return f"{self.as_of(version)}: id k is B(k), sorted; model runner {self.runner} reads {reads}."

    def rules(self, draft: Header) -> Rules:
        """models/llama_eagle3.py, qwen3_eagle3.py and deepseek_eagle3.py."""
        latent, qwen = is_latent(draft), draft.config.get("model_type") == "qwen3"
        ignores = {"norm_before_fc": (False, "deepseek_eagle3.py has no such norm")} if latent else {}
        drops = [(r"t2d", "d2t alone maps ids"), (r"fc\.bias", "its fc has no bias")]
        if not qwen and not latent:
            drops.append((r"layers\.\d+\.self_attn\.[qk]_norm\.weight", "only its class for model_type qwen3 has them"))
        if not draft.config.get("attention_bias"):
            drops.append(
                (r"layers\.\d+\.self_attn\.[qkvo]_proj\.bias", "config.json does not say attention_bias: true")
            )
        if not draft.config.get("fc_norm"):
            drops.append((r"fc_norm\.\d+\.weight", "config.json does not say fc_norm: true"))
        if not draft.config.get("norm_before_fc"):
            drops.append((r"input_norm\.weight", "config.json does not say norm_before_fc: true"))
        own_form = "speculators_model_type" in draft.raw_config
        assumes = {"norm_before_residual": (True, "the default for speculators' form, where the trainer's is false")}
        return Rules(ignores, drops, _REPLACES, assumes if own_form else {}, _DROPS_STORED)

    def stops(self, draft: Header) -> list[str]:
        """The llama class takes fc's width from `num_aux_hidden_states` or `eagle_config`; the qwen3 class
        looks at the top level too."""
        config, listed = draft.config, (draft.raw_config.get("eagle_config") or {}).get(NESTED.split(".")[1])
        if config.get("model_type") == "qwen3":
            listed = draft.config.get(TOP_LEVEL) or listed
        asked = config.get("num_aux_hidden_states") or len(listed or ()) or 3
        slots = n_slots(draft)
        if slots not in (None, asked):
            return [f"it builds fc for {asked} states and the file's takes {slots}; add num_aux_hidden_states: {slots}"]
        return []

    def beyond(self, limit: int, version: str | None = None) -> Beyond:
        """config/speculative.py `_maybe_override_draft_max_position_embeddings` (vllm#49343, after 0.24), and for
        runner V1 `effective_drafter_max_model_len`, which keeps the draft's own number (vllm#57964)."""
        if release(version or self.verified)[:2] <= LAST_UNRAISED:
            return Beyond(
                "unsafe",
                f"{self.label} up to 0.24 makes the draft's rope table {limit} rows long and reads past it: a"
                " device-side assert where the draft is compiled, unchecked memory where it is not (vllm#48894).",
                RAISE_LIMIT,
            )
        if self.runner == "V1":
            return Beyond(
                "undrafted",
                f"{self.label} drafts nothing for a batch whose longest sequence and its drafts pass {limit} positions:"
                " every request of the batch verifies placeholders, and says nothing of it.",
                RAISE_LIMIT,
            )
        return Beyond("served", f"{self.label} raises the draft's {limit} to the target's context, and logs it.", "")

    def settings(self, ids: tuple[int, ...]) -> dict[str, Any]:
        """The width of fc is taken from `eagle_config` or is three states, never from the top-level list."""
        return super().settings(ids) | ({} if len(ids) == 3 else {"num_aux_hidden_states": len(ids)})


FORM = Converted()
ENGINE = VLLM("vllm", "vLLM (V2 runner)", "V2", (TOP_LEVEL, "eagle_config.layer_ids"))
V1_RUNNER = VLLM("vllm_v1_runner", "vLLM (V1 runner)", "V1", (TOP_LEVEL, NESTED))


#: v1/spec_decode/metrics.py; counted in v1/core/sched/scheduler.py before a response's end is looked for.
METRICS = (
    Metric(
        "vLLM",
        "Mean acceptance length",
        "1 + accepted drafts / drafts made; drafts accepted beyond a response's end count too, and no recording"
        " shows those",
        "rounds",
        True,
        lambda run: 1 + share(run.all_accepted.sum(), run.rounds),
    ),
    Metric(
        "vLLM",
        "Per-position acceptance rate",
        "rounds with at least k drafts accepted / rounds: survival S_k, not a rate given that k was reached",
        "rounds",
        None,
        lambda run: shares(run.accepted_at_least(), [run.rounds] * run.steps),
    ),
    Metric(
        "vLLM",
        "Avg Draft acceptance rate",
        "accepted drafts / drafted tokens",
        "rounds",
        None,
        lambda run: share(run.all_accepted.sum(), run.rounds * run.steps),
    ),
)
