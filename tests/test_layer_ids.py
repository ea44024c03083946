"""Layer ids and boundaries, both ways, as each system's own source has them."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from eagle3lib.ecosystems import ENGINES, TRAINERS, LayerIds, TargetShape, engine, trainer
from eagle3lib.errors import InputError

LLAMA = TargetShape(30, "LlamaForCausalLM")
GPT_OSS = TargetShape(36, "GptOssForCausalLM")
KIMI = TargetShape(61, "KimiK25ForConditionalGeneration")
DEEPSEEK = TargetShape(61, "DeepseekV3ForCausalLM")
QWEN = TargetShape(36, "Qwen3ForCausalLM")
MINIMAX = TargetShape(60, "MiniMaxM3SparseForConditionalGeneration")


def flat(ids):
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}


def top(ids):
    return {"eagle_aux_hidden_state_layer_ids": ids}


def served(name, config, target, version=None):
    system = ENGINES[name]
    return system.boundaries(system.read_ids(config), target, version)


@pytest.mark.parametrize(
    ("name", "config", "target", "version", "expected"),
    [
        ("sglang", flat([2, 15, 27]), LLAMA, None, (3, 16, 28)),
        ("sglang", flat([-1, 2, 15]), LLAMA, None, (0, 3, 16)),
        ("sglang", flat([27, 2, 15]), LLAMA, None, (3, 16, 28)),
        ("sglang", {}, LLAMA, None, (2, 15, 27)),
        ("sglang", flat(None), LLAMA, None, (2, 15, 27)),
        ("sglang", top([0, 3, 16]), LLAMA, None, (2, 15, 27)),
        ("sglang", flat([-1, 2, 15]), QWEN, "0.5.12.post1", (0, 3, 16)),
        ("sglang", flat([1, 29, 57]), DEEPSEEK, None, (2, 30, 58)),
        ("sglang", flat([2, 30, 58]), KIMI, None, (2, 30, 58)),
        ("sglang", flat([2, 30, 58]), KIMI, "0.5.12.post1", (3, 31, 59)),
        ("sglang", flat([0, 3, 31]), KIMI, None, (0, 3, 31)),
        ("sglang", flat([24, 30, 36]), GPT_OSS, None, (24, 30, 36)),
        ("sglang", flat([1, 17, 33]), GPT_OSS, None, (2, 18, 34)),
        ("sglang", {}, MINIMAX, None, (3, 31, 58)),
        ("sglang", flat([1, 29, 56]), MINIMAX, None, (2, 30, 57)),
        ("vllm", top([0, 3, 16]), LLAMA, None, (0, 3, 16)),
        ("vllm", top([28, 3, 16, 3]), LLAMA, None, (3, 16, 28)),
        ("vllm", top([3, 16, 30]), LLAMA, None, (3, 16, 30)),
        ("vllm", top([]), LLAMA, None, (2, 15, 27)),
        ("vllm", flat([0, 3, 16]), LLAMA, None, (2, 15, 27)),
        ("vllm", {"eagle_config": {"layer_ids": [0, 3, 16]}}, LLAMA, None, (0, 3, 16)),
        ("vllm_v1_runner", flat([0, 3, 16]), LLAMA, None, (0, 3, 16)),
        ("vllm_v1_runner", top([3, 16, 28]) | flat([0, 3, 16]), LLAMA, None, (3, 16, 28)),
        ("llama_cpp", top([16, 0, 3]), LLAMA, None, (16, 0, 3)),
        ("llama_cpp", top(None), LLAMA, None, (2, 15, 27)),
        ("llama_cpp", top([]), LLAMA, None, (2, 15, 27)),
        ("llama_cpp", flat([0, 3, 16]), LLAMA, None, (2, 15, 27)),
        ("llama_cpp", top([24, 30, 36]), GPT_OSS, None, (24, 30, 36)),
        ("llama_cpp", top([3, 3, 16]), LLAMA, None, (3, 3, 16)),
        ("tensorrt_llm", {"eagle3_layers_to_capture": [14, 1, 26, 1]}, LLAMA, None, (2, 15, 27)),
        ("tensorrt_llm", {"eagle3_layers_to_capture": [1, 14, 29]}, LLAMA, None, (2, 15, 30)),
        ("tensorrt_llm", flat([5, 6, 7]) | top([5, 6, 7]), LLAMA, None, (2, 15, 27)),
    ],
)
def test_served_boundaries(name, config, target, version, expected):
    assert served(name, config, target, version) == expected


@pytest.mark.parametrize(
    ("name", "boundaries", "target", "version", "ids"),
    [
        ("sglang", (0, 3, 16), LLAMA, None, (-1, 2, 15)),
        ("sglang", (2, 30, 58), DEEPSEEK, None, (2, 30, 58)),
        ("sglang", (1, 29, 57), DEEPSEEK, None, (29, 57, 1)),  # a leading 1 would have one added
        ("sglang", (3, 31, 59), KIMI, "0.5.12", (2, 30, 58)),
        ("sglang", (24, 30, 36), GPT_OSS, None, (24, 30, 36)),
        ("sglang", (2, 18, 34), GPT_OSS, None, (1, 17, 33)),
        ("vllm", (0, 3, 16), LLAMA, None, (0, 3, 16)),
        ("llama_cpp", (16, 0, 3), LLAMA, None, (16, 0, 3)),
        ("tensorrt_llm", (2, 15, 30), LLAMA, None, (1, 14, 29)),
    ],
)
def test_ids_for_boundaries(name, boundaries, target, version, ids):
    captures = ENGINES[name].ids(boundaries, target, version)
    assert (captures.ids, captures.problem) == (ids, None)


@pytest.mark.parametrize(
    ("name", "boundaries", "target", "version", "reason"),
    [
        ("sglang", (0, 3, 16), LLAMA, "0.5.21", r"cannot capture B\(0\)"),
        ("sglang", (0, 3, 31), KIMI, "0.5.12.post1", r"cannot capture B\(0\)"),
        ("sglang", (3, 16, 30), LLAMA, None, r"cannot capture B\(30\)"),
        ("sglang", (24, 30, 36), GPT_OSS, "0.5.16", r"cannot capture B\(36\)"),
        ("sglang", (2, 15, 27), TargetShape(30, "Gemma3ForCausalLM"), None, "without its residual"),
        ("sglang", (16, 3, 28), LLAMA, None, "low to high"),
        ("sglang", (3, 3, 16), LLAMA, None, "once each"),
        ("sglang", (1,), DEEPSEEK, None, "starts with 1"),
        ("sglang", (), LLAMA, None, "No boundary"),
        ("sglang", (2, 15, "final_normed"), LLAMA, None, "final_normed is none"),
        ("vllm", (16, 3, 28), LLAMA, None, "low to high"),
        ("vllm", (0, 3, 31), KIMI, None, r"cannot capture B\(0\)"),
        ("vllm", (3, 16, 31), LLAMA, None, r"B\(31\) is none"),
        ("llama_cpp", (3, 16, 30), LLAMA, None, "zeros at first"),
        ("llama_cpp", (3, 16), LLAMA, None, "exactly three"),
        ("tensorrt_llm", (0, 3, 16), LLAMA, None, r"B\(1\) to B\(30\).*B\(0\) is none"),
        ("tensorrt_llm", (16, 3, 28), LLAMA, None, "low to high"),
        ("llama_cpp", (2, 14, 21), TargetShape(24, "Qwen2ForCausalLM"), None, "no layer inputs"),
    ],
)
def test_what_a_version_cannot_capture(name, boundaries, target, version, reason):
    captures = ENGINES[name].ids(boundaries, target, version)
    assert captures.ids is None
    assert re.search(reason, captures.problem)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.17", None])
def test_round_trip(name, version):
    """Whatever an engine has no problem with comes back from its own ids."""
    system, served_any = ENGINES[name], False
    for architecture in ("LlamaForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM", "Qwen3ForCausalLM",
                         "MiniMaxM3SparseForConditionalGeneration", "Unheard", None):  # fmt: skip
        target = TargetShape(6, architecture)
        for length in range(1, 5):
            for boundaries in itertools.permutations(range(7), length):
                captures = system.ids(boundaries, target, version)
                if captures.problem is None:
                    served_any = True
                    read = LayerIds(captures.ids, system.key)
                    assert system.boundaries(read, target, version) == boundaries
    assert served_any


@pytest.mark.parametrize(
    ("name", "config", "target", "reason"),
    [
        ("sglang", flat([]), LLAMA, "captures nothing"),
        ("sglang", flat([2, 15, 29]), LLAMA, r"B\(30\)"),
        ("sglang", flat([-1, 2, 30]), KIMI, r"B\(-1\) is none"),
        ("vllm", top([-1, 2, 15]), LLAMA, r"B\(-1\) is none"),
        ("llama_cpp", top([-1, 2, 15]), LLAMA, r"B\(-1\) is none"),
        ("llama_cpp", top([3, 16, 30]), LLAMA, "zeros"),
        ("vllm", top("2,15,27"), LLAMA, "list of integers"),
    ],
)
def test_ids_no_server_can_feed(name, config, target, reason):
    with pytest.raises(InputError, match=reason):
        served(name, config, target)


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("sglang", {}, LayerIds(None, "absent")),
        ("sglang", {"eagle_config": None}, LayerIds(None, "absent")),
        ("sglang", flat(None), LayerIds(None, "null")),
        ("sglang", flat([]), LayerIds((), "empty list")),
        ("sglang", top([2, 15, 27]), LayerIds(None, "absent", ("eagle_aux_hidden_state_layer_ids",))),
        ("vllm", top(None), LayerIds(None, "null")),
        ("vllm", top([]), LayerIds(None, "empty list")),
        ("vllm", flat([1]), LayerIds(None, "absent", ("eagle_config.eagle_aux_hidden_state_layer_ids",))),
        ("vllm", top([2]), LayerIds((2,), "eagle_aux_hidden_state_layer_ids")),
        ("vllm_v1_runner", flat([1]), LayerIds((1,), "eagle_config.eagle_aux_hidden_state_layer_ids")),
        ("llama_cpp", top([]), LayerIds(None, "empty list")),
    ],
)
def test_where_ids_are_found(name, config, expected):
    assert ENGINES[name].read_ids(config) == expected


def test_patch_keeps_the_rest_of_eagle_config():
    config = {"eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 3, 16]}}
    patch = ENGINES["sglang"].patch(config, (0, 3, 16), LLAMA)
    assert (patch.engine, patch.version, patch.ids) == ("sglang", "0.5.23", (-1, 2, 15))
    assert '"eagle_aux_hidden_state_layer_ids": [-1, 2, 15]' in patch.text
    changed = config | json.loads("{" + patch.text + "}")
    assert changed["eagle_config"]["use_aux_hidden_state"] is True
    assert served("sglang", changed, LLAMA) == (0, 3, 16)


def test_patch_for_vllm_names_the_width_where_it_is_not_three():
    patch = ENGINES["vllm"].patch({}, (3, 16), LLAMA)
    assert json.loads("{" + patch.text + "}") == top([3, 16]) | {"num_aux_hidden_states": 2}
    assert "num_aux_hidden_states" not in ENGINES["vllm"].patch({}, (0, 3, 16), LLAMA).text


def test_patch_says_what_is_missing():
    patch = ENGINES["sglang"].patch({}, (0, 3, 31), KIMI, "0.5.12.post1")
    assert patch.ids is None and patch.text == ""
    for words in ("cannot capture B(0)", "B(0) (the embedding output)", "B(3) (the input of block 3",
                  "the rewired checkpoint"):  # fmt: skip
        assert words in patch.note


def test_a_release_that_changes_a_target_s_rule_is_named():
    """Kimi's class: one is always added before 0.5.13, and B(0) comes with 0.5.14."""
    assert ENGINES["sglang"].changes(KIMI) == ("0.5.12", "0.5.13", "0.5.14", "0.5.23")
    assert ENGINES["sglang"].changes(LLAMA) == ("0.5.12", "0.5.22", "0.5.23")
    assert ENGINES["vllm"].changes(KIMI) == ("0.33.0",)


