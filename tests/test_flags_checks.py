"""A fault in a server's arguments is named with the line to change, and healthy arguments raise none."""

from __future__ import annotations

import launches
import pytest
from bundled import CASE

from eagle3lib import load_case
from eagle3lib.checks.flags import check_flags
from eagle3lib.ecosystems import ENGINES
from eagle3lib.findings import Finding, Severity

FAULT, RISK, NOTE, OK = Severity.FAULT, Severity.RISK, Severity.NOTE, Severity.OK
EAGLE3 = "--speculative-algorithm EAGLE3"
CHAIN = f"{EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
ONE_STEP = f"{EAGLE3} --speculative-num-steps 1 --speculative-num-draft-tokens 16"


def checked(engine: str, text: str, architecture: str | None = None, **known: int) -> dict[str, Finding]:
    told = ENGINES[engine].speculation(text, architecture, known.pop("version", None))
    findings = check_flags(told, ENGINES[engine], **known)
    assert len({f.code for f in findings}) == len(findings)
    for finding in findings:
        assert finding.meaning.endswith(".") and "None" not in finding.title + finding.meaning + finding.remedy
        assert finding.remedy or finding.severity not in (FAULT, RISK)
    return {f.code: f for f in findings}


def found(engine: str, text: str, code: str, *parts: str, architecture: str | None = None, **known: int) -> Finding:
    """The finding of that code, whose title, meaning and remedy hold the parts."""
    finding = checked(engine, text, architecture, **known)[code]
    for part in parts:
        assert part in f"{finding.title} {finding.meaning} {finding.remedy}"
    return finding


@pytest.mark.parametrize(("engine", "text"), [(e, t) for e, texts in launches.HEALTHY.items() for t in texts])
def test_healthy_arguments_raise_neither_fault_nor_risk(engine, text):
    findings = checked(engine, text)
    assert {f.severity for f in findings.values()} <= {OK, NOTE}
    assert findings["served.flags"].severity == OK


def test_one_step_caps_a_round_at_two_tokens_whatever_was_asked():
    story = found(
        "sglang",
        f"{ONE_STEP} --speculative-eagle-topk 1",
        "served.one_step",
        "at most 2 tokens, whatever the 16 draft tokens say",
        "one drafted token, two nodes with the root",
        "--speculative-num-steps 3",
    )
    assert story.severity == FAULT
    assert story.evidence["draft_tokens"] == 2
    found(
        "sglang", f"{ONE_STEP} --speculative-eagle-topk 1", "served.draft_tokens_forced",
        "16 draft tokens asked for, 2 verified", "--speculative-num-draft-tokens 2", "--speculative-eagle-topk 15",
    )  # fmt: skip
    siblings = found("sglang", f"{ONE_STEP} --speculative-eagle-topk 15", "served.one_step", "15 siblings")
    assert siblings.severity == FAULT
    assert found("vllm", launches.VLLM.replace(": 3", ": 1"), "served.one_step", '"num_speculative_tokens": 3')
    assert checked("vllm", launches.VLLM.replace(": 3", ": 1"))["served.one_step"].severity == RISK
    assert "served.one_step" not in checked("sglang", CHAIN)


def test_a_shape_that_was_not_reported_is_shown_in_both_readings():
    unknown = found(
        "sglang", ONE_STEP, "served.shape_unknown", "topk not known", "A chain (topk 1, draft_tokens 2)",
        "A tree (topk 15)", "--speculative-eagle-topk N",
    )  # fmt: skip
    assert (unknown.severity, len(unknown.evidence["readings"])) == (NOTE, 2)
    found("sglang", ONE_STEP, "served.one_step", "At topk 1 that is one drafted token", "otherwise up to topk siblings")
    found("sglang", EAGLE3, "served.shape_unknown", "steps and topk and draft_tokens", "the target's architecture")
    found("vllm", '{"method": "eagle3", "model": "d"}', "served.shape_unknown", "the draft's config.json gives it")


