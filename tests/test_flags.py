"""What each engine reads of its own arguments, and why each field has its value."""

from __future__ import annotations

import json

import launches
import pytest

from eagle3lib.ecosystems import ENGINES
from eagle3lib.speculation import Speculation, candidates, readings, setting_rows
from eagle3lib.tree_shapes import TreeShape

EAGLE3 = "--speculative-algorithm EAGLE3"


def told(engine: str, text: str, architecture: str | None = None, version: str | None = None) -> Speculation:
    return ENGINES[engine].speculation(text, architecture, version)


def shape(speculation: Speculation) -> tuple[int | None, int | None, int | None]:
    return speculation.steps, speculation.topk, speculation.draft_tokens


def kinds(speculation: Speculation) -> tuple[str, ...]:
    return tuple(speculation.origin(name).kind for name in ("steps", "topk", "draft_tokens"))


@pytest.mark.parametrize(
    ("engine", "text", "expected"),
    [
        ("sglang", launches.SGLANG, (3, 1, 4)),
        ("sglang", launches.SGLANG_PRINTED, (3, 4, 8)),
        ("sglang", launches.SGLANG_DICTIONARY, (3, 1, 4)),
        ("vllm", launches.VLLM, (3, 1, 4)),
        ("vllm_v1_runner", launches.VLLM, (3, 1, 4)),
        ("vllm", launches.VLLM_PRINTED, (3, 1, 4)),
        ("tensorrt_llm", launches.TENSORRT_LLM, (3, 1, 4)),
        ("llama_cpp", launches.LLAMA_CPP, (4, 1, 5)),
    ],
)
def test_every_engine_gives_one_record(engine, text, expected):
    found = told(engine, text)
    assert shape(found) == expected
    assert (found.engine, found.eagle3, found.complete) == (engine, True, True)
    assert {row["setting"] for row in setting_rows(found)} >= {"steps", "topk", "draft_tokens", "method", "model"} - (
        {"model"} if engine == "tensorrt_llm" else set()
    )


def test_an_sglang_command_line_is_read_as_argparse_reads_it():
    found = told("sglang", launches.SGLANG)
    assert (found.model, found.draft_model, found.context) == ("moonshotai/Kimi-K2.5", "drafts/kimi", 65536)
    assert found.origin("steps").said == "--speculative-num-steps 3"
    assert found.others == ("-m", "--tp", "--trust-remote-code", "--mem-fraction")
    abbreviated = told("sglang", "sglang serve --speculative-algo EAGLE3 --speculative-num-s 2 --speculative-eagle 1")
    assert shape(abbreviated) == (2, 1, 3)
    twice = told("sglang", f"{EAGLE3} --speculative-num-steps 5 --speculative-num-steps=2 --speculative-eagle-topk 1")
    assert twice.steps == 2
    assert "last of 2" in twice.origin("steps").said


def test_a_printed_line_of_sglang_is_read_without_running_it():
    found = told("sglang", launches.SGLANG_PRINTED)
    assert (found.model, found.draft_model) == ("/models/Qwen3-4B (new)", "drafts/it's mine")
    assert kinds(found) == ("reported",) * 3
    assert (found.prefix_caching, found.overlap, found.context) == (True, True, None)
    dictionary = told("sglang", launches.SGLANG_DICTIONARY)
    assert (dictionary.context, dictionary.prefix_caching, dictionary.threshold_single) == (32768, False, 1.0)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("LlamaForCausalLM", (5, 4, 8)),
        ("DeepseekV3ForCausalLM", (3, 1, 4)),
        ("GptOssForCausalLM", (3, 1, 4)),
        ("Glm4MoeForCausalLM", (3, 1, 4)),
        ("Qwen3ForCausalLM", (3, 1, 4)),
    ],
)
def test_sglang_chooses_by_architecture_where_nothing_is_stated(architecture, expected):
    found = told("sglang", EAGLE3, architecture)
    assert (shape(found), kinds(found)) == (expected, ("guessed",) * 3)
    assert architecture in found.origin("steps").said
    assert shape(told("sglang", EAGLE3)) == (None, None, None)


def test_topk_one_forces_the_draft_tokens():
    story = f"{EAGLE3} --speculative-num-steps 1 --speculative-num-draft-tokens 16 --speculative-eagle-topk 1"
    found = told("sglang", story)
    assert (shape(found), found.asked_draft_tokens) == ((1, 1, 2), 16)
    assert kinds(found) == ("stated", "stated", "forced")
    assert found.longest_round == 2
    unasked = told("sglang", f"{EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 1")
    assert (shape(unasked), unasked.asked_draft_tokens) == ((3, 1, 4), None)