def test_an_argument_is_no_line_of_config_json():
    patch = ENGINES["tensorrt_llm"].patch({"hidden_size": 8}, (2, 15, 27), LLAMA)
    assert patch.argument and json.loads("{" + patch.text + "}") == {"eagle3_layers_to_capture": [1, 14, 26]}


def test_every_patch_says_how_a_row_verifies_it():
    """The three kinds: the embedding, the last state, and what lies between."""
    verify = ENGINES["vllm"].patch({}, (0, 16, 30), LLAMA).verify
    for words in ("B(0): the row equals the target's embedding row", "B(16): ‖row − dump's row‖", "below 2⁻⁷ (0.0078)",
                  "B(30): the final norm and the head"):  # fmt: skip
        assert words in verify
    assert "B(0): the row equals" in ENGINES["sglang"].patch({}, (0, 3, 31), KIMI, "0.5.12.post1").verify


def test_notes_name_the_version_that_was_read():
    for system in ENGINES.values():
        assert system.verified in system.ids((2, 3, 4), LLAMA).note
        assert "9.9.9" in system.ids((2, 3, 4), LLAMA, "9.9.9").note


def test_names():
    assert engine("SGLang") is ENGINES["sglang"]
    assert engine("llama.cpp") is ENGINES["llama_cpp"]
    assert trainer("speculators-old") is TRAINERS["speculators_old"]
    with pytest.raises(InputError, match="did you mean 'sglang'.*known are llama_cpp, sglang, tensorrt_llm, vllm"):
        engine("sglnag")
    with pytest.raises(InputError, match="looks like 0.5.23"):
        engine("sglang").ids((2, 3, 4), LLAMA, "newest")
