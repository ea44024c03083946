"""How SGLang is told to speculate: its command line, or the `server_args=` that it prints when it starts, a
`ServerArgs(...)` or, in 0.5.23, a dictionary, with defaults filled in.

Sources, in sglang/srt of 0.5.23: arg_groups/fields/{spec,model,memory}.py (names and defaults),
arg_groups/speculative_hook.py (`_handle_eagle_family`: what is forced; `_auto_choose_speculative_params`: what is
guessed; `_init_adaptive_speculative_params`), speculative/eagle_utils.py (`eagle_sample`: which rule verifies),
speculative/spec_utils.py and environ.py (simulated acceptance), entrypoints/engine.py (what is printed). Releases of
2025 guessed (5, 4, 8) for every target but DeepSeek's, whose (3, 1, 4) gpt-oss joined in August (sglang#9470).
"""

from __future__ import annotations

import re
from typing import Any

from eagle3lib.ecosystems._command_line import printed_arguments, read_command_line
from eagle3lib.ecosystems._flags import LONGEST_CONTEXT, Flags, Settings, given, mapping, number, whole
from eagle3lib.errors import InputError
from eagle3lib.speculation import Kind, candidates

#: What 0.5.23 chooses by the target's architecture: steps, topk and draft tokens. All others get the last.
_GUESSED = {name: (5, 4, 8) for name in ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM")}
_GUESSED_OTHERS = (3, 1, 4)

#: Fields of ServerArgs by argument. A field's own argument is its name with dashes.
_FIELDS = (
    "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "speculative_accept_threshold_single", "speculative_accept_threshold_acc",
    "speculative_use_rejection_sampling", "speculative_use_block_verification", "speculative_adaptive",
    "speculative_draft_model_quantization", "preferred_sampling_params", "context_length", "quantization", "dtype",
    "kv_cache_dtype", "disable_radix_cache", "disable_overlap_schedule", "model_path",
)  # fmt: skip
_NAMES = {"--" + name.replace("_", "-"): name for name in _FIELDS} | {
    "--speculative-draft-model": "speculative_draft_model_path",
    "--speculative-draft": "speculative_draft_model_path",  # as argparse once took it, before others began so
    "--model": "model_path",
}
_SWITCHES = {
    "speculative_use_rejection_sampling", "speculative_use_block_verification", "speculative_adaptive",
    "disable_radix_cache", "disable_overlap_schedule",
}  # fmt: skip
#: The two names of the variable; without the prefix until the summer of 2025.
_SIMULATED = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")

Given = dict[str, tuple[Any, str]]


class SGLangFlags(Flags):
    takes = "an SGLang command line or its server_args=... line"
    mark = re.compile(r"sglang|ServerArgs\(|server_args=|--speculative-(num-steps|algo|eagle-topk|num-draft-tokens)")
    lines = {
        "steps": "--speculative-num-steps {}",
        "topk": "--speculative-eagle-topk {}",
        "draft_tokens": "--speculative-num-draft-tokens {}",
        "method": "--speculative-algorithm {}",
        "eagle3": "--speculative-algorithm EAGLE3",
        "simulated": "unset SGLANG_SIMULATE_ACC_LEN",
        "threshold_single": "--speculative-accept-threshold-single {}",
        "threshold_acc": "--speculative-accept-threshold-acc {}",
        "context": "--context-length {}",
    }

    def fill(self, settings: Settings, text: str, architecture: str | None, version: str | None) -> None:
        if not self.mark.search(text):
            raise self.refuse(text)
        kind, said = self._given(settings, text)
        image = re.search(r"sglang(?:==|:v?|[ -]v?)(\d+\.\d+\.\d+\S*)", text)
        settings.put("version", image[1] if image else version, "stated", image[0] if image else "served.version")
        self._others(settings, said, kind)
        algorithm, argument = said.get("speculative_algorithm", (None, ""))
        if algorithm is None:
            settings.nothing_drafted("without --speculative-algorithm nothing is drafted")
            return
        method = str(algorithm).upper()
        settings.put("method", method, kind, argument)
        settings.put("eagle3", method == "EAGLE3", "forced", "only EAGLE3 captures states of several layers")
        self._rule(settings, said, kind)
        self._shape(settings, said, kind, architecture)

    def _given(self, settings: Settings, text: str) -> tuple[Kind, Given]:
        """Fields of ServerArgs that the text gives, None left out."""
        if begin := re.search(r"ServerArgs\(|server_args=\{", text):
            printed = printed_arguments(text[begin.end() :], "=" if begin[0].endswith("(") else ":")
            if printed is None:
                raise InputError(
                    f"The {begin[0]}... in served.launch is cut: a bracket or a quotation is never closed; give the"
                    " whole line."
                )
            settings.others += [name for name in printed if name not in _FIELDS]
            found = {name: (printed[name], f"{name}={printed[name]!r}") for name in _FIELDS if name in printed}
            return "reported", {
                name: pair for name, pair in found.items() if pair[0] not in ("", None) and pair[0] is not False
            }
        switches = {name for name, field in _NAMES.items() if field in _SWITCHES}
        line = read_command_line(text, switches)
        found, others = given(line, _NAMES, switches)
        settings.others += others
        for name in _SIMULATED:
            value = line.environment.get(name)
            # A negative number is the default, off; the old form took any text for on.
            if value and not value.startswith("-") and value.strip("0.") != "":
                settings.put("simulated", value, "stated", f"{name}={value}")
        return "stated", {name: (True if name in _SWITCHES else v, said) for name, (v, said) in found.items()}

    def _others(self, settings: Settings, said: Given, kind: Kind) -> None:
        for name, field in (
            ("model", "model_path"), ("draft_model", "speculative_draft_model_path"),
            ("quantisation", "quantization"), ("draft_quantisation", "speculative_draft_model_quantization"),
            ("dtype", "dtype"), ("kv_cache_dtype", "kv_cache_dtype"),
        ):  # fmt: skip
            if field in said:
                settings.put(name, str(said[field][0]), kind, said[field][1])
        if "context_length" in said:
            value, argument = said["context_length"]
            settings.put("context", whole(value, argument, high=LONGEST_CONTEXT), kind, argument)
        for name, field in (("prefix_caching", "disable_radix_cache"), ("overlap", "disable_overlap_schedule")):
            settings.put(name, field not in said, kind if field in said else "default", said.get(field, ("", ""))[1])
        if "preferred_sampling_params" in said:
            value, argument = said["preferred_sampling_params"]
            settings.sampling(mapping(value, argument), kind, argument)

    def _rule(self, settings: Settings, said: Given, kind: Kind) -> None:
        """Block verification needs and turns on rejection sampling; thresholds belong to the rule without it."""
        thresholds = []
        for name in ("single", "acc"):
            value, argument = said.get(f"speculative_accept_threshold_{name}", (None, ""))
            found = number(value, argument, high=1)
            settings.put(
                f"threshold_{name}", 1.0 if found is None else found, kind if argument else "default", argument
            )
            thresholds.append(settings.values[f"threshold_{name}"])
        for field, rule in (
            ("speculative_use_block_verification", "block"), ("speculative_use_rejection_sampling", "rejection"),
        ):  # fmt: skip
            if field in said:
                settings.put("sampled_rule", rule, kind, said[field][1])
                return
        if min(thresholds) < 1:
            settings.put("sampled_rule", "thresholds", kind, "an accept threshold below 1")
        else:
            settings.put("sampled_rule", "target only", "default", "thresholds of 1 and no rejection sampling")

    def _shape(self, settings: Settings, said: Given, kind: Kind, architecture: str | None) -> None:
        asked = {}
        for name, field in (
            ("steps", "speculative_num_steps"), ("topk", "speculative_eagle_topk"),
            ("draft_tokens", "speculative_num_draft_tokens"),
        ):  # fmt: skip
            value, argument = said.get(field, (None, ""))
            asked[name] = whole(value, argument)
            settings.put(name, asked[name], kind, argument)
        if "speculative_adaptive" in said and asked["topk"] in (None, 1):
            settings.vary(f"{said['speculative_adaptive'][1]}: the steps follow what was accepted lately")
            settings.put("topk", 1, "forced", "--speculative-adaptive drafts a chain")
            if asked["steps"] is None:
                settings.put("steps", None, "unknown", "the middle of the candidates in --speculative-adaptive-config")
        elif not any(asked.values()):
            self._guess(settings, architecture)
        elif asked["steps"] is None:
            settings.put("steps", None, "unknown", "SGLang stops where the others are given without the steps")
        steps, topk = settings.values["steps"], settings.values["topk"]
        if topk is None and asked["steps"] is not None:
            settings.put("topk", None, "unknown", "SGLang stops where the steps are given without the topk")
        if topk == 1 and steps is not None and asked["draft_tokens"] != steps + 1 and any(asked.values()):
            settings.put("draft_tokens", steps + 1, "forced", "topk 1 makes draft tokens steps + 1")
            if asked["draft_tokens"] is not None:
                settings.put("asked_draft_tokens", asked["draft_tokens"], kind, said["speculative_num_draft_tokens"][1])
        if steps is not None and topk is not None:
            settings.put("capacity", candidates(topk, steps), "forced", "topk + (steps - 1) topk² nodes are scored")

    def _guess(self, settings: Settings, architecture: str | None) -> None:
        if architecture is None:
            for name in ("steps", "topk", "draft_tokens"):
                settings.put(name, None, "unknown", "SGLang chooses by the target's architecture, which is not known")
            return
        guess = _GUESSED.get(architecture, _GUESSED_OTHERS)
        for name, value in zip(("steps", "topk", "draft_tokens"), guess, strict=True):
            settings.put(name, value, "guessed", f"SGLang 0.5.23 chooses so for {architecture}")


FLAGS = SGLangFlags()
