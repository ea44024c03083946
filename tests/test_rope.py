"""Rope of every kind, against transformers' own functions and modules; and how config.json is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toys
from complaints import complaint
from torch.testing import assert_close

from eagle3lib import rope
from eagle3lib.config import Rope
from eagle3lib.positions import rope_config, windows

rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
llama = pytest.importorskip("transformers.models.llama.modeling_llama")
from transformers import LlamaConfig, Phi3Config  # noqa: E402
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek  # noqa: E402
from transformers.models.phi3 import modeling_phi3 as phi3  # noqa: E402

D, MAXIMUM = 16, 64
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}
LONG, SHORT = [1.0 + 0.5 * j for j in range(D // 2)], [1.0 + 0.1 * j for j in range(D // 2)]
#: rope_parameters of every kind, as transformers 5 writes them, and some with every optional number.
STRETCHED = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
    },
    "yarn-untruncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "truncate": False,
        "attention_factor": 1.25,
    },
    "longrope": {
        "rope_type": "longrope",
        "long_factor": LONG,
        "short_factor": SHORT,
        "original_max_position_embeddings": 32,
    },
}


def both(kind: str, theta: float = 100.0) -> tuple[LlamaConfig, Rope]:
    """The kind's parameters as transformers holds them, and as we read them from the same config.json."""
    flat = {
        "hidden_size": 4 * D,
        "num_attention_heads": 4,
        "head_dim": D,
        "max_position_embeddings": MAXIMUM,
        "rope_parameters": {"rope_theta": theta, **STRETCHED.get(kind, {"rope_type": "default"})},
    }
    return LlamaConfig(**flat), rope_config(Path("draft"), flat, latent=False)


@pytest.mark.parametrize("kind", STRETCHED)
@pytest.mark.parametrize("length", [20, 200])
def test_frequencies_and_magnitude_equal_transformers(kind, length):
    """Every kind, shorter and longer than the original length; 1e-6."""
    config, ours = both(kind)
    function = rope_utils.ROPE_INIT_FUNCTIONS[STRETCHED[kind]["rope_type"]]
    expected, magnitude = function(config, torch.device("cpu"), seq_len=length)
    assert_close(rope.frequencies(ours, D, length), expected, **TOLERANCE)
    assert rope.magnitude(ours) == pytest.approx(magnitude, rel=1e-6)
    plain = 1.0 / ours.theta ** (torch.arange(0, D, 2) / D)
    same = torch.allclose(expected, plain)
    assert same == (kind == "dynamic" and length == 20), "a kind that stretches nothing tests nothing"


@pytest.mark.parametrize("kind", ["default", *STRETCHED])
@pytest.mark.parametrize("n", [20, 150])
def test_turned_heads_equal_transformers(kind, n):
    """The rotary module's cosines and sines, and what they do to a head: a sequence of n positions; 1e-5."""
    config, ours = both(kind)
    x = torch.randn(3, n, D, generator=toys.generator(0))
    positions = torch.arange(n)
    cos, sin = llama.LlamaRotaryEmbedding(config)(x[None], positions[None])
    expected, _ = llama.apply_rotary_pos_emb(x[None], x[None], cos, sin)
    found = rope.rotate(x, *rope.cos_sin(positions, ours, D))
    assert_close(found, expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "original"), [("dynamic", MAXIMUM), ("longrope", 32)])
