"""How llama.cpp is told to speculate: its arguments, or the variables that stand for them.

Sources, in llama.cpp of October 2026: common/arg.cpp (names, variables), common/common.h (defaults), and
common/speculative.cpp and tools/server/server-context.cpp (a chain of up to n_max, ended early below p_min; each
draft held against the token sampled from the target; synthetic acceptance). `--draft-max` was taken until
2026 with a default of 16; newer builds stop at it. The default of p_min went from 0.75 to 0 with b9235
(llama.cpp#25792, #26100).
"""

from __future__ import annotations

import re
from typing import Any

from eagle3lib.ecosystems._command_line import read_command_line
from eagle3lib.ecosystems._flags import LONGEST_CONTEXT, Flags, Settings, given, number, whole
from eagle3lib.errors import InputError

_NAMES = {
    "--spec-type": "type", "--spec-draft-n-max": "n_max", "--spec-draft-p-min": "p_min", "--draft-p-min": "p_min",
    "--spec-draft-n-min": "n_min", "--draft-max": "old_n_max", "--draft": "old_n_max", "--draft-n": "old_n_max",
    "--draft-min": "n_min", "--draft-n-min": "n_min", "--spec-synth-len": "synth_len",
    "--spec-synth-rates": "synth_rates", "--spec-draft-model": "draft", "-md": "draft", "--model-draft": "draft",
    "--spec-draft-hf": "draft", "-hfd": "draft", "-hfrd": "draft", "--hf-repo-draft": "draft", "-m": "model",
    "--model": "model", "-hf": "model", "-hfr": "model", "--hf-repo": "model", "-c": "context",
    "--ctx-size": "context", "--temp": "temperature", "--temperature": "temperature", "--top-k": "top_k",
    "--top-p": "top_p", "--cache-prompt": "cache_prompt", "--no-cache-prompt": "no_cache_prompt",
    "-ctk": "cache_type", "--cache-type-k": "cache_type",
}  # fmt: skip
_VARIABLES = {
    "LLAMA_ARG_SPEC_TYPE": "type", "LLAMA_ARG_SPEC_DRAFT_N_MAX": "n_max", "LLAMA_ARG_SPEC_DRAFT_P_MIN": "p_min",
    "LLAMA_ARG_DRAFT_MAX": "old_n_max", "LLAMA_ARG_DRAFT_P_MIN": "p_min", "LLAMA_ARG_SPEC_SYNTH_LEN": "synth_len",
    "LLAMA_ARG_SPEC_SYNTH_RATES": "synth_rates", "LLAMA_ARG_SPEC_DRAFT_MODEL": "draft", "LLAMA_ARG_MODEL": "model",
    "LLAMA_ARG_CTX_SIZE": "context", "LLAMA_ARG_TEMPERATURE": "temperature", "LLAMA_ARG_TOP_K": "top_k",
    "LLAMA_ARG_TOP_P": "top_p",
}  # fmt: skip
_SWITCHES = ("--cache-prompt", "--no-cache-prompt")
_N_MAX, _OLD_N_MAX = 3, 16
_SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
_P_MIN, _OLD_P_MIN, _P_MIN_CHANGED = 0.0, 0.75, 9235
#: What a file's name says of its numbers, such as Q4_K_M.
_QUANTISED = re.compile(r"(?<![A-Za-z0-9])(I?Q\d\w*|MXFP4|TQ\d\w*)(?![A-Za-z0-9])", re.IGNORECASE)

Given = dict[str, tuple[Any, str]]