def test_draft_tokens_above_what_the_tree_holds():
    tree = f"{EAGLE3} --speculative-num-steps 2 --speculative-eagle-topk 2 --speculative-num-draft-tokens"
    overfull = found(
        "sglang", f"{tree} 8", "served.tree_overfull", "8 draft tokens are more than the tree holds: 6 nodes",
        "--speculative-num-draft-tokens 7",
    )  # fmt: skip
    assert overfull.severity == FAULT
    assert "served.tree_overfull" not in checked("sglang", f"{tree} 7")
    dynamic = launches.TENSORRT_LLM + "  dynamic_tree_max_topK: 2\n  max_total_draft_tokens: 7\n"
    assert found("tensorrt_llm", dynamic, "served.tree_overfull", "6 nodes").severity == FAULT
    wasted = found("sglang", f"{tree.replace('steps 2', 'steps 5')} 4", "served.steps_wasted", "at most 4 tokens")
    assert wasted.severity == RISK


@pytest.mark.parametrize(
    ("engine", "text", "said"),
    [
        ("sglang", f"SGLANG_SIMULATE_ACC_LEN=3.5 python -m sglang.launch_server {CHAIN}", "_ACC_LEN=3.5"),
        ("sglang", f"export SIMULATE_ACC_LEN=3; sglang serve {CHAIN}", "SIMULATE_ACC_LEN=3)"),
        ("sglang", f"docker run -e A=1 -e SGLANG_SIMULATE_ACC_LEN=2 img {CHAIN}", "SGLANG_SIMULATE_ACC_LEN=2"),
        ("vllm", '{"method": "eagle3", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic",'
         ' "synthetic_acceptance_length": 2.5}', "synthetic"),
        ("tensorrt_llm", "export TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS=2\n" + launches.TENSORRT_LLM, "TOKENS=2"),
        ("tensorrt_llm", launches.TENSORRT_LLM + "env_overrides:\n  TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS: 1.5\n",
         "TOKENS=1.5"),
        ("llama_cpp", launches.LLAMA_CPP + " --spec-synth-len 2.5", "--spec-synth-len 2.5"),
        ("llama_cpp", "LLAMA_ARG_SPEC_SYNTH_RATES=0.8,0.5 " + launches.LLAMA_CPP, "LLAMA_ARG_SPEC_SYNTH_RATES"),
    ],
)  # fmt: skip
def test_simulated_acceptance_makes_every_number_up(engine, text, said):
    assert found(engine, text, "served.simulated", said, "made up").severity == FAULT
    assert "served.simulated" not in checked("sglang", f"SGLANG_SIMULATE_ACC_LEN=-1 sglang serve {CHAIN}")


def test_a_draft_with_a_shorter_context_than_its_server():
    sglang = f"{CHAIN} --context-length 32768"
    found("sglang", sglang, "served.draft_context", "32,768", "2,048", "max_position_embeddings", draft_positions=2048)
    assert "served.draft_context" not in checked("sglang", sglang, draft_positions=32768)
    short = launches.VLLM.replace('": 3', '": 3, "max_model_len": 2048')
    assert found("vllm", short, "served.draft_context", '"max_model_len": 32768').severity == RISK
    old = checked("vllm", launches.VLLM, version="0.20.0", draft_positions=2048)
    new = checked("vllm", launches.VLLM, draft_positions=2048)
    assert (old["served.draft_context"].severity, new["served.draft_context"].severity) == (FAULT, NOTE)


def test_a_guessed_default_is_a_note_with_the_line_that_states_it():
    guessed = found(
        "sglang", EAGLE3, "served.guessed", "steps 5, topk 4, draft_tokens 8",
        "--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8",
        architecture="LlamaForCausalLM",
    )  # fmt: skip
    assert guessed.severity == NOTE
    assert "served.guessed" not in checked("sglang", CHAIN, "LlamaForCausalLM")


def test_rules_that_are_lossy():
    low = f"{CHAIN} --speculative-accept-threshold-single 0.3"
    found("sglang", low, "served.lossy_rule", "0.3", "--speculative-accept-threshold-single 1.0")
    assert checked("sglang", low)["served.lossy_rule"].severity == RISK
    assert "served.lossy_rule" not in checked("sglang", low + """ --preferred-sampling-params '{"temperature": 0}'""")
    typical = launches.TENSORRT_LLM + "  greedy_sampling: false\n  posterior_threshold: 0.1\n"
    found("tensorrt_llm", typical, "served.lossy_rule", "greedy_sampling: true")
    assert "served.lossy_rule" not in checked("sglang", CHAIN)