def test_what_was_never_reported_has_every_reading():
    """16 draft tokens and nothing else: a chain of 15, or a tree anywhere between one level and 15."""
    found = readings(told("sglang", f"{EAGLE3} --speculative-num-draft-tokens 16"))
    assert [shape(r.speculation) for r in found] == [(15, 1, 16), (1, 15, 16), (15, 2, 16)]
    assert [r.speculation.longest_round for r in found] == [16, 2, 16]
    one_step = readings(told("sglang", f"{EAGLE3} --speculative-num-steps 1 --speculative-num-draft-tokens 16"))
    assert [shape(r.speculation) for r in one_step] == [(1, 1, 2), (1, 15, 16)]
    assert one_step[0].speculation.asked_draft_tokens == 16
    assert "at most 2 tokens and verifies 2 nodes" in one_step[0].sentence
    assert "at most 2 tokens and verifies 16 nodes" in one_step[1].sentence
    wide = readings(told("sglang", f"{EAGLE3} --speculative-eagle-topk 4 --speculative-num-draft-tokens 16"))
    assert [shape(r.speculation) for r in wide] == [(2, 4, 16), (15, 4, 16)]
    whole = told("sglang", launches.SGLANG)
    assert [r.speculation for r in readings(whole)] == [whole]
    assert readings(told("sglang", EAGLE3)) == []
    for reading in (*found, *one_step, *wide):
        s = reading.speculation
        assert TreeShape.sglang(s.steps, s.topk, s.draft_tokens).verified == s.draft_tokens


def test_no_narrower_or_shallower_tree_would_hold_a_reading():
    for steps in (1, 2, 3, 7):
        for asked in range(3, 40):
            tree = readings(Speculation(steps, None, asked))[-1].speculation
            assert candidates(tree.topk, steps) >= asked - 1
            assert tree.topk == 2 or candidates(tree.topk - 1, steps) < asked - 1
    for topk in (2, 3, 8):
        for asked in range(3, 40):
            tree = readings(Speculation(None, topk, asked))[0].speculation
            assert candidates(topk, tree.steps) >= asked - 1
            assert tree.steps == 1 or candidates(topk, tree.steps - 1) < asked - 1


@pytest.mark.parametrize(
    ("engine", "text", "rule"),
    [
        ("sglang", EAGLE3, "target only"),
        ("sglang", f"{EAGLE3} --speculative-accept-threshold-acc 0.5", "thresholds"),
        ("sglang", f"{EAGLE3} --speculative-use-rejection-sampling", "rejection"),
        ("sglang", f"{EAGLE3} --speculative-use-block-verification", "block"),
        ("vllm", launches.VLLM, "one-hot draft"),
        ("vllm", '{"method": "eagle3", "draft_sample_method": "probabilistic"}', "rejection"),
        ("vllm", '{"method": "eagle3", "rejection_sample_method": "probabilistic"}', "rejection"),
        ("vllm", '{"method": "eagle3", "rejection_sample_method": "block"}', "block"),
        ("vllm", '{"method": "eagle3", "rejection_sample_method": "fly"}', "relaxed"),
        ("vllm", '{"method": "eagle3", "acceptance_method": "typical_acceptance_sampler"}', "typical"),
        ("tensorrt_llm", launches.TENSORRT_LLM, "one-hot draft"),
        ("tensorrt_llm", launches.TENSORRT_LLM + "  use_rejection_sampling: true\n", "rejection"),
        ("tensorrt_llm", launches.TENSORRT_LLM + "  greedy_sampling: false\n", "typical"),
        ("llama_cpp", launches.LLAMA_CPP, "one-hot draft"),
    ],
)
def test_the_rule_that_the_arguments_imply(engine, text, rule):
    assert told(engine, text).sampled_rule == rule


