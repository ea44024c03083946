"""Texts that are no launch of the engine, or mean harm: one sentence each, at once."""

from __future__ import annotations

import time

import launches
import pytest
from complaints import complaint
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lib.checks.flags import check_flags
from eagle3lib.ecosystems import ENGINES
from eagle3lib.errors import InputError
from eagle3lib.speculation import setting_rows

EAGLE3 = "--speculative-algorithm EAGLE3"
TENSORRT = "speculative_config:\n  decoding_type: Eagle3\n"
ENGINE_NAMES = sorted(launches.HEALTHY)


def refused(engine: str, text: str, *parts: str) -> None:
    began = time.perf_counter()
    complaint(lambda: ENGINES[engine].speculation(text), "served.launch", *parts)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize(
    ("text", "part"), [("", "found nothing"), (" \n\t", "found nothing"), ("x" * 2**20, "1,048,576")]
)
def test_nothing_and_a_megabyte(engine, text, part):
    refused(engine, text, part)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_the_text_of_another_engine(engine):
    others = {name: texts for name, texts in launches.HEALTHY.items() if name != engine}
    for texts in others.values():
        complaint(lambda t=texts[0]: ENGINES[engine].speculation(t), "served.launch")
    refused(engine, "the server runs fine")
    refused(engine, "\x00\x01\x02")


@pytest.mark.parametrize(
    ("engine", "text", "part"),
    [
        ("sglang", f"{EAGLE3} --speculative-draft-model-path 'a", "no closing quotation"),
        ("sglang", f"{EAGLE3} --speculative-num-steps -3", "from 1 to 1024"),
        ("sglang", f"{EAGLE3} --speculative-num-steps three", "steps three"),
        ("sglang", f"{EAGLE3} --speculative-num-steps $STEPS", "$STEPS"),
        ("sglang", f"{EAGLE3} --speculative-num-steps 2.5", "2.5"),
        ("sglang", f"{EAGLE3} --speculative-num-steps", "Expected a value after --speculative-num-steps"),
        ("sglang", f"{EAGLE3} --speculative-num-steps " + "9" * 20_000, "from 1 to 1024"),
        ("sglang", f"{EAGLE3} --speculative-eagle-topk 1000000000", "from 1 to 1024"),
        ("sglang", f"{EAGLE3} --speculative-accept-threshold-single nan", "at most 1"),
        ("sglang", f"{EAGLE3} --preferred-sampling-params temperature=0", "not JSON"),
        ("sglang", "--speculative-algorithm " + "E" * 5000, "5,000 characters"),
        ("sglang", launches.SGLANG_PRINTED[:500], "is cut"),
        ("sglang", launches.SGLANG_DICTIONARY[:200], "is cut"),
        ("sglang", "ServerArgs(speculative_algorithm='EAGLE3', speculative_num_steps='__import__(1)')", "1024"),
        ("sglang", "ServerArgs(speculative_algorithm='EAGLE3', speculative_num_steps=" + "[" * 9000 + ")", "is cut"),
        ("vllm", '{"method": "eagle3", "num_speculative_tokens": 0}', "from 1 to 1024"),
        ("vllm", '{"method": "eagle3", "num_speculative_tokens": true}', "whole number"),
        ("vllm", '{"method": "eagle3", "num_speculative_tokens": 1e999}', "whole number"),
        ("vllm", '{"method": "eagle3", "num_speculative_tokens": 3', "not JSON"),
        ("vllm", "vllm serve m --speculative-config {method: eagle3}", "not JSON"),
        ("vllm", "vllm serve m --speculative-config '[1, 2]'", "JSON object"),
        ("vllm", '{"method": ' + "[" * 50_000, "not JSON"),
        ("vllm", '{"method": "eagle3", "speculative_token_tree": "' + "-" * 9000 + '1"}', "paths"),
        ("vllm", launches.VLLM.replace("32K", "32G"), "32G"),
        ("tensorrt_llm", TENSORRT + "  max_draft_len: [1, 2]\n", "whole number"),
        ("tensorrt_llm", TENSORRT + "  max_draft_len: 3\n bad", "not YAML, line"),
        ("tensorrt_llm", "speculative_config: Eagle3\n", "decoding_type"),
        ("tensorrt_llm", "speculative_config: {max_draft_len: 3}\n", "decoding_type"),
        ("tensorrt_llm", "a: &a [x, x]\nspeculative_config: {decoding_type: *a}\n", "alias"),
        ("tensorrt_llm", "speculative_config: " + "[" * 50_000, "nested too deeply"),
        ("tensorrt_llm", "speculative_config: !!python/object/apply:os.system ['true']", "not YAML"),
        ("tensorrt_llm", "trtllm-serve m --extra_llm_api_options options.yml", "YAML"),
        ("tensorrt_llm", TENSORRT + "  max_draft_len: " + "9" * 9000 + "\n", "served.launch"),
        ("llama_cpp", launches.LLAMA_CPP.replace("n-max 4", "n-max -1"), "from 0 to 1024"),
        ("llama_cpp", launches.LLAMA_CPP.replace("n-max 4", "n-max=4"), "after a space"),
        ("llama_cpp", launches.LLAMA_CPP + " --temp -0.5", "at least 0"),
        ("llama_cpp", launches.LLAMA_CPP + " --draft-p-min 1.5", "at most 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(engine, text, part):
    refused(engine, text, part)


def test_unknown_arguments_are_kept_and_mean_nothing():
    odd = f"sglang serve {EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 1 --frobnicate -7 --new=<b>x</b>"
    found = ENGINES["sglang"].speculation(odd)
    assert (found.steps, found.others) == (3, ("--frobnicate", "--new"))


@settings(max_examples=150, deadline=None)
@given(
    engine=st.sampled_from(ENGINE_NAMES),
    at=st.floats(0, 1),
    length=st.integers(0, 30),
    noise=st.text(alphabet="'\"{}[]()=,:\\- \n\t*&#;|0129aE_$\x00é", max_size=12),
    which=st.integers(0, 2),
)
def test_a_damaged_text_is_read_or_refused_and_never_breaks(engine, at, length, noise, which):
    texts = launches.HEALTHY[engine]
    text = texts[which % len(texts)]
    cut = int(at * len(text))
    damaged = text[:cut] + noise + text[cut + length :]
    try:
        told = ENGINES[engine].speculation(damaged, "LlamaForCausalLM")
    except InputError as error:
        assert "served.launch" in str(error) and "\n" not in str(error) and len(str(error)) < 600
        return
    setting_rows(told)
    check_flags(told, ENGINES[engine], served_steps=3, draft_positions=2048)
