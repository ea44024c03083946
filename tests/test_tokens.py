"""The recorded tokens: supervision, mask edges, loops, and the prefix against a server's request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toys
from bundled import CASE
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lib import InputError, load_case
from eagle3lib.checks.tokens import check_prefix, check_tokens
from eagle3lib.investigation import Investigation
from eagle3lib.responses import GENERATION_PROMPTS, loops, read_responses
from eagle3lib.sample import Sample
from eagle3lib.token_prefix import compare_prefix, read_token_ids


@pytest.fixture(scope="module")
def inv() -> Investigation:
    return Investigation(load_case(CASE), "cpu")


@pytest.fixture(scope="module")
def dumps(inv: Investigation) -> dict[str, list[Sample]]:
    """Every bundled dump's samples with one state."""
    return {section.name: list(inv.open(section, [0])) for section in inv.case.dumps}


def codes(inv: Investigation, samples: list[Sample]) -> dict[str, str]:
    return {f.code: str(f.severity) for f in check_tokens("dump", read_responses(inv.target, iter(samples)))}


@pytest.mark.parametrize("name", ["five", "every", "listed", "sampled"])
def test_healthy_dumps_are_left_alone(name: str, inv: Investigation, dumps) -> None:
    found = codes(inv, dumps[name])
    assert set(found) == {"dump.supervised", "dump.mask_edge", "dump.degenerate_text"}
    assert not {"fault", "risk"} & set(found.values())


def test_turns_are_found_and_counted(target) -> None:
    """Two turns of 11 tokens each in every toy sample."""
    found = read_responses(target, [toys.make_sample(seed) for seed in range(3)])
    assert (found.samples, found.turns, found.supervised) == (3, 6, 66)
    assert found.turn_lengths == [11] * 6
    assert found.unread_edges == 6
    assert "dump.mask_edge_unknown" in {f.code for f in check_tokens("toy", found)}


@pytest.mark.parametrize(("by", "word"), [(1, "late"), (-1, "early")])
def test_shifted_mask_is_named(by: int, word: str, inv: Investigation, dumps) -> None:
    samples = [replace(s, loss_mask=s.loss_mask.roll(by)) for s in dumps["every"]]
    found = {f.code: f for f in check_tokens("every", read_responses(inv.target, samples))}
    finding = found["dump.mask_shifted"]
    assert str(finding.severity) == "fault"
    assert word in finding.title


def test_empty_mask_is_named(inv: Investigation, dumps) -> None:
    bare = [replace(s, loss_mask=torch.zeros_like(s.loss_mask)) for s in dumps["every"]]
    assert codes(inv, bare) == {"dump.mask_empty": "fault"}
    assert codes(inv, [bare[0], *dumps["every"][1:]])["dump.mask_empty"] == "risk"


def test_foreign_ids_are_named(inv: Investigation, dumps) -> None:
    first = dumps["every"][0]
    beyond = first.token_ids.clone()
    beyond[5] = inv.target.vocab_size
    assert codes(inv, [replace(first, token_ids=beyond)])["dump.ids_outside_vocabulary"] == "fault"


