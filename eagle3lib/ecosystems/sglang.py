"""SGLang: ids are read from `eagle_config` only, and most target classes add one to them.

Sources, in sglang/srt: model_executor/model_runner_components/spec_aux_hidden_state.py (where the ids come
from), and in each file of models/ `set_eagle3_layers_to_capture` and the layer loop. A mark m captures the
input of block m, so it is B(m); the loop visits blocks in order, so captures reach `fc` from low to high and
once each, whatever the list's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3lib.ecosystems._base import RAISE_LIMIT, Beyond, Engine, TargetShape, release
from eagle3lib.ecosystems._config_ids import NESTED, TOP_LEVEL, LayerIds, default_trio, read_at
from eagle3lib.ecosystems._form import Form, Seen
from eagle3lib.ecosystems._metrics import Metric, share, tokens_a_round
from eagle3lib.ecosystems._reading import Header, Rules, is_latent, n_layers, n_slots
from eagle3lib.ecosystems.sglang_flags import FLAGS

OLDEST = (0, 5, 12)  # the oldest release whose rules were compared


@dataclass(frozen=True)
class _Model:
    """What one file of models/ does. Releases are the first ones with that behaviour."""

    file: str
    adds_one: Literal["always", "if the first id is 1", "unless the largest id is n"] = "always"
    conditional_since: tuple[int, ...] = OLDEST  # before it, one was always added
    default_adds_one: bool = False
    embedding_since: tuple[int, ...] = (0, 5, 22)  # before it, B(0) added a residual that is still None
    last_since: tuple[int, ...] | None = None  # B(n): only where the code after the loop captures it
    partial_since: tuple[int, ...] | None = None  # from then on the residual is missing in all but B(0)


_LLAMA = _Model("llama.py")
_QWEN2 = _Model("qwen2.py", embedding_since=OLDEST)
_QWEN_MOE = _Model("qwen2_moe.py", embedding_since=OLDEST)
_GEMMA3 = _Model("gemma3_causal.py", embedding_since=OLDEST, last_since=OLDEST, partial_since=(0, 5, 17))
_GEMMA4 = _Model("gemma4_causal.py", embedding_since=OLDEST, last_since=OLDEST)
_MINIMAX_M2 = _Model("minimax_m2.py", embedding_since=OLDEST)
_GPT_OSS = _Model(
    "gpt_oss.py", "unless the largest id is n", (0, 5, 17), embedding_since=(0, 5, 17), last_since=(0, 5, 17)
)
_DEEPSEEK = _Model("deepseek_v2.py", "if the first id is 1", (0, 5, 13), embedding_since=(0, 5, 14))
_MINIMAX_M3 = _Model("minimax_m3.py", embedding_since=OLDEST, last_since=(0, 5, 23))
_MINIMAX_M3_VL = _Model("minimax_m3_vl.py", default_adds_one=True, embedding_since=OLDEST, last_since=(0, 5, 23))

_MODELS = {
    "LlamaForCausalLM": _LLAMA,
    "Phi3ForCausalLM": _LLAMA,
    "InternLM3ForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN2,
    "Qwen2MoeForCausalLM": _QWEN_MOE,
    "Qwen3MoeForCausalLM": _QWEN_MOE,
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Gemma4ForCausalLM": _GEMMA4,
    "MiniMaxM2ForCausalLM": _MINIMAX_M2,
    "GptOssForCausalLM": _GPT_OSS,
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": _DEEPSEEK,
    "GlmMoeDsaForCausalLM": _DEEPSEEK,
    "Glm4MoeLiteForCausalLM": _DEEPSEEK,
    "KimiK25ForConditionalGeneration": _DEEPSEEK,
    "MistralLarge3ForCausalLM": _DEEPSEEK,
    "MiniMaxM3SparseForCausalLM": _MINIMAX_M3,
    "MiniMaxM3SparseForConditionalGeneration": _MINIMAX_M3_VL,
}


class LegacyNames(Form):
    """Names that srt/models/llama_eagle3.py still takes (`legacy_name_map`): the three norms before fc."""

    name = "sglang"
    label = "SGLang with its old aux norm names"
    renames = (
        (r"^aux_norm_low\.", "fc_norm.0."),
        (r"^aux_norm_mid\.", "fc_norm.1."),
        (r"^aux_norm_high\.", "fc_norm.2."),
    )

    def evidence(self, seen: Seen) -> list[str]:
        return ["aux_norm_low, _mid and _high"] * 4 if seen.begins("aux_norm_") else []


_CLASS, _LATENT_CLASS = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"
_IGNORES = {
    "norm_before_residual": (False, "the residual is always the un-normed state"),
    "attention_bias": (False, "the draft's q, k and v are built without bias"),
    "sliding_window": (None, "only --speculative-draft-window-size sets a window"),
    "use_aux_hidden_state": (True, "fc is always built"),
}
_DROPS = (
    (r"layers\.\d+\.self_attn\.[qk]_norm\.weight", "its draft layer has no norm of query and key heads"),
    (r"layers\.\d+\.self_attn\.[qkvo]_proj\.bias", "its draft attention has no biases"),
    (r"t2d", "d2t alone maps ids"),
)
_DROPS_STORED = (
    (r"layers\.[1-9]\d*\.input_layernorm\.", "its later layers use hidden_norm, which stays 1 under this name"),
    (r"midlayer\.\d+\.", "midlayer is read as layers.0, which makes this a name it does not have"),
)
_REPLACES = (
    (r"embed_tokens\.weight", "the target's embedding"),
    (r"d2t", "the draft's ids taken as the target's"),
    (r".*norm.*\.weight", "ones"),
    (r".*", "memory as it was found, random"),
)


class SGLang(Engine):
    flags = FLAGS
    name = "sglang"
    label = "SGLang"
    verified = "0.5.23"
    key = NESTED
    empty_is_default = False

    def asked(self, ids: LayerIds, target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        """A list at the top level is ignored; [] is a list of nothing, not a default."""
        model, n = self._model(target), target.n_layers
        if ids.ids is None:
            marks = tuple(b + model.default_adds_one for b in default_trio(n))
        else:
            marks = tuple(i + _added(model, ids.ids, n, self._release(version)) for i in ids.ids)
        return tuple(sorted(set(marks)))

    def refused(self, boundary: int, target: TargetShape, version: str | None = None) -> str | None:
        model, n, at = self._model(target), target.n_layers, self._release(version)
        if boundary == 0 and at < model.embedding_since:
            return f"cannot capture B(0): before block 0 {model.file} adds a None residual."
        if boundary == n and (model.last_since is None or at < model.last_since):
            return f"cannot capture B({n}): {model.file} captures only what enters a block."
        if boundary in range(1, n + 1) and model.partial_since and at >= model.partial_since:
            return f"cannot capture B({boundary}): {model.file} captures it without its residual."
        return super().refused(boundary, target, version)

    def refused_together(
        self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None
    ) -> str | None:
        model, at = self._model(target), self._release(version)
        if boundaries == (1,) and model is _DEEPSEEK and at >= model.conditional_since:
            return "cannot capture B(1) alone: a list that starts with 1 has one added."
        return None

    def changes(self, target: TargetShape) -> tuple[str, ...]:
        model = self._model(target)
        since = (model.conditional_since, model.embedding_since, model.last_since, model.partial_since)
        earlier = sorted({OLDEST, *filter(None, since)} - {release(self.verified)})
        return (*(".".join(map(str, at)) for at in earlier), self.verified)

    def encode(self, boundaries: tuple[int, ...], target: TargetShape, version: str | None = None) -> tuple[int, ...]:
        model, n, at = self._model(target), target.n_layers, self._release(version)
        # The list's order does not matter to the captures, so a 1 in front can move to the end.
        rotated = boundaries[1:] + boundaries[:1] if boundaries[0] == 1 else boundaries
        as_they_are = (rotated,) if model is _DEEPSEEK else (boundaries,)
        for ids in (*as_they_are, tuple(b - 1 for b in boundaries)):
            added = _added(model, ids, n, at)
            if tuple(sorted(i + added for i in ids)) == boundaries:
                return ids
        raise AssertionError(f"no ids for {boundaries}, though problem() found none")

    def beyond(self, limit: int, version: str | None = None) -> Beyond:
        """configs/model_config.py `_derive_context_length`; the EAGLE workers ask for the target's context."""
        return Beyond(
            "stops",
            f"{self.label} gives the draft the target's context length and stops at start-up where that is more than"
            f" {limit}; with SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 it raises the draft's number instead.",
            f"{RAISE_LIMIT} Or serve with SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1.",
        )

    def note(self, target: TargetShape, version: str | None = None) -> str:
        model, at = self._model(target), self._release(version)
        rule = model.adds_one if at >= model.conditional_since else "always"
        known = "" if target.architecture in _MODELS else ", whose rule is assumed for this architecture"
        old = "; releases before 0.5.12 were not read" if at < OLDEST else ""
        since = ".".join(map(str, model.embedding_since))
        embedding = (
            f" B(0) needs {since} or later: earlier releases cannot capture it."
            if model.embedding_since > OLDEST
            else ""
        )
        return f"{self.as_of(version)}: one is added to ids {rule} (models/{model.file}{known}){old}.{embedding}"

    def rules(self, draft: Header) -> Rules:
        """models/llama_eagle3.py, models/kimi_k25_eagle3.py for latent attention, and models/llama.py `set_embed`."""
        ignores = dict(_IGNORES) | ({"norm_before_fc": (False, "its class for latent attention has no such norm")}
                                    if is_latent(draft) else {})  # fmt: skip
        drops = list(_DROPS)
        if draft.config.get("target_hidden_size") in (None, draft.config.get("hidden_size")):
            drops.append((r"embed_tokens\.weight", "the target's embedding is put in its place, trained or not"))
        if draft.config.get("tie_word_embeddings"):
            drops.append((r"lm_head\.weight", "tie_word_embeddings makes the embedding the head"))
        if not draft.config.get("bias"):
            drops.append((r"fc\.bias", "fc has a bias only where config.json says bias: true"))
        if not draft.config.get("fc_norm") and not draft.config.get("use_aux_norm"):
            drops.append((r"fc_norm\.\d+\.weight", "config.json does not say fc_norm: true"))
        if not draft.config.get("norm_before_fc"):
            drops.append((r"input_norm\.weight", "config.json does not say norm_before_fc: true"))
        stored = list(_DROPS_STORED)
        if is_latent(draft):
            stored.append((r"^model\.", "its class for latent attention puts model. before every name once more"))
        head = "the target's head" if draft.config.get("draft_vocab_size") is None else "memory as it was found, random"
        return Rules(ignores, drops, ((r"lm_head\.weight", head), *_REPLACES), drops_stored=stored)

    def stops(self, draft: Header) -> list[str]:
        """srt/models/llama_eagle3.py and kimi_k25_eagle3.py; their `EntryClass` names are the only ones."""
        config, latent = draft.config, is_latent(draft)
        if isinstance(draft.raw_config.get("transformer_layer_config"), dict):
            return ["it has no code for speculators' nested config.json; flatten it first"]
        said = []
        wanted = _LATENT_CLASS if latent else _CLASS
        named = next(iter(config.get("architectures") or []), None)
        if named != wanted:
            said.append(f"config.json names the architecture {named}, which it takes for a target's; write {wanted}")
        if "target_hidden_size" in config and config["target_hidden_size"] is None and not latent:
            said.append("it computes with target_hidden_size, which is null; take it out of config.json")
        listed = read_at(draft.raw_config, NESTED).ids or (read_at(draft.raw_config, TOP_LEVEL).ids if latent else None)
        asked = (None if latent else config.get("num_aux_hidden_states")) or len(listed or ()) or 3
        if (slots := n_slots(draft)) not in (None, asked):
            said.append(f"it builds fc for {asked} states and the file's takes {slots}; list the ids in eagle_config")
        if latent and n_layers(draft) > 1:
            said.append("its class for latent attention takes one layer")
        return said

    def _model(self, target: TargetShape) -> _Model:
        return _MODELS.get(target.architecture or "", _LLAMA)

    def _release(self, version: str | None) -> tuple[int, ...]:
        return release(version or self.verified)


