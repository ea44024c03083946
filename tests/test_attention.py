"""Attention in parts, against one masked softmax over dense float64 matrices."""

from __future__ import annotations

import pytest
import torch
import toys
from torch import Tensor
from torch.testing import assert_close

from eagle3lib import attention

T, D, STEPS = 23, 8, 3
#: heads and kv heads: multi-head, grouped, multi-query.
SHARING = [(4, 4), (4, 2), (6, 2), (4, 1)]
#: Float32 parts against float64 matrices.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def random_heads(heads: int, kv_heads: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k, v of the prefix, and k, v of a chain of `STEPS` keys a query; scores of spread 3, so no softmax is flat."""
    source = toys.generator(seed)
    q = 3 * torch.randn(heads, T, D, generator=source)
    k, v = (torch.randn(kv_heads, T, D, generator=source) for _ in range(2))
    chain_k, chain_v = (torch.randn(kv_heads, T, STEPS, D, generator=source) for _ in range(2))
    return q, k, v, chain_k, chain_v


def dense(
    q: Tensor, k: Tensor, v: Tensor, chain_k: Tensor | None = None, chain_v: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Every query over [prefix | own chain], with the whole score matrix and mask written out, in float64."""
    heads, n, _ = q.shape
    shared = heads // len(k)
    out, lse = torch.empty(heads, n, D, dtype=torch.float64), torch.empty(heads, n, dtype=torch.float64)
    for h in range(heads):
        for i in range(n):
            keys, values = k[h // shared, : i + 1], v[h // shared, : i + 1]
            if chain_k is not None:
                keys = torch.cat([keys, chain_k[h // shared, i]])
                values = torch.cat([values, chain_v[h // shared, i]])
            scores = keys.double() @ q[h, i].double() / D**0.5
            out[h, i] = scores.softmax(0) @ values.double()
            lse[h, i] = scores.logsumexp(0)
    return out, lse


@pytest.mark.parametrize(("heads", "kv_heads"), SHARING)
def test_causal_equals_a_dense_masked_softmax(heads, kv_heads):
    """Output and log-sum-exp, 1e-5."""
    q, k, v, _, _ = random_heads(heads, kv_heads)
    out, lse = attention.causal(q, k, v)
    expected, expected_lse = dense(q, k, v)
    assert_close(out.double(), expected, **TOLERANCE)
    assert_close(lse.double(), expected_lse, **TOLERANCE)


@pytest.mark.parametrize("block", [1, 4, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), SHARING)
def test_rows_equals_causal_at_those_positions(heads, kv_heads, block, monkeypatch):
    """For positions out of order and repeated, whatever the block; 1e-5."""
    monkeypatch.setattr(attention, "QUERY_BLOCK", block)
    q, k, v, _, _ = random_heads(heads, kv_heads)
    positions = torch.tensor([5, 0, T - 1, 11, 5, 2])
    out, lse = attention.rows(q[:, positions], positions, k, v)
    expected, expected_lse = dense(q, k, v)
    assert_close(out.double(), expected[:, positions], **TOLERANCE)
    assert_close(lse.double(), expected_lse[:, positions], **TOLERANCE)


@pytest.mark.parametrize(("heads", "kv_heads"), SHARING)
def test_the_chain_is_merged_as_if_its_keys_stood_behind_the_prefix(heads, kv_heads):
    """One softmax over the prefix and the query's own chain keys, 1e-5."""
    q, k, v, chain_k, chain_v = random_heads(heads, kv_heads)
    out = attention.with_chain(*attention.causal(q, k, v), q, chain_k, chain_v)
    expected, _ = dense(q, k, v, chain_k, chain_v)
    assert_close(out.double(), expected, **TOLERANCE)
    without, _ = dense(q, k, v)
    assert (without - expected).abs().max() > 0.1, "a pass that forgets the chain would not be seen"


def test_a_query_never_sees_a_later_key_or_another_chain():
    """Keys after the query and other rows' chain keys may be anything: equal bit for bit."""
    q, k, v, chain_k, chain_v = random_heads(4, 2)
    row = 9
    seen = attention.with_chain(*attention.causal(q, k, v), q, chain_k, chain_v)[:, row]
    k[:, row + 1 :], v[:, row + 1 :] = 50.0, -50.0
    others = torch.arange(T) != row
    chain_k[:, others], chain_v[:, others] = 50.0, -50.0
    changed = attention.with_chain(*attention.causal(q, k, v), q, chain_k, chain_v)
    assert torch.equal(changed[:, row], seen)
    assert not torch.allclose(changed[:, row + 1], seen)


@pytest.mark.parametrize(("heads", "kv_heads"), SHARING)
def test_kv_heads_are_shared_as_transformers_repeats_them(heads, kv_heads):
    """Query head h uses kv head h // (heads / kv heads), as `repeat_kv` lays them out; 1e-5."""
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k, v, chain_k, chain_v = random_heads(heads, kv_heads)
    repeated = [modeling.repeat_kv(t[None], heads // kv_heads)[0] for t in (k, v)]
    expected, _ = attention.causal(q, *repeated)
    assert_close(attention.causal(q, k, v)[0], expected, **TOLERANCE)
    positions = torch.arange(T)
    assert_close(attention.rows(q, positions, k, v)[0], expected, **TOLERANCE)
    chains = [
        modeling.repeat_kv(t.flatten(2)[None], heads // kv_heads)[0].unflatten(2, (STEPS, D))
        for t in (chain_k, chain_v)
    ]
    expected = attention.with_chain(*attention.causal(q, *repeated), q, *chains)
    assert_close(attention.with_chain(*attention.causal(q, k, v), q, chain_k, chain_v), expected, **TOLERANCE)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_scores_far_apart_neither_overflow_nor_vanish(scale):
    """Prefix and chain scores of very different sizes: finite, and 1e-4 from float64."""
    q, k, v, chain_k, chain_v = random_heads(4, 2)
    chain_k = chain_k * scale
    out = attention.with_chain(*attention.causal(q, k, v), q, chain_k, chain_v)
    assert out.isfinite().all()
    assert_close(out.double(), dense(q, k, v, chain_k, chain_v)[0], rtol=1e-4, atol=1e-4)


def test_no_rows_wanted_is_no_rows():
    """A sample without a start asks for none: empty, not an error."""
    q, k, v, _, _ = random_heads(4, 2)
    out, lse = attention.rows(q[:, :0], torch.tensor([], dtype=torch.long), k, v)
    assert (out.shape, lse.shape) == ((4, 0, D), (4, 0))


def test_a_half_precision_result_keeps_its_dtype():
    """bfloat16 in, bfloat16 out, within 2 % of float64 (8 bits of mantissa, values of size 1)."""
    q, k, v, chain_k, chain_v = (t.bfloat16() for t in random_heads(4, 2))
    out = attention.with_chain(*attention.causal(q, k, v), q, chain_k, chain_v)
    by_rows = attention.with_chain(*attention.rows(q, torch.arange(T), k, v), q, chain_k, chain_v)
    expected, _ = dense(q, k, v, chain_k, chain_v)
    for found in (out, by_rows):
        assert found.dtype == torch.bfloat16
        assert_close(found.double(), expected, rtol=0.02, atol=0.02)


def in_window(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Every query over the last `window` keys up to its own, in float64."""
    heads, n, d = q.shape
    out = torch.zeros(heads, n, v.shape[-1], dtype=torch.float64)
    for h in range(heads):
        for i in range(n):
            first = max(i - window + 1, 0)
            scores = k[h * len(k) // heads, first : i + 1].double() @ q[h, i].double() / d**0.5
            out[h, i] = scores.softmax(0) @ v[h * len(k) // heads, first : i + 1].double()
    return out


@pytest.mark.parametrize("block", [1, 4, 256])
@pytest.mark.parametrize("window", [1, 5, T, 10 * T])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2)])
def test_a_window_hides_what_is_older(heads, kv_heads, window, block, monkeypatch):
    """All queries, and some out of order; 1e-5."""
    monkeypatch.setattr(attention, "QUERY_BLOCK", block)
    q, k, v, _, _ = random_heads(heads, kv_heads)
    expected = in_window(q, k, v, window)
    assert_close(attention.causal(q, k, v, window=window)[0].double(), expected, **TOLERANCE)
    positions = torch.tensor([20, 3, 0, 11])
    assert_close(
        attention.rows(q[:, positions], positions, k, v, window=window)[0].double(), expected[:, positions], **TOLERANCE
    )


def test_a_window_that_has_left_the_prefix_leaves_the_chain_alone():
    """Where no prefix key is seen the chain's softmax is the whole: finite, and 1e-5 from it."""
    q, k, v, chain_k, chain_v = random_heads(4, 2)
    out, lse = attention.causal(q, k, v, window=0)
    assert (lse == -torch.inf).all()
    found = attention.with_chain(out, lse, q, chain_k, chain_v)
    repeated_k, repeated_v = (t.repeat_interleave(2, 0).double() for t in (chain_k, chain_v))
    scores = torch.einsum("hrd,hrnd->hrn", q.double(), repeated_k) / D**0.5
    assert_close(found.double(), torch.einsum("hrn,hrnd->hrd", scores.softmax(-1), repeated_v), **TOLERANCE)


def test_values_may_be_narrower_and_the_scale_another():
    """Latent attention's values and yarn's scale: the fused kernel and the blocks agree with float64; 1e-5."""
    q, k, v, chain_k, chain_v = random_heads(4, 4)
    v, chain_v, scale = v[..., :5], chain_v[..., :5], 0.21
    scaled = q * (scale * D**0.5)  # the dense one divides by sqrt(d)
    scores = torch.einsum("hid,hjd->hij", scaled.double(), k.double()) / D**0.5
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    expected = scores.softmax(-1) @ v.double()
    assert_close(attention.causal(q, k, v, scale)[0].double(), expected, **TOLERANCE)
    assert_close(attention.rows(q, torch.arange(T), k, v, scale)[0].double(), expected, **TOLERANCE)
    own = torch.einsum("hid,hind->hin", scaled.double(), chain_k.double()) / D**0.5
    both = torch.cat([scores, own], -1).softmax(-1)
    expected = both[..., :T] @ v.double() + torch.einsum("hin,hind->hid", both[..., T:], chain_v.double())
    found = attention.with_chain(*attention.causal(q, k, v, scale), q, chain_k, chain_v, scale)
    assert_close(found.double(), expected, **TOLERANCE)
