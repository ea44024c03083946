"""How vLLM is told to speculate: `--speculative-config`, a whole command, or a line of its log that repeats them.

Sources, in vllm: config/speculative.py of 0.33.0 (`SpeculativeConfig`; the method that a draft's name implies),
engine/arg_utils.py (--speculative-config with keys after a dot, --spec-method, --spec-model, --spec-tokens),
config/vllm.py `__str__` and v1/engine/core.py (the log line with the release). Chains only since May 2026
(vllm#42121). What the rule was called: "acceptance_method" and typical acceptance in V0; "strict" and
"probabilistic" in early 2026; "standard" with "draft_sample_method" after that, "block" and "fly" later.
Prompt embeddings: vllm#57356, September 2026.
"""

from __future__ import annotations

import re
from typing import Any

from eagle3lib.ecosystems._command_line import plain, printed_arguments, read_command_line
from eagle3lib.ecosystems._flags import LONGEST_CONTEXT, Flags, Settings, given, mapping, number, tree_of_paths, whole
from eagle3lib.errors import InputError
from eagle3lib.speculation import Hazard, Kind, Rule

#: Fields of the engine's arguments by argument; those of the draft begin with `spec.`.
_NAMES = {
    "--model": "model", "--max-model-len": "max_model_len", "--quantization": "quantization", "-q": "quantization",
    "--dtype": "dtype", "--kv-cache-dtype": "kv_cache_dtype", "--enable-prompt-embeds": "enable_prompt_embeds",
    "--enable-prefix-caching": "enable_prefix_caching", "--no-enable-prefix-caching": "no_prefix_caching",
    "--async-scheduling": "async_scheduling", "--no-async-scheduling": "no_async_scheduling",
    "--override-generation-config": "override_generation_config", "--speculative-config": "speculative_config",
    "-sc": "speculative_config", "--spec-method": "spec.method", "--spec-model": "spec.model",
    "--spec-tokens": "spec.num_speculative_tokens", "--speculative-model": "spec.model",
    "--num-speculative-tokens": "spec.num_speculative_tokens",
}  # fmt: skip
_SWITCHES = {
    "--enable-prompt-embeds", "--enable-prefix-caching", "--no-enable-prefix-caching", "--async-scheduling",
    "--no-async-scheduling",
}  # fmt: skip
_RULES: dict[str, Rule] = {"block": "block", "fly": "relaxed", "strict": "one-hot draft", "probabilistic": "rejection"}
_VARYING = {
    "num_speculative_tokens_per_batch_size": "the draft length follows the batch size",
    "speculative_disable_by_batch_size": "nothing is drafted above that queue",
    "disable_by_batch_size": "nothing is drafted above that queue",
    "enable_adaptive_verification": "how many drafts are verified follows the draft's confidence",
}
#: What a served model may be called that is itself a draft in speculators' form: vLLM serves it with the target that
#: its config.json names. (docs.vllm.ai/projects/speculators, "Serve in vLLM")
_OWN_DRAFT = re.compile(r"speculator|eagle-?3|checkpoint|^[./~$]", re.IGNORECASE)
_THOUSANDS = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}

Given = dict[str, tuple[Any, str]]


