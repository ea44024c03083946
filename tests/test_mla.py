"""Latent attention: whole drafts over several steps, built from transformers' DeepSeek-V3 modules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import toys
from complaints import complaint
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

from eagle3lib import draft_head
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import load_draft
from eagle3lib.rollout import chain_states
from eagle3lib.sample import Sample

deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
from transformers import DeepseekV3Config, DynamicCache  # noqa: E402

STEPS = 4
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
YARN = {
    "rope_type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
}
SIZES = {"kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5}


def latent_config(q_rank: int | None = 10, rope: dict | None = None, **changes: object) -> DeepseekV3Config:
    """A tiny layer in DeepSeek-V3's numbers; eps is the class's own 1e-6, which its latents' norms have anyway."""
    return DeepseekV3Config(
        **{
            **{k: v for k, v in toys.layer_config(eps=1e-6).items() if k not in ("model_type", "head_dim")},
            "num_key_value_heads": toys.HEADS,
            "num_hidden_layers": 1,
            "q_lora_rank": q_rank,
            "rope_parameters": {"rope_theta": toys.ROPE_THETA, **(rope or {"rope_type": "default"})},
            "attn_implementation": "eager",
            **SIZES,
            **changes,
        }
    )


class LatentDraft(nn.Module):
    """An EAGLE-3 draft of one DeepSeek-V3 layer, its downward maps widened to cat(embedding, hidden)."""

    def __init__(self, config: DeepseekV3Config, seed: int = 21) -> None:
        super().__init__()
        hidden, self.config = config.hidden_size, config
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.fc = nn.Linear(len(toys.SLOTS) * hidden, hidden, bias=False)
        layer = nn.Module()
        layer.self_attn = deepseek.DeepseekV3Attention(config, 0)
        for name in ("q_a_proj", "kv_a_proj_with_mqa") if config.q_lora_rank else ("q_proj", "kv_a_proj_with_mqa"):
            narrow = getattr(layer.self_attn, name)
            wide = nn.Linear(2 * hidden, narrow.out_features, bias=narrow.bias is not None)
            setattr(layer.self_attn, name, wide)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            setattr(layer, name, deepseek.DeepseekV3RMSNorm(hidden, config.rms_norm_eps))
        layer.mlp = deepseek.DeepseekV3MLP(config)
        self.layers = nn.ModuleList([layer])
        self.norm = deepseek.DeepseekV3RMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, toys.DRAFT_VOCABULARY, bias=False)
        self.rotary = deepseek.DeepseekV3RotaryEmbedding(config)
        source = toys.generator(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(toys.random_norm(len(p), source) if p.ndim == 1 else toys.random_weight(*p.shape, source))

    @torch.inference_mode()
    def forward(self, sample: Sample) -> list[Tensor]:
        """Logits of every step and pair: one dense mask over the pairs' keys and each pair's own chain."""
        n, layer, cache = len(sample.token_ids) - 1, self.layers[0], DynamicCache()
        g = self.fc(torch.cat([sample.states[b][:n] for b in toys.SLOTS], dim=-1))[None]
        mask = torch.full((n, n), -torch.inf).triu(1)
        tokens = torch.cat([sample.token_ids, torch.zeros(STEPS, dtype=torch.long)])
        logits = []
        for k in range(STEPS):
            e = layer.input_layernorm(self.embed_tokens(tokens[None, 1 + k : 1 + k + n]))
            x = torch.cat([e, layer.hidden_norm(g)], dim=-1)
            turns = self.rotary(x, torch.arange(n)[None] + k)
            y = g + layer.self_attn(x, turns, mask[None, None], past_key_values=cache)[0]
            g = y + layer.mlp(layer.post_attention_layernorm(y))
            logits.append(self.lm_head(self.norm(g))[0])
            own = torch.full((n, n), -torch.inf)
            own.fill_diagonal_(0)
            mask = torch.cat([mask, own], dim=1)
        return logits

    def save(self, folder: Path, **changes: object) -> Path:
        """The checkpoint in the names that ModelOpt and the engines use."""
        folder.mkdir(parents=True, exist_ok=True)
        flat = {key: value for key, value in self.config.to_dict().items() if key not in ("architectures", "head_dim")}
        flat |= {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "draft_vocab_size": toys.DRAFT_VOCABULARY, **changes}
        (folder / "config.json").write_text(json.dumps(flat))
        d2t, _ = toys.vocabulary_maps()
        tensors = {name: p.detach().contiguous() for name, p in self.named_parameters()}
        save_file({**tensors, "d2t": d2t}, folder / "model.safetensors", metadata={"format": "pt"})
        return folder


def manual(folder: Path, sample: Sample) -> list[Tensor]:
    """Logits of every step, by the manual pass."""
    draft = load_draft(folder, device="cpu")
    with torch.inference_mode():
        return [draft_head.logits(draft, u) for u in chain_states(draft, sample, Wiring(toys.SLOTS), STEPS)]


VARIANTS = {
    "plain": {},
    "yarn": {"rope": YARN},
    "half-split": {"rope": YARN, "rope_interleave": False},
    "no q latent": {"q_rank": None},
    "biases": {"attention_bias": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_latent_draft_equals_deepseek_s_modules(variant, tmp_path, sample):
    """Float32, four steps, 1e-5 relative and absolute."""
    model = LatentDraft(latent_config(**VARIANTS[variant]))
    expected = model(sample)
    found = manual(model.save(tmp_path), sample)
    assert len(found) == STEPS
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs[: len(ours)], **TOLERANCE)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_interleave": False},
        {"rope_parameters": {"rope_theta": toys.ROPE_THETA, **YARN, "mscale_all_dim": 0.0}},
        {"rope_parameters": {"rope_theta": toys.ROPE_THETA, "rope_type": "default"}},
    ],
    ids=["half-split", "no mscale_all_dim", "no yarn"],
)
def test_a_rope_read_wrongly_is_another_draft(changes, tmp_path, sample):
    """Pairs, the softmax's yarn scale and the stretch each move a logit by far more than the tolerance."""
    model = LatentDraft(latent_config(rope=YARN))
    expected, found = model(sample), manual(model.save(tmp_path, **changes), sample)
    assert max(float((a - b[: len(a)]).abs().max()) for a, b in zip(found, expected, strict=True)) > 1e-3


def test_sizes_come_from_the_tensors(tmp_path):
    """A config.json that contradicts them is noted, and the tensors win."""
    folder = LatentDraft(latent_config()).save(tmp_path, kv_lora_rank=99, v_head_dim=7)
    config = load_draft(folder, device="cpu").config
    assert (config.mla.q_rank, config.mla.kv_rank, config.mla.value_dim) == (10, 12, 5)
    assert (config.mla.nope_dim, config.mla.rope_dim, config.head_dim) == (6, 4, 10)
    assert len(config.mismatches) == 2
    assert "kv_lora_rank = 99, the tensors say 12" in config.mismatches[0]


def test_a_number_of_heads_that_leaves_no_head(tmp_path):
    folder = LatentDraft(latent_config()).save(tmp_path, num_attention_heads=16)
    complaint(lambda: load_draft(folder), str(folder), "16 heads", "num_attention_heads")