def test_the_rule_is_a_note():
    found("llama_cpp", launches.LLAMA_CPP, "served.rule", "temperature 0 is by match")
    found("sglang", CHAIN, "served.rule", "by match at temperature 0, by target only above it")
    found("llama_cpp", launches.LLAMA_CPP.replace("--temp 0", ""), "served.rule", "0.8 where they state none")


def test_steps_that_the_case_states_otherwise():
    disagree = found("sglang", CHAIN, "served.steps_disagree", "served.steps = 5", "told 3", served_steps=5)
    assert disagree.severity == RISK
    assert "served.steps_disagree" not in checked("sglang", CHAIN, served_steps=3)


def test_a_server_that_does_not_draft_as_eagle3_or_at_all():
    assert found("sglang", "sglang serve --model m", "served.no_speculation", "EAGLE3").severity == FAULT
    assert list(checked("vllm", "vllm serve m")) == ["served.no_speculation"]
    assert list(checked("tensorrt_llm", "max_batch_size: 4")) == ["served.no_speculation"]
    assert list(checked("llama_cpp", "llama-server -m a.gguf")) == ["served.no_speculation"]
    other = found("sglang", CHAIN.replace("EAGLE3", "EAGLE"), "served.method", "EAGLE, which is not EAGLE-3")
    assert other.severity == FAULT
    assert found("llama_cpp", "llama-server -m a -md b", "served.method", "Cannot tell").severity == NOTE


@pytest.mark.parametrize("model", ["RedHatAI/Qwen3-8B-speculator.eagle3", "./out/checkpoint_best", "$DRAFT"])
def test_a_draft_that_vllm_serves_by_itself_is_no_fault(model):
    """A folder in speculators' form is served without --speculative-config, as its documentation has it."""
    read = ENGINES["vllm"].speculation(f"vllm serve {model} --port 8000")
    found = check_flags(read, ENGINES["vllm"])
    assert not {f.severity for f in found} & {FAULT, RISK}
    assert "served.shape_unknown" in {f.code for f in found}
    plain = ENGINES["vllm"].speculation("vllm serve Qwen/Qwen3-8B")
    assert [f.code for f in check_flags(plain, ENGINES["vllm"])] == ["served.no_speculation"]


def test_what_else_moves_the_numbers():
    found("sglang", f"{CHAIN} --speculative-adaptive", "served.draft_length_varies", "--speculative-adaptive")
    found("llama_cpp", launches.LLAMA_CPP + " --draft-p-min 0.6", "served.draft_length_varies", "below 0.6")
    found(
        "tensorrt_llm",
        launches.TENSORRT_LLM + "  max_concurrency: 4\n",
        "served.draft_length_varies",
        "max_concurrency",
    )
    sa = launches.TENSORRT_LLM + "  use_sa_spec: true\n"
    found("tensorrt_llm", sa, "served.draft_length_varies", "use_sa_spec")
    found("vllm", launches.VLLM + " -q fp8", "served.quantised", "-q fp8")
    embeds = found("vllm", launches.VLLM + " --enable-prompt-embeds", "served.hazard", "vllm#57356")
    assert embeds.severity == RISK


@pytest.mark.parametrize("engine", ["sglang", "vllm", "tensorrt_llm", "llama_cpp"])
def test_the_lines_of_a_remedy_are_read_back_as_what_they_set(engine):
    frames = {
        "sglang": "{eagle3} {steps} --speculative-eagle-topk 1",
        "vllm": "{{{eagle3}, {steps}}}",
        "tensorrt_llm": "speculative_config:\n  {eagle3}\n  {steps}\n",
        "llama_cpp": "llama-server -m a -md b {eagle3} {steps}",
    }
    flags = ENGINES[engine].flags
    text = frames[engine].format(eagle3=flags.line("eagle3", True), steps=flags.line("steps", 6))
    told = ENGINES[engine].speculation(text)
    assert (told.steps, told.draft_tokens, told.eagle3) == (6, 7, True)


def test_the_text_is_a_field_of_the_case(tmp_path):
    draft = load_case(CASE).draft.path
    served = f"[served]\nengine = \"SGLang\"\nlaunch = '''{launches.SGLANG}'''\n"
    (tmp_path / "case.toml").write_text(f'[draft]\npath = "{draft}"\n{served}', encoding="utf-8")
    served = load_case(tmp_path / "case.toml").served
    assert ENGINES["sglang"].speculation(served.launch).steps == 3
    assert load_case(CASE).served.launch is None
