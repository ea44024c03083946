"""d2t is read by what it holds: offsets, target ids, zeros, nothing. Each fault planted, each silence kept."""

from __future__ import annotations

import forms
import pytest
import torch
import toys
from complaints import complaint

from eagle3lib.checks.checkpoint import check_coverage, check_map
from eagle3lib.dialects import read_checkpoint
from eagle3lib.findings import Severity
from eagle3lib.vocabulary import read_vocabulary

D2T, T2D = toys.vocabulary_maps()
KEPT = T2D.nonzero().flatten()
INDEX = torch.arange(len(D2T))


def read(folder, drop=(), config=None, **changes):
    tensors = forms.without(toys.draft_tensors(), *drop) | changes
    return read_vocabulary(read_checkpoint(forms.put(folder, tensors, forms.flat_config(**(config or {})))))


def codes(vocabulary):
    return {(f.code.removeprefix("checkpoint."), f.severity) for f in check_map(vocabulary)}


def test_offsets_are_read_and_nothing_is_said(tmp_path):
    found = read(tmp_path)
    assert found.reading == "offsets" and torch.equal(found.target_ids, KEPT)
    assert found.t2d_differs == 0
    assert codes(found) == {("vocabulary", Severity.OK)}


def test_absolute_ids_are_told_by_t2d(tmp_path):
    found = read(tmp_path, d2t=KEPT)
    assert found.reading == "absolute ids" and "t2d" in found.why
    assert torch.equal(found.target_ids, KEPT)
    assert codes(found) == {("vocabulary_absolute", Severity.FAULT)}


def test_absolute_ids_are_told_by_range_without_t2d(tmp_path):
    """Draft id + target id of the highest would leave the vocabulary."""
    ids = torch.arange(toys.VOCABULARY - toys.DRAFT_VOCABULARY, toys.VOCABULARY)
    found = read(tmp_path, drop=["t2d"], d2t=ids)
    assert found.reading == "absolute ids" and "leave the vocabulary" in found.why


def test_absolute_ids_are_told_by_the_absence_of_neighbours(tmp_path):
    """Both readings are possible; 40 of 160 tokens have about ten neighbours, and as offsets there were none."""
    size = 160
    embedding = torch.randn(size, toys.HIDDEN, generator=toys.generator(1))
    ids = torch.arange(40) * 2
    found = read(tmp_path, ["t2d"], {"vocab_size": size}, d2t=ids, **{"embed_tokens.weight": embedding})
    assert found.reading == "absolute ids" and "neighbours" in found.why


def test_offsets_are_the_custom_where_nothing_tells(tmp_path):
    """Few tokens of many: neighbours are not expected either way."""
    size = 4000
    embedding = torch.randn(size, toys.HIDDEN, generator=toys.generator(1))
    found = read(tmp_path, ["t2d"], {"vocab_size": size}, d2t=INDEX * 50, **{"embed_tokens.weight": embedding})
    assert found.reading == "offsets" and "custom" in found.why


def test_modelopt_s_order_is_kept(tmp_path):
    """Unsorted and without t2d: nothing is sorted, derived or complained of."""
    tensors = forms.unsorted(toys.draft_tensors())
    found = read_vocabulary(read_checkpoint(forms.put(tmp_path, tensors, forms.flat_config())))
    assert found.reading == "offsets"
    assert torch.equal(found.target_ids, INDEX + tensors["d2t"])
    assert not torch.equal(found.target_ids, KEPT)
    assert codes(found) == {("vocabulary", Severity.OK)}


def test_llama_cpp_s_absolute_ids_are_no_surprise(tmp_path):
    found = read_vocabulary(read_checkpoint(forms.llama_cpp(tmp_path, toys.draft_tensors())))
    assert torch.equal(found.target_ids, KEPT)
    assert codes(found) == {("vocabulary", Severity.OK)}


def test_zeros_that_were_never_filled_in(tmp_path):
    """SpecForge starts with zeros and a t2d of ones."""
    found = read(tmp_path, d2t=torch.zeros_like(D2T), t2d=torch.ones_like(T2D))
    assert found.all_zero
    assert codes(found) == {("vocabulary_zero", Severity.FAULT)}


def test_zeros_without_t2d_are_a_risk(tmp_path):
    assert codes(read(tmp_path, ["t2d"], d2t=torch.zeros_like(D2T))) == {("vocabulary_zero", Severity.RISK)}


def test_zeros_of_a_vocabulary_that_is_the_target_s_first_part(tmp_path):
    t2d = torch.arange(toys.VOCABULARY) < toys.DRAFT_VOCABULARY
    assert codes(read(tmp_path, d2t=torch.zeros_like(D2T), t2d=t2d)) == {("vocabulary", Severity.OK)}


def test_t2d_of_another_run(tmp_path):
    other = toys.vocabulary_maps(seed=9)[1]
    found = read(tmp_path, t2d=other)
    assert found.reading == "offsets"
    assert found.t2d_differs == int((other ^ T2D).sum())
    assert codes(found) == {("vocabulary_contradicts", Severity.FAULT)}


def test_d2t_absent_and_t2d_present(tmp_path):
    found = read(tmp_path, drop=["d2t"])
    assert found.reading == "t2d alone" and torch.equal(found.target_ids, KEPT)


def test_a_whole_vocabulary_needs_no_map(tmp_path):
    head = torch.randn(toys.VOCABULARY, toys.HIDDEN, generator=toys.generator(4))
    found = read(tmp_path, ["d2t", "t2d"], {"draft_vocab_size": toys.VOCABULARY}, **{"lm_head.weight": head})
    assert found.reading == "identity" and len(found) == toys.VOCABULARY


def test_a_smaller_head_without_any_map(tmp_path):
    complaint(lambda: read(tmp_path, ["d2t", "t2d"]), str(tmp_path), "40 rows", "96", "no d2t")


def test_d2t_of_another_length_than_the_head(tmp_path):
    complaint(lambda: read(tmp_path, d2t=D2T[:38]), str(tmp_path), "38 entries", "40 rows")


@pytest.mark.parametrize("ids", [[0, 40, 41, 95], [], [3]])
def test_coverage_is_the_share_of_tokens_in_the_map(ids, tmp_path):
    found = read(tmp_path)
    tokens = torch.tensor(ids, dtype=torch.long)
    by_hand = sum(int(T2D[i]) for i in ids) / len(ids) if ids else None
    share = found.coverage(tokens)
    assert share == by_hand if ids else share != share
    if ids:
        finding = check_coverage(found, share, len(ids))
        assert finding.severity is Severity.NOTE
        assert f"{share:.1%}" in finding.title and "no S_k is higher" in finding.title


def test_the_inverse_map(tmp_path):
    found = read(tmp_path)
    inverse = found.draft_ids()
    assert torch.equal(inverse[found.target_ids], INDEX)
    assert int((inverse < 0).sum()) == toys.VOCABULARY - toys.DRAFT_VOCABULARY
