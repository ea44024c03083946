"""Truncated distributions: against transformers' own warpers, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import toys
from torch import Tensor
from torch.testing import assert_close

from eagle3lib import sampling as room
from eagle3lib.ecosystems import engine
from eagle3lib.sampling import Sampling, chunked_distribution, distribution
from eagle3lib.target import load_target

ROWS, VOCABULARY = 40, 300
SAMPLINGS = [
    Sampling(1.0),
    Sampling(0.6),
    Sampling(1.7),
    Sampling(0.8, top_k=1),
    Sampling(0.8, top_k=7),
    Sampling(0.8, top_p=0.9),
    Sampling(1.0, top_p=0.05),
    Sampling(1.3, top_k=20, top_p=0.7),
    Sampling(0.5, top_k=1000, top_p=0.99),
]


@pytest.fixture(scope="module")
def logits() -> Tensor:
    """Rows from flat to peaked."""
    scale = torch.linspace(0.01, 6, ROWS)[:, None]
    return scale * torch.randn(ROWS, VOCABULARY, generator=toys.generator(1))


def warped(logits: Tensor, sampling: Sampling) -> Tensor:
    """log p of the whole rows by transformers' warpers, in the order in which it applies them."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    cuts = [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    cuts += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    temperature = TemperatureLogitsWarper(sampling.temperature)
    for warper in [*cuts, temperature] if sampling.temperature_last else [temperature, *cuts]:
        logits = warper(None, logits)
    return logits.log_softmax(-1)


def everything(rows: int) -> Tensor:
    """Every token of every row."""
    return torch.arange(VOCABULARY).expand(rows, -1)


def in_chunks(logits: Tensor, size: int):
    """A reader of the same logits, a few columns at a time, which counts how often it reads whole rows."""
    calls: list[int] = []

    def chunks(rows: Tensor) -> Iterator[tuple[int, Tensor]]:
        calls.append(len(rows))
        for begin in range(0, logits.shape[1], size):
            yield begin, logits[rows, begin : begin + size]

    return chunks, calls


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_whole_rows_agree_with_transformers(logits, sampling, last):
    """log p of every token, and the entropy, whether the temperature comes first or last; 1e-5."""
    sampling = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, temperature_last=last)
    expected = warped(logits, sampling)
    found = distribution(logits, everything(ROWS), sampling)
    assert torch.equal(found.logprob.isinf(), expected.isinf())
    known = expected.isfinite()
    assert_close(found.logprob[known], expected[known], rtol=1e-5, atol=1e-5)
    entropy = -(expected.exp() * expected.masked_fill(~known, 0)).sum(-1)
    assert_close(found.entropy, entropy, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("largest", [4, 64, 1024])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_chunks_agree_with_whole_rows(logits, sampling, largest, monkeypatch):
    """However few of the largest logits are kept; flat rows are then read again, whole, a few at a time."""
    monkeypatch.setattr(room, "LARGEST", largest)
    monkeypatch.setattr(room, "WHOLE_ROWS", 3 * VOCABULARY)
    chunks, calls = in_chunks(logits, 64)
    found = chunked_distribution(chunks, ROWS, VOCABULARY, everything(ROWS), sampling)
    expected = distribution(logits, everything(ROWS), sampling)
    assert torch.equal(found.logprob.isinf(), expected.logprob.isinf())
    known = expected.logprob.isfinite()
    assert_close(found.logprob[known], expected.logprob[known], rtol=1e-5, atol=1e-5)
    assert_close(found.entropy, expected.entropy, rtol=1e-4, atol=1e-4)
    assert max(calls[1:], default=0) <= 3
    assert len(calls) == 1 or largest < VOCABULARY, "nothing is read twice where one pass settles it"


def test_tokens_that_tie_at_a_limit_are_all_kept():
    """Two of three equal tokens cannot be told from the third: k = 2 keeps three, in chunks too."""
    tied = torch.tensor([[3.0, 3.0, 3.0, 0.0, -1.0]])
    ids = torch.arange(5)[None]
    for found in (
        distribution(tied, ids, Sampling(1.0, top_k=2)),
        chunked_distribution(in_chunks(tied, 2)[0], 1, 5, ids, Sampling(1.0, top_k=2)),
        distribution(tied, ids, Sampling(1.0, top_p=0.4)),
    ):
        assert_close(found.logprob[0].exp(), torch.tensor([1, 1, 1, 0, 0]) / 3)


def test_an_absent_id_has_no_probability(logits):
    """-1 stands for a token outside the draft vocabulary."""
    assert distribution(logits[:1], torch.tensor([[-1]]), Sampling(1.0)).logprob.item() == -torch.inf


def test_greedy_has_no_probabilities(logits):
    """Asking for them is a slip."""
    with pytest.raises(ValueError, match="greedy"):
        distribution(logits[:1], torch.tensor([[0]]), Sampling(0.0))


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"temperature": 1, "top_k": 0}, {"temperature": 1, "top_p": 0}])
def test_settings_that_mean_nothing_are_refused(wrong):
    """No guess what -1 may mean to some engine."""
    with pytest.raises(ValueError, match="are needed"):
        Sampling(**wrong)


def test_a_target_s_distribution_is_that_of_its_whole_logits(tmp_path):
    """Norm and head of a toy target, the head read in chunks."""
    target = load_target(toys.write_target(tmp_path / "target"))
    normed = target.final_norm(torch.randn(9, toys.HIDDEN, generator=toys.generator(4)))
    logits = normed @ target.head_rows(torch.arange(toys.VOCABULARY)).T
    ids = torch.arange(toys.VOCABULARY).expand(9, -1)
    for sampling in (Sampling(0.8), Sampling(0.8, 10, 0.9)):
        found = target.distribution(normed, ids, sampling)
        expected = distribution(logits, ids, sampling)
        assert torch.equal(found.logprob.isinf(), expected.logprob.isinf())
        known = expected.logprob.isfinite()
        assert_close(found.logprob[known], expected.logprob[known], rtol=1e-5, atol=1e-5)


def test_engines_say_how_they_draw():
    """llama.cpp cuts before the temperature, SGLang and vLLM after it; drafts are drawn without a cut."""
    asked = (0.7, 20, 0.9)
    assert engine("llama.cpp").sampling(*asked).temperature_last
    assert not engine("sglang").sampling(*asked).temperature_last
    assert engine("vllm").draft_sampling(engine("vllm").sampling(*asked)) == Sampling(0.7)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_chunks_agree_where_the_temperature_comes_last(logits, sampling):
    """Top-p's mass is then taken at temperature 1, of the whole vocabulary."""
    last = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, temperature_last=True)
    found = chunked_distribution(in_chunks(logits, 64)[0], ROWS, VOCABULARY, everything(ROWS), last)
    expected = distribution(logits, everything(ROWS), last)
    assert torch.equal(found.logprob.isinf(), expected.logprob.isinf())
    known = expected.logprob.isfinite()
    assert_close(found.logprob[known], expected.logprob[known], rtol=1e-5, atol=1e-5)