def test_the_temperature_decides_between_match_and_the_sampled_rule():
    assert told("llama_cpp", launches.LLAMA_CPP).rule == "match"
    warm = told("llama_cpp", launches.LLAMA_CPP.replace("--temp 0", ""))
    assert (warm.temperature, warm.rule, warm.origin("temperature").kind) == (0.8, "one-hot draft", "default")
    assert told("vllm", launches.VLLM).rule is None
    stated = told("vllm", launches.VLLM + """ --override-generation-config '{"temperature": 0.6, "top_k": -1}'""")
    assert (stated.temperature, stated.top_k, stated.rule) == (0.6, None, "one-hot draft")
    preferred = told("sglang", EAGLE3 + """ --preferred-sampling-params '{"temperature": 0}'""")
    assert preferred.rule == "match"


def test_vllm_keys_come_after_a_dot_too_and_its_log_names_the_release():
    text = "vllm serve m --speculative-config.method eagle3 --speculative-config.num_speculative_tokens 5"
    assert shape(told("vllm", text)) == (5, 1, 6)
    assert told("vllm", "vllm serve m --spec-method eagle3 --spec-tokens 2").steps == 2
    log = told("vllm", launches.VLLM_PRINTED, version="0.11.0")
    assert (log.version, log.context, log.quantisation, log.dtype) == ("0.19.1", 8192, "fp8", "torch.bfloat16")
    arguments = "INFO [utils.py:1] non-default args: {'model': 'm', 'speculative_config': {'method': 'eagle3',"
    assert told("vllm", arguments + " 'num_speculative_tokens': 4}, 'max_model_len': 4096}").steps == 4
    assert not told("vllm", "vllm non-default args: {'model': 'm', 'max_model_len': 4096}").speculates
    assert told("vllm", '{"model": "a/EAGLE3-x", "num_speculative_tokens": 3}').origin("method").kind == "guessed"
    assert told("vllm", '{"model": "EAGLE3/eagle-x", "num_speculative_tokens": 3}').method == "eagle"
    tree = {"method": "eagle3", "num_speculative_tokens": 3, "speculative_token_tree": "[(0,), (0, 0), (0, 1), (1,)]"}
    assert shape(told("vllm", json.dumps(tree))) == (2, 2, 5)


def test_tensorrt_llm_trees():
    dynamic = launches.TENSORRT_LLM + "  use_dynamic_tree: true\n  dynamic_tree_max_topK: 4\n"
    assert shape(told("tensorrt_llm", dynamic)) == (3, 4, 13)
    assert told("tensorrt_llm", dynamic + "  max_total_draft_tokens: 9\n").draft_tokens == 10
    fixed = told("tensorrt_llm", launches.TENSORRT_LLM + "  eagle_choices: [[0], [0, 0], [1], [0]]\n")
    assert (shape(fixed), fixed.origin("steps").kind) == ((2, 2, 4), "forced")
    assert told("tensorrt_llm", launches.TENSORRT_LLM).prefix_caching is False


def test_llama_cpp_of_both_names():
    old = told("llama_cpp", "./llama-server -m a.Q4_K_M.gguf -md d.gguf --draft-max 8")
    assert (old.steps, old.eagle3, old.quantisation) == (8, None, "Q4_K_M")
    assert "0.75" in old.varying[0]
    assert told("llama_cpp", launches.LLAMA_CPP).varying == ()
    assert "0.75" in told("llama_cpp", launches.LLAMA_CPP, version="b9222").varying[0]
    assert told("llama_cpp", launches.LLAMA_CPP, version="b9235").varying == ()
    assert told("llama_cpp", "llama-server -m a -md b --spec-type draft-eagle3").origin("steps").kind == "default"
    both = told("llama_cpp", "llama-server -m a -md b --spec-type ngram-mod --spec-type draft-eagle3")
    assert (both.eagle3, both.method, "ngram-mod drafts" in both.varying[0]) == (True, "ngram-mod,draft-eagle3", True)
    assert not told("llama_cpp", launches.LLAMA_CPP.replace("n-max 4", "n-max 0")).speculates
    assert not told("llama_cpp", "llama-server -m a -md b --spec-type none").speculates


def test_the_release_stands_in_an_image_too():
    text = f"docker run -e A=1 --gpus all lmsysorg/sglang:v0.5.9-cu130 python3 -m sglang.launch_server {EAGLE3}"
    assert told("sglang", text).version == "0.5.9-cu130"
    assert told("sglang", EAGLE3, version="0.5.12").version == "0.5.12"
    container = told(
        "vllm", "docker run -e A=1 vllm/vllm-openai:v0.11.0 vllm serve org/m --spec-tokens 2 --spec-method eagle3"
    )
    assert (container.version, container.model, container.steps) == ("0.11.0", "org/m", 2)
