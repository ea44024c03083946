"""What a target weighs and what a pass of it takes at least, against transformers and against drawing experts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from eagle3lib.case import CostSection
from eagle3lib.errors import InputError
from eagle3lib.roofline import DEVICES, Device, device_of, distinct_experts, step, widening
from eagle3lib.target_shape import read_target_cost, target_cost
from eagle3lib.worked_example import KIMI

transformers = pytest.importorskip("transformers", reason="the reference implementation is not installed")

SIZES = dict(hidden_size=64, num_hidden_layers=4, vocab_size=320, intermediate_size=96, num_attention_heads=4)
LATENT = dict(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8)
MODELS = {
    "llama": transformers.LlamaConfig(**SIZES, num_key_value_heads=2),
    "qwen3": transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=24),
    "mixtral": transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **SIZES, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
        mlp_only_layers=[1], head_dim=16,
    ),
    "qwen2_moe": transformers.Qwen2MoeConfig(
        **SIZES, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=40, decoder_sparse_step=2,
    ),
    "llama4": transformers.Llama4TextConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=1, intermediate_size_mlp=160,
        interleave_moe_layer_step=2, head_dim=16,
    ),
    "deepseek_v3": transformers.DeepseekV3Config(
        **SIZES, **LATENT, num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
        n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
    ),
    "deepseek_v2_lite": transformers.DeepseekV3Config(
        **SIZES, **(LATENT | {"q_lora_rank": None}), num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=32, n_shared_experts=2, first_k_dense_replace=2, n_group=1, topk_group=1,
    ),
}  # fmt: skip
#: Llama-3.1-8B's published numbers.
LLAMA_8B = dict(
    hidden_size=4096, num_hidden_layers=32, vocab_size=128256, intermediate_size=14336, num_attention_heads=32,
    num_key_value_heads=8, torch_dtype="bfloat16",
)  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_as_many_as_in_transformers(name):
    """All matrices but the embedding; norms and biases are vectors."""
    config = MODELS[name]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    matrices = {n: p for n, p in model.named_parameters() if p.dim() > 1 and "embed_tokens" not in n}
    raw = json.loads(config.to_json_string(use_diff=False)) | {"torch_dtype": "bfloat16"}
    found = target_cost(raw, name)
    assert found.total == sum(p.numel() for p in matrices.values())
    assert (found.active < found.total) == bool(found.experts)
    assert found.weight_bits == 16


def test_a_token_keeps_as_much_as_transformers_caches():
    """Keys and values of a grouped cache; a latent one keeps its latent and one rotated key."""
    config = MODELS["qwen3"]
    model = transformers.AutoModelForCausalLM.from_config(config)
    cache = model(torch.arange(5)[None], use_cache=True).past_key_values
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert target_cost(json.loads(config.to_json_string(use_diff=False)), "q", 16).kv_values * 5 == held
    latent = target_cost(json.loads(MODELS["deepseek_v3"].to_json_string(use_diff=False)), "d", 16)
    assert latent.kv_values == 4 * (16 + 4)


def test_a_known_model_has_its_known_size():
    found = target_cost(LLAMA_8B, "Llama-3.1-8B")
    assert found.total + LLAMA_8B["vocab_size"] * LLAMA_8B["hidden_size"] == pytest.approx(8.03e9, rel=0.001)
    assert found.kv_values * 2 == 131072  # bytes a token in bfloat16


@pytest.mark.parametrize(("experts", "chosen", "tokens"), [(8, 2, 1), (8, 2, 4), (64, 6, 16), (384, 8, 16)])
def test_experts_touched_are_those_of_independent_tokens(experts, chosen, tokens):
    drawn = np.random.default_rng(0).random((400, tokens, experts)).argsort(-1)[..., :chosen]
    counts = [len(np.unique(one)) for one in drawn]
    expected = distinct_experts(experts, chosen, tokens)
    assert np.mean(counts) == pytest.approx(expected, abs=4 * np.std(counts) / 20 + 1e-9)


def test_tokens_that_choose_alike_touch_fewer():
    """Half of every token's choice taken over from the one before it: independence overestimates."""
    source, seen = np.random.default_rng(0), []
    for _ in range(200):
        chosen = source.permutation(64)[:8]
        touched = set(chosen)
        for _ in range(7):
            kept = source.permutation(chosen)[:4]
            chosen = np.concatenate([kept, source.permutation(np.setdiff1d(np.arange(64), kept))[:4]])
            touched |= set(chosen)
        seen.append(len(touched))
    assert np.mean(seen) < 0.8 * distinct_experts(64, 8, 8)