class LlamaCppFlags(Flags):
    takes = "a llama.cpp command line"
    mark = re.compile(
        r"llama[-_.](?:server|cli|cpp|speculative)|--spec-(type|draft)|--draft-(max|min|n)|-md |LLAMA_ARG_"
    )
    lines = {
        "steps": "--spec-draft-n-max {}",
        "method": "--spec-type {}",
        "eagle3": "--spec-type draft-eagle3",
        "simulated": "take out --spec-synth-len and --spec-synth-rates",
        "context": "--ctx-size {}",
    }

    def fill(self, settings: Settings, text: str, architecture: str | None, version: str | None) -> None:
        if not self.mark.search(text):
            raise self.refuse(text)
        line = read_command_line(text, _SWITCHES, equals=False)
        if joint := next((name for name in line.arguments if name.partition("=")[0] in _NAMES and "=" in name), None):
            raise InputError(
                f"llama.cpp takes a value after a space, found {joint[:60]!r} in served.launch; part them."
            )
        said, others = given(line, _NAMES, _SWITCHES)
        for name, field in _VARIABLES.items():
            if name in line.environment:
                said.setdefault(field, (line.environment[name], f"{name}={line.environment[name]}"))
        settings.others += others
        if types := line.arguments.get("--spec-type"):  # which adds up
            value = ",".join(values[0] for values in types if values)
            said["type"] = (value, f"--spec-type {value}")
        build = re.search(r"\bb(\d{4,5})\b", text) or re.search(r"\bb?(\d{4,5})\b", version or "")
        settings.put("version", f"b{build[1]}" if build else version, "stated", build[0] if build else "served.version")
        self._engine(settings, said)
        if not self._method(settings, said):
            settings.nothing_drafted("without --spec-type and a draft nothing is drafted")
            return
        self._shape(settings, said)
        self._varying(settings, said, None if build is None else int(build[1]))
        settings.put("sampled_rule", "one-hot draft", "forced", "its likeliest token is held against the sampled one")
        for field in ("synth_len", "synth_rates"):
            if field in said:
                settings.put("simulated", said[field][0], "stated", said[field][1])

    def _engine(self, settings: Settings, said: Given) -> None:
        for name, field in (("model", "model"), ("draft_model", "draft"), ("kv_cache_dtype", "cache_type")):
            if field in said:
                settings.put(name, said[field][0], "stated", said[field][1])
        for name, field in (("quantisation", "model"), ("draft_quantisation", "draft")):
            if found := _QUANTISED.search(str(said.get(field, ("",))[0])):
                settings.put(name, found[1], "stated", f"the name of the file, {said[field][0]}")
        value, argument = said.get("context", (None, ""))
        found = whole(value, argument, 0, LONGEST_CONTEXT)
        settings.put("context", found or None, "stated", argument)  # 0 stands for the model's own
        for name, default in _SAMPLING.items():
            value, argument = said.get(name, (default, ""))
            settings.sampling({name: value}, "stated" if argument else "default", argument)
        kind = "stated" if "no_cache_prompt" in said or "cache_prompt" in said else "default"
        settings.put("prefix_caching", "no_cache_prompt" not in said, kind, said.get("no_cache_prompt", ("", ""))[1])

    def _method(self, settings: Settings, said: Given) -> bool:
        """Whether a draft model drafts."""
        if "type" not in said:
            if "draft" not in said:
                return False
            settings.put("method", None, "unknown", "llama.cpp asks the draft's GGUF; older builds take draft-simple")
            return True
        value, argument = said["type"]
        kinds = set(str(value).split(",")) - {"none"}
        settings.put("method", str(value), "stated", argument)
        settings.put("eagle3", "draft-eagle3" in kinds, "forced", argument)
        beside = sorted(kinds - {"draft-eagle3"})
        if beside and "draft-eagle3" in kinds:
            settings.vary(f"{argument}: {' and '.join(beside)} drafts some rounds instead")
        return bool(kinds)

    def _shape(self, settings: Settings, said: Given) -> None:
        field = "n_max" if "n_max" in said else "old_n_max"
        value, argument = said.get(field, (None, ""))
        found = whole(value, argument, 0)
        if found == 0:
            settings.nothing_drafted(argument)
            return
        default = f"n_max is {_N_MAX}, and {_OLD_N_MAX} in builds that took --draft-max"
        settings.put("steps", found or _N_MAX, "stated" if found else "default", argument or default)
        settings.chain("llama.cpp drafts a chain")

    def _varying(self, settings: Settings, said: Given, build: int | None) -> None:
        old = "old_n_max" in said or (build is not None and build < _P_MIN_CHANGED)
        value, argument = said.get("p_min", (None, ""))
        p_min = number(value, argument, high=1)
        if p_min is None:
            p_min = _OLD_P_MIN if old else _P_MIN
            argument = f"p_min is {p_min:g} in builds before b{_P_MIN_CHANGED}"
        if p_min > 0:
            settings.vary(f"{argument}: a round ends early where the draft's own chance is below {p_min:g}")
        value, argument = said.get("n_min", (None, ""))
        if whole(value, argument, 0):
            settings.vary(f"{argument}: a round that drafts fewer drafts none")


FLAGS = LlamaCppFlags()