class VLLMFlags(Flags):
    takes = "a vLLM command, the JSON of --speculative-config or a line of vLLM's log that holds its arguments"
    mark = re.compile(r"vllm|num_speculative_tokens|--spec(ulative-config|-tokens|-method|-model)\b|num_spec_tokens=")
    lines = {
        "steps": '"num_speculative_tokens": {}',
        "method": '"method": "{}"',
        "eagle3": '"method": "eagle3"',
        "simulated": 'set "rejection_sample_method": "standard"',
        "sampled_rule": '"rejection_sample_method": "standard"',
        "context": "--max-model-len {}",
        "draft_context": '"max_model_len": {}',
    }

    def fill(self, settings: Settings, text: str, architecture: str | None, version: str | None) -> None:
        kind, engine, draft = self._given(settings, text)
        release = re.search(r"(?:engine \(v|version |vllm-openai:v?|vllm==)(\d+\.\d+\.\d+[\w.]*)", text)
        found, argument = (release[1], release[0]) if release else (version, "served.version")
        settings.put("version", found, "stated", argument)
        self._engine(settings, engine, kind)
        model, argument = engine.get("model", (None, ""))
        if not draft and kind == "stated" and model and _OWN_DRAFT.search(str(model)):
            draft = {"model": (model, f"{argument}: a draft itself, if its config.json has a speculators_config")}
        if not draft:
            settings.nothing_drafted("without --speculative-config nothing is drafted")
            return
        self._method(settings, draft, kind)
        self._shape(settings, draft, kind)
        self._rule(settings, draft, kind)

    def _given(self, settings: Settings, text: str) -> tuple[Kind, Given, Given]:
        """The engine's arguments and the draft's, None left out."""
        kind: Kind = "stated"
        if text.startswith("{") or "non-default args: {" in text:
            found = _object(text[text.index("{") :])
            if text.startswith("{") and "speculative_config" not in found:
                found = {"speculative_config": found}
            engine = {name: (value, f"{name}: {value}") for name, value in found.items()}
        elif "with config: " in text:
            kind, found = "reported", printed_arguments(text.split("with config: ", 1)[1], "=", closed=False)
            if found is None:
                raise InputError(
                    "The vLLM log line in served.launch is cut: a bracket is never closed; give all of it."
                )
            engine = {name: (value, f"{name}={value}") for name, value in found.items()}
            engine["max_model_len"] = engine.pop("max_seq_len", (None, ""))
        else:
            engine = self._command(settings, text)
        config, said = engine.pop("speculative_config", (None, ""))
        if isinstance(config, str) and config.startswith("SpeculativeConfig("):
            config = printed_arguments(config[len("SpeculativeConfig(") :], "=") or {}
            config["num_speculative_tokens"] = config.pop("num_spec_tokens", None)
        draft: Given = {} if config is None else {
            name.replace("-", "_"): (value, f'"{name}": {value}') for name, value in mapping(config, said).items()
        }  # fmt: skip
        draft |= {name[5:]: engine.pop(name) for name in list(engine) if name.startswith("spec.")}
        if "num_speculative_tokens" not in draft and "method" not in draft and not self.mark.search(text):
            raise self.refuse(text)
        taken = ({name: pair for name, pair in found.items() if pair[0] is not None} for found in (engine, draft))
        return kind, *taken

    def _command(self, settings: Settings, text: str) -> Given:
        line = read_command_line(text, _SWITCHES)
        # Keys after a dot: --speculative-config.num_speculative_tokens 3.
        dotted = {n: "spec." + n.split(".", 1)[1].replace("-", "_") for n in line.arguments if _dotted(n)}
        found, others = given(line, _NAMES | dotted, _SWITCHES | set(dotted))
        settings.others += others
        if "serve" in line.words[:-1]:
            at = line.words.index("serve")
            found.setdefault("model", (line.words[at + 1], line.words[at + 1]))
        return {name: (value if value is not None else "true", said) for name, (value, said) in found.items()}

    def _engine(self, settings: Settings, said: Given, kind: Kind) -> None:
        for name, field in (
            ("model", "model"), ("quantisation", "quantization"), ("dtype", "dtype"),
            ("kv_cache_dtype", "kv_cache_dtype"),
        ):  # fmt: skip
            if field in said:
                settings.put(name, str(said[field][0]), kind, said[field][1])
        if "max_model_len" in said:
            value, argument = said["max_model_len"]
            settings.put("context", _tokens(value, argument), kind, argument)
        for name, on, off in (
            ("prefix_caching", "enable_prefix_caching", "no_prefix_caching"),
            ("overlap", "async_scheduling", "no_async_scheduling"),
        ):  # fmt: skip
            value, argument = said.get(off, said.get(on, (None, "")))
            if argument:
                settings.put(name, off not in said and _true(value), kind, argument)
        if "override_generation_config" in said:
            value, argument = said["override_generation_config"]
            settings.sampling(mapping(value, argument), kind, argument)
        value, argument = said.get("enable_prompt_embeds", (None, ""))
        if _true(value):
            meaning = (
                "Builds before September 2026 (vllm#57356) do not mark drafted tokens as tokens, so the target verifies"
                " stale embeddings in their place and accepts next to none."
            )
            remedy = "Serve without --enable-prompt-embeds, or a later build."
            settings.hazards.append(Hazard(argument, meaning, remedy))

    def _method(self, settings: Settings, said: Given, kind: Kind) -> None:
        model, argument = said.get("model", (None, ""))
        if model is not None:
            settings.put("draft_model", str(model), kind, argument)
        if "method" in said:
            method, argument = said["method"]
            settings.put("method", str(method), kind, argument)
        elif model is not None and re.search(r"eagle-|eagle3", str(model).lower()):
            method = "eagle" if "eagle-" in str(model).lower() else "eagle3"  # in this order
            settings.put("method", method, "guessed", f"vLLM takes the draft's name, {model}, for it")
        else:
            settings.put("method", None, "unknown", "vLLM asks the draft's config.json")
        found = settings.values["method"]
        settings.put("eagle3", None if found is None else found == "eagle3", "forced", "only eagle3 captures layers")
        if "quantization" in said:
            settings.put("draft_quantisation", str(said["quantization"][0]), kind, said["quantization"][1])
        if "max_model_len" in said:
            value, argument = said["max_model_len"]
            settings.put("draft_context", whole(value, argument, high=LONGEST_CONTEXT), kind, argument)

    def _shape(self, settings: Settings, said: Given, kind: Kind) -> None:
        value, argument = said.get("num_speculative_tokens", (None, ""))
        argument = argument or "the draft's config.json gives it, or vLLM drafts nothing"
        settings.put("steps", whole(value, argument), kind, argument)
        settings.vary(*(f"{said[name][1]}: {why}" for name, why in _VARYING.items() if said.get(name, (0,))[0]))
        if "speculative_token_tree" not in said:
            settings.chain("vLLM drafts a chain")
            return
        value, argument = said["speculative_token_tree"]
        steps, topk, nodes = tree_of_paths(plain(value) if isinstance(value, str) else value, argument)
        for name, found in {"steps": steps, "topk": topk, "draft_tokens": nodes + 1, "capacity": nodes}.items():
            settings.put(name, found, kind, argument)

    def _rule(self, settings: Settings, said: Given, kind: Kind) -> None:
        value, argument = said.get("rejection_sample_method", ("standard", ""))
        method = str(value)
        if method == "synthetic":
            value = next((said[n][1] for n in said if n.startswith("synthetic_acceptance")), argument)
            settings.put("simulated", value, kind, argument)
            return
        if method in _RULES:
            settings.put("sampled_rule", _RULES[method], kind, argument)
        elif said.get("acceptance_method", ("",))[0] == "typical_acceptance_sampler":
            settings.put("sampled_rule", "typical", kind, said["acceptance_method"][1])
        elif said.get("draft_sample_method", ("greedy",))[0] != "greedy":
            settings.put("sampled_rule", "rejection", kind, said["draft_sample_method"][1])
        else:
            settings.put("sampled_rule", "one-hot draft", "default", "vLLM drafts its likeliest token")


def _object(text: str) -> dict[str, Any]:
    """An object in JSON, or as Python prints one, and nothing after it on its line."""
    try:
        return mapping(text, text)
    except InputError:
        found = plain(text.splitlines()[0] if text.startswith("{'") else text)
        if not isinstance(found, dict):
            raise
        return {str(name): value for name, value in found.items()}


def _dotted(name: str) -> bool:
    return name.startswith(("--speculative-config.", "-sc."))


def _true(value: Any) -> bool:
    return str(value).lower() == "true"


def _tokens(value: Any, said: str) -> int | None:
    """A context length as vLLM writes it: 32768, 32k (thousands), 32K (1024s), or -1 and auto for what fits."""
    text = str(value)
    if text in ("auto", "-1"):
        return None
    if text[-1:] in _THOUSANDS:
        found = number(text[:-1], said, high=LONGEST_CONTEXT / _THOUSANDS[text[-1]])
        return round(found * _THOUSANDS[text[-1]])
    return whole(value, said, high=LONGEST_CONTEXT)


FLAGS = VLLMFlags()