def test_a_step_reads_or_multiplies():
    """Decoding reads every weight once, whatever the batch; a wide pass is bound by arithmetic."""
    target, device = target_cost(LLAMA_8B, "Llama-3.1-8B"), Device("round numbers", 1000, 100)
    one = step(target, device, 1)
    assert (one.bound, one.ms) == ("memory", pytest.approx(target.total * 2 / 1e9))
    assert step(target, device, 8).ms == one.ms
    wide = step(target, device, 512)
    assert (wide.bound, wide.ms) == ("arithmetic", pytest.approx(2 * 512 * target.total / 1e11))
    assert step(target, device, 1, devices=4).ms == pytest.approx(one.ms / 4)
    kept = step(target, device, 1, batch=8, context=10_000)
    assert kept.gigabytes - one.gigabytes == pytest.approx(8 * 10_000 * 131072 / 1e9)


def test_a_sparse_target_pays_more_for_a_wide_verification():
    """At batch 1, of equal active weights: the dense one reads what it reads anyway."""
    dense = target_cost(LLAMA_8B, "dense")
    sparse = target_cost(
        LLAMA_8B | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 14336 // 8}, "sparse"
    )
    assert sparse.active == pytest.approx(dense.active, rel=0.01)
    assert widening(dense, DEVICES["H100"], 8) == 1
    assert widening(sparse, DEVICES["H100"], 8) > 3
    widths = [widening(sparse, DEVICES["H100"], m) for m in (1, 2, 4, 8)]
    assert all(b > a and b <= m for a, b, m in zip(widths, widths[1:], (2, 4, 8), strict=False))


@pytest.mark.parametrize(
    ("extra", "bits"),
    [
        ({"torch_dtype": "float16"}, 16),
        ({"quantization_config": {"quant_method": "fp8"}, "torch_dtype": "bfloat16"}, 8),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 4),
        ({"quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}}, 4),
    ],
)
def test_bits_of_a_weight(extra, bits):
    config = {name: value for name, value in LLAMA_8B.items() if name != "torch_dtype"}
    assert target_cost(config | extra, "c").weight_bits == bits
    assert target_cost({"text_config": config, **extra}, "nested").weight_bits == bits
    assert target_cost({"text_config": config | extra, "dtype": "bfloat16"}, "nested").weight_bits == bits
    assert target_cost(config | extra, "stated", weight_bits=5).weight_bits == 5


def test_what_a_quantiser_leaves_is_read_wider():
    """Kimi-K2.5's 4 bits are its routed experts' alone: what every token reads is stored in 16."""
    sizes = {name: value for name, value in KIMI.items() if name != "quantization_config"}
    plain = target_cost(sizes, "bfloat16")
    assert (plain.weight_bits, plain.dense_bits) == (16, 16)
    kimi = target_cost(KIMI, "Kimi-K2.5")
    assert (kimi.weight_bits, kimi.dense_bits) == (4, 16)
    one = step(kimi, DEVICES["H200"], 1)
    assert one.gigabytes == pytest.approx((kimi.dense * 2 + (kimi.active - kimi.dense) / 2) / 1e9)
    everything = target_cost(KIMI, "stated", weight_bits=4)
    assert everything.dense_bits == 4
    assert 4 < widening(kimi, DEVICES["H200"], 16) < 0.6 * widening(everything, DEVICES["H200"], 16)
    eight = target_cost(LLAMA_8B | {"quantization_config": {"quant_method": "fp8"}}, "fp8")
    head = LLAMA_8B["vocab_size"] * LLAMA_8B["hidden_size"]
    assert eight.dense_bits == pytest.approx(8 + 8 * head / eight.total)  # heads stay in 16 bits


def test_what_is_no_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | {"hidden_size": "wide"}))
    with pytest.raises(InputError, match="hidden_size"):
        read_target_cost(tmp_path)
    config = {name: value for name, value in LLAMA_8B.items() if name != "torch_dtype"}
    with pytest.raises(InputError, match="weight_bits"):
        target_cost(config, "c")
    with pytest.raises(InputError, match="num_experts_per_tok"):
        target_cost(LLAMA_8B | {"num_experts": 8}, "c")


def test_devices_by_name_or_by_their_rates():
    assert device_of(CostSection()) is None
    assert device_of(CostSection(device="H100")).bandwidth == 3350
    assert 8 * DEVICES["B200"].bandwidth <= 62_000  # of the eight together, by the board's data sheet
    assert device_of(CostSection(bandwidth=100, tflops=2)).tflops == 2
    with pytest.raises(InputError, match="H200"):
        device_of(CostSection(device="H300"))
    with pytest.raises(InputError, match="both"):
        device_of(CostSection(bandwidth=100))
