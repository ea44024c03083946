"""How TensorRT-LLM is told to speculate: the YAML that `trtllm-serve --config` (once --extra_llm_api_options) takes.

Sources, in NVIDIA/TensorRT-LLM: tensorrt_llm/llmapi/llm_args.py of 2025 and 2026 (`EagleDecodingConfig`,
`Eagle3DecodingConfig`, `DecodingBaseConfig`; an Eagle config is EAGLE-3's on the PyTorch backend) and
_torch/speculative/interface.py (TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS, drafts only, the bonus not counted).
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from eagle3lib.ecosystems._command_line import plain
from eagle3lib.ecosystems._flags import LONGEST_CONTEXT, Flags, Settings, number, tree_of_paths, whole
from eagle3lib.errors import InputError

_FORCED = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
#: Keys of which a YAML without speculation has one, or it is none of this engine's.
_KNOWN = {
    "attn_backend", "backend", "cuda_graph_config", "disable_overlap_scheduler", "enable_attention_dp",
    "enable_chunked_prefill", "kv_cache_config", "max_batch_size", "max_num_tokens", "max_seq_len", "moe_config",
    "print_iter_log", "tensor_parallel_size",
}  # fmt: skip
_VARYING = {
    "draft_len_schedule": "the draft length follows the batch size",
    "max_concurrency": "nothing is drafted in larger batches",
    "use_sa_spec": "text that repeats is drafted from what was written before, by no draft",
    "sa_config": "text that repeats is drafted from what was written before, by no draft",
    "acceptance_length_threshold": "drafting ends for good where the length falls below it over acceptance_window"
    " requests",
}


#: Levels of brackets and indents that are read; the options have four.
_DEEPEST = 16


class _Plain(yaml.SafeLoader):
    """YAML without aliases and deep nesting, by which a short text takes more memory or time than there is."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or self.depth == _DEEPEST:
            problem = "an alias is not taken" if self.depth < _DEEPEST else "it is nested too deeply"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class TensorRTFlags(Flags):
    takes = "the YAML of TensorRT-LLM's options with its speculative_config"
    mark = re.compile(r"decoding_type|speculative_config|trtllm")
    lines = {
        "steps": "max_draft_len: {}",
        "topk": "dynamic_tree_max_topK: {}",
        "method": "decoding_type: {}",
        "eagle3": "decoding_type: Eagle3",
        "simulated": f"unset {_FORCED}",
        "sampled_rule": "greedy_sampling: true",
        "context": "max_seq_len: {}",
    }

    def fill(self, settings: Settings, text: str, architecture: str | None, version: str | None) -> None:
        settings.put("version", version, "stated", "served.version")
        # A variable may stand above the YAML, as `export NAME=value`.
        assigned = re.search(rf"^\s*(?:export\s+)?{_FORCED}=(\S+)\s*$", text, re.MULTILINE)
        options = self._options(re.sub(r"(?m)^\s*(?:export\s+)?[A-Z_][A-Z0-9_]*=\S*\s*$", "", text), text)
        overrides = options.get("env_overrides")
        forced = assigned[1] if assigned else overrides.get(_FORCED) if isinstance(overrides, dict) else None
        if forced is not None and str(forced).strip("0.") != "":
            settings.put("simulated", str(forced), "stated", f"{_FORCED}={forced}")
        self._engine(settings, options)
        config = options if "decoding_type" in options else options.get("speculative_config")
        if config is None:
            settings.nothing_drafted("without speculative_config nothing is drafted")
            return
        if not isinstance(config, dict) or "decoding_type" not in config:
            raise InputError(
                "Expected speculative_config in served.launch to be a mapping with a decoding_type, found"
                f" {str(config)[:60]!r}."
            )
        self._draft(settings, config)

    def _options(self, body: str, text: str) -> dict[str, Any]:
        try:
            options = yaml.load(body, _Plain)
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}" if mark else ""
            problem = getattr(error, "problem", None) or type(error).__name__
            raise InputError(f"served.launch is not YAML{where}: {problem}; give {self.takes}.") from None
        known = _KNOWN | {"decoding_type", "speculative_config"}
        if not isinstance(options, dict) or not known & {name for name in options if isinstance(name, str)}:
            raise self.refuse(text)
        return options

    def _engine(self, settings: Settings, said: dict[str, Any]) -> None:
        cache = said.get("kv_cache_config") if isinstance(said.get("kv_cache_config"), dict) else {}
        for name, where, key in (
            ("model", said, "model"), ("dtype", said, "dtype"), ("kv_cache_dtype", cache, "dtype"),
            ("quantisation", said, "quantization"),
        ):  # fmt: skip
            if where.get(key) is not None:
                settings.put(name, str(where[key]), "stated", f"{key}: {where[key]}")
        reuse = cache.get("enable_block_reuse", True)
        kind = "stated" if "enable_block_reuse" in cache else "default"
        settings.put("prefix_caching", bool(reuse), kind, f"enable_block_reuse: {reuse}")
        off = bool(said.get("disable_overlap_scheduler", False))
        kind = "stated" if "disable_overlap_scheduler" in said else "default"
        settings.put("overlap", not off, kind, f"disable_overlap_scheduler: {off}")
        value = said.get("max_seq_len")
        settings.put("context", whole(value, f"max_seq_len: {value}", high=LONGEST_CONTEXT), "stated", "max_seq_len")

    def _draft(self, settings: Settings, said: dict[str, Any]) -> None:
        method = str(said["decoding_type"])
        settings.put("method", method, "stated", f"decoding_type: {method}")
        settings.put("eagle3", method.lower() in ("eagle", "eagle3"), "forced", "Eagle is EAGLE-3 on PyTorch")
        model = said.get("speculative_model") or said.get("speculative_model_dir")
        if model is not None:
            settings.put("draft_model", str(model), "stated", f"speculative_model: {model}")
        settings.vary(*(f"{name}: {said[name]}: {why}" for name, why in _VARYING.items() if said.get(name)))
        self._shape(settings, said)
        self._rule(settings, said)

    def _shape(self, settings: Settings, said: dict[str, Any]) -> None:
        steps = whole(said.get("max_draft_len"), f"max_draft_len: {said.get('max_draft_len')}")
        settings.put("steps", steps, "stated", f"max_draft_len: {steps}" if steps else "TensorRT-LLM stops without it")
        if choices := said.get("eagle_choices"):
            argument = f"eagle_choices: {choices}"[:60]
            depth, topk, nodes = tree_of_paths(plain(choices) if isinstance(choices, str) else choices, argument)
            for name, found in {"steps": depth, "topk": topk, "draft_tokens": nodes + 1, "capacity": nodes}.items():
                settings.put(name, found, "forced" if name == "steps" else "stated", argument)
            return
        topk = whole(said.get("dynamic_tree_max_topK"), f"dynamic_tree_max_topK: {said.get('dynamic_tree_max_topK')}")
        if topk is None:
            if said.get("use_dynamic_tree"):
                settings.put("topk", None, "unknown", "a dynamic tree needs dynamic_tree_max_topK")
                return
            settings.chain("without a tree TensorRT-LLM drafts a chain")
            return
        settings.put("topk", topk, "stated", f"dynamic_tree_max_topK: {topk}")
        if steps is None:
            return
        settings.put("capacity", topk * steps, "forced", "max_total_draft_tokens is at most topk times steps")
        value = said.get("max_total_draft_tokens")
        total = whole(value, f"max_total_draft_tokens: {value}")
        argument = f"max_total_draft_tokens: {total}" if total else "max_total_draft_tokens is topk times steps"
        settings.put("draft_tokens", (total or topk * steps) + 1, "stated" if total else "default", argument)

    def _rule(self, settings: Settings, said: dict[str, Any]) -> None:
        if said.get("greedy_sampling") is False:
            epsilon = number(said.get("posterior_threshold"), f"posterior_threshold: {said.get('posterior_threshold')}")
            argument = f"greedy_sampling: false, posterior_threshold: {epsilon}"
            settings.put("sampled_rule", "typical", "stated", argument)
        elif said.get("use_rejection_sampling") and said.get("sa_config"):
            settings.put("sampled_rule", "one-hot draft", "forced", "sa_config turns use_rejection_sampling off")
        elif said.get("use_rejection_sampling"):
            settings.put("sampled_rule", "rejection", "stated", "use_rejection_sampling: true")
        else:
            settings.put("sampled_rule", "one-hot draft", "default", "use_rejection_sampling is false")


FLAGS = TensorRTFlags()