def _added(model: _Model, ids: tuple[int, ...], n_layers: int, at: tuple[int, ...]) -> int:
    """What is added to every id of an explicit list."""
    if not ids or at < model.conditional_since or model.adds_one == "always":
        return 1
    if model.adds_one == "if the first id is 1":
        return int(ids[0] == 1)
    return int(max(ids) != n_layers)


FORM = LegacyNames()
ENGINE = SGLang()


#: managers/scheduler_components/metrics_reporter.py and tokenizer_manager.py. Drafts after a response's end are
#: dropped before they are counted.
METRICS = (
    Metric(
        "SGLang",
        "accept len",
        "tokens that the rounds added to responses / verifications, last rounds counted",
        "rounds",
        True,
        tokens_a_round,
    ),
    Metric(
        "SGLang",
        "accept rate",
        "of those tokens, the drafts / (verifications x (num_draft_tokens - 1))",
        "rounds",
        None,
        lambda run: share((run.all_committed - 1).clip(0).sum(), run.rounds * run.steps),
    ),
    Metric(
        "SGLang",
        "spec_accept_length",
        "of each request: completion_tokens / spec_verify_ct, the token of the prefill counted though no round made it",
        "requests",
        True,
        lambda run: run.mean_of_requests(lambda committed: (1 + committed.sum()) / len(committed)),
    ),
    Metric(
        "SGLang",
        "spec_accept_rate",
        "of each request: drafts kept / (spec_verify_ct x (num_draft_tokens - 1))",
        "requests",
        None,
        lambda run: run.mean_of_requests(
            lambda committed: (committed - 1).clip(0).sum() / (len(committed) * run.steps)
        ),
    ),
)