def test_degenerate_answers_are_counted(inv: Investigation, dumps) -> None:
    def looped(sample: Sample) -> Sample:
        begin = sample.turns[0].begin
        tail = sample.token_ids[begin : begin + 9].repeat(99)[: len(sample.token_ids) - begin]
        return replace(sample, token_ids=torch.cat([sample.token_ids[:begin], tail]))

    def short(sample: Sample) -> Sample:
        mask = torch.zeros_like(sample.loss_mask)
        mask[sample.turns[0].begin] = True
        return replace(sample, loss_mask=mask)

    samples = dumps["every"]
    assert codes(inv, samples)["dump.degenerate_text"] == "ok"
    assert codes(inv, [looped(samples[0]), *samples[1:]])["dump.degenerate_text"] == "note"
    assert codes(inv, [looped(s) for s in samples])["dump.degenerate_text"] == "risk"
    found = read_responses(inv.target, [short(s) for s in samples])
    assert (found.one_token, found.turns) == (3, 3)
    assert codes(inv, [short(s) for s in samples])["dump.degenerate_text"] == "risk"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(3, 6)
)
def test_whatever_is_repeated_is_a_loop(before: list[int], unit: list[int], times: int) -> None:
    response = np.array(before + unit * max(times, -(-16 // len(unit))))
    assert loops(response)
    assert loops(np.append(response, [7, 8]))  # closing tokens
    assert not loops(np.arange(len(response)))


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>assistant\n",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<start_of_turn>model\n",
        "<|im_assistant|>assistant<|im_middle|>",
    ],
)
def test_generation_prompts_are_known(text: str) -> None:
    assert GENERATION_PROMPTS.fullmatch(text)
    assert not GENERATION_PROMPTS.search(text.replace("assistant", "user").replace("model", "user"))


def encode(inv: Investigation, *texts: str) -> list[int]:
    table = {text: i for i, text in reversed(list(enumerate(inv.target.token_texts)))}
    return [table[text] for text in texts]


def test_prefix_differences_are_named(inv: Investigation, dumps) -> None:
    ours = dumps["every"][0].token_ids.tolist()
    begin = dumps["every"][0].turns[0].begin
    prompt = ours[:begin]
    user = len(prompt) - next(i for i, t in enumerate(reversed(prompt)) if inv.target.text(t) == "user") - 2
    bos = encode(inv, "<|endoftext|>")
    think = encode(inv, "<", "think", ">", "\n")
    assert inv.target.text(prompt[user]) == "<|im_start|>"
    cases = {
        "BOS": (ours, bos + prompt),
        "thinking": (ours, prompt + think + ours[begin:]),
        "inside the system prompt": (ours, prompt[:4] + encode(inv, " not") + prompt[4:]),
        "Only one side has a system prompt": (prompt, prompt[user:]),
    }
    for word, (mine, other) in cases.items():
        found = compare_prefix(torch.tensor(mine), other, inv.target)
        assert word in found.suggests, (word, found)
        assert check_prefix(found).code == "dump.prefix_differs"
    difference = compare_prefix(ours, prompt[:4] + encode(inv, " not") + prompt[4:], inv.target)
    assert difference.at == 4
    assert " not" in difference.theirs


def test_the_dump_s_own_prompt_agrees(inv: Investigation, dumps) -> None:
    sample = dumps["every"][0]
    found = compare_prefix(sample.token_ids, sample.token_ids[:30].tolist(), inv.target)
    assert found.at is None
    assert check_prefix(found).code == "dump.prefix"


def test_other_merges_of_the_same_text_are_told(inv: Investigation) -> None:
    ours = encode(inv, "The", " stars", " shine", " on", " the", " moon")
    theirs = encode(inv, "The", " st", "ars", " shine", " on", " the", " moon")
    assert "tokenizer" in compare_prefix(ours, theirs, inv.target).suggests


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2, 3]",
        "[[1, 2, 3]]",
        '{"input_ids": [1, 2, 3]}',
        '{"prompt": [1, 2, 3]}',
        "1 2 3\n",
        "1,2,3",
        "\ufeff[1, 2, 3]",
    ],
)
def test_ids_are_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text(text)
    assert read_token_ids(tmp_path / "ids") == [1, 2, 3]


def test_a_request_of_one_token_does_not_tell_of_a_bos_token() -> None:
    assert "BOS" not in compare_prefix([1, 2, 3], [9]).suggests
    assert "BOS" in compare_prefix([1, 2, 3], [9, 1, 2, 3]).suggests


@pytest.mark.parametrize(
    "text",
    [
        "",
        "one two",
        '{"prompt": "Hello"}',
        "[1, 2.5]",
        "[true]",
        "null",
        '["a"]',
        "[]",
        pytest.param("[" + "9" * 5000 + "]", id="long number"),
    ],
)
def test_what_are_no_ids_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text(text)
    with pytest.raises(InputError, match="Expected token ids"):
        read_token_ids(tmp_path / "ids")
    with pytest.raises(InputError, match="cannot be read"):
        read_token_ids(tmp_path / "none")