@pytest.mark.parametrize("beyond", [-1, 0, 1, 2])
def test_the_switch_at_the_original_length(kind, original, beyond):
    """A sequence that ends just before, at and after the length from which angles change; 1e-6."""
    config, ours = both(kind)
    positions = torch.arange(original + beyond)
    cos, sin = llama.LlamaRotaryEmbedding(config)(torch.zeros(1, 1, D), positions[None])
    found = rope.cos_sin(positions, ours, D)
    assert_close(torch.stack(found), torch.stack([cos[0, :, : D // 2], sin[0, :, : D // 2]]), **TOLERANCE)
    same = torch.equal(rope.frequencies(ours, D, original + beyond), rope.frequencies(ours, D, original))
    assert same == (beyond <= 0)


def test_interleaved_pairs_equal_deepseek_s():
    """Turned in place; transformers gathers the pairs' firsts and seconds, so its dimensions are permuted."""
    _, ours = both("yarn")
    x = torch.randn(3, 20, D, generator=toys.generator(0))
    cos, sin = rope.cos_sin(torch.arange(20), ours, D)
    expected, _ = deepseek.apply_rotary_pos_emb_interleave(
        x[None], x[None], torch.cat([cos, cos], -1)[None], torch.cat([sin, sin], -1)[None]
    )
    found = rope.rotate(x, cos, sin, interleaved=True)
    assert_close(torch.cat([found[..., 0::2], found[..., 1::2]], dim=-1), expected[0], **TOLERANCE)
    assert not torch.allclose(found, rope.rotate(x, cos, sin))


def test_partial_rotary_equals_phi3():
    """The first half of each head is turned, the rest stays."""
    flat = {"hidden_size": 4 * D, "num_attention_heads": 4, "max_position_embeddings": MAXIMUM}
    flat["rope_parameters"] = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    ours = rope_config(Path("draft"), flat, latent=False)
    x = torch.randn(3, 20, D, generator=toys.generator(0))
    positions = torch.arange(20)
    cos, sin = phi3.Phi3RotaryEmbedding(Phi3Config(**flat, pad_token_id=0))(x[None], positions[None])
    expected, _ = phi3.apply_rotary_pos_emb(x[None], x[None], cos, sin)
    found = rope.rotate(x, *rope.cos_sin(positions, ours, int(D * ours.fraction)))
    assert_close(found, expected[0], **TOLERANCE)
    assert torch.equal(found[..., D // 2 :], x[..., D // 2 :])


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_one_shift_of_all_positions_changes_no_score(kind):
    """Scores depend on differences: a trainer that counts from 1 and a server that counts from 0 agree; 1e-4."""
    _, ours = both(kind)
    q, k = torch.randn(2, 20, D, generator=toys.generator(0)).unbind(0)
    scores = [
        rope.rotate(q[None], *turns)[0] @ rope.rotate(k[None], *turns)[0].T
        for turns in (rope.cos_sin(torch.arange(20) + shift, ours, D) for shift in (0, 1))
    ]
    assert_close(*scores, rtol=1e-4, atol=1e-4)


def test_a_length_may_be_fixed_as_engines_fix_it():
    """vLLM and SGLang make one table for the served maximum: `length` overrides the sequence's own."""
    _, ours = both("longrope")
    positions = torch.arange(20)
    fixed = Rope(**{**ours.__dict__, "length": 4096})
    assert_close(rope.cos_sin(positions, fixed, D), rope.cos_sin(positions, ours, D, length=4096))
    assert not torch.allclose(rope.cos_sin(positions, fixed, D)[0], rope.cos_sin(positions, ours, D)[0])


@pytest.mark.parametrize(
    ("flat", "theta", "kind"),
    [
        ({}, 10000.0, "default"),
        ({"rope_theta": 7.0}, 7.0, "default"),
        ({"rope_theta": 7.0, "rope_parameters": {"rope_type": "default"}}, 7.0, "default"),
        ({"rope_theta": 7.0, "rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, 5.0, "default"),
        ({"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, 7.0, "linear"),
        ({"rope_theta": 7.0, "rope_scaling": {"rope_type": "mrope", "mrope_section": [2, 1, 1]}}, 7.0, "default"),
        ({"rope_theta": 7.0, "rope_scaling": None}, 7.0, "default"),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 9.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 3.0},
                }
            },
            3.0,
            "default",
        ),
    ],
)
def test_where_theta_and_kind_may_stand(flat, theta, kind):
    found = rope_config(Path("draft"), {"max_position_embeddings": MAXIMUM, **flat}, latent=False)
    assert (found.theta, found.kind) == (theta, kind)


def test_latent_attention_is_interleaved_unless_the_config_says_no():
    assert rope_config(Path("draft"), {}, latent=True).interleaved
    assert not rope_config(Path("draft"), {"rope_interleave": False}, latent=True).interleaved
    assert not rope_config(Path("draft"), {}, latent=False).interleaved


def test_a_stretch_without_its_factor():
    flat = {"rope_scaling": {"rope_type": "linear"}}
    complaint(lambda: rope_config(Path("draft"), flat, latent=False), "draft", "linear", "factor")


@pytest.mark.parametrize(
    ("flat", "expected"),
    [
        ({}, (None, None)),
        ({"sliding_window": 8}, (None, None)),  # a Llama's is not read by anyone without layer_types
        ({"sliding_window": 8, "model_type": "mistral"}, (8, 8)),
        ({"sliding_window": 8, "use_sliding_window": False}, (None, None)),
        ({"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, (None, 8)),
        ({"sliding_window": None, "layer_types": ["full_attention"]}, (None, None)),
    ],
)
def test_which_layers_have_a_window(flat, expected):
    assert windows(flat, 2) == expected
