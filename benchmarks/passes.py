"""What the benchmark runs: the manual pass, speculators' own, and the products of states and weights alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from eagle3lib import draft_head
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.repaired_checkpoint import own_embedding
from eagle3lib.rollout import chain_states
from eagle3lib.sample import Sample
from eagle3lib.target import load_target

BUNDLED = Path(__file__).parent.parent / "data" / "smollm2" / "draft"
TARGET = BUNDLED.parent / "target" / "SmolLM2-135M-Instruct.Q4_1.gguf"

SLOTS = (0, 1, 2)


def random_sample(draft: Draft, tokens: int) -> Sample:
    """So many pairs of random tokens and states."""
    source = torch.Generator().manual_seed(1)
    ids = torch.randint(0, draft.config.vocab_size, (tokens + 1,), generator=source)
    width = draft.config.target_hidden_size
    states = {b: torch.randn(tokens + 1, width, generator=source).to(draft.dtype) for b in SLOTS}
    return Sample("random", ids, torch.ones(tokens + 1, dtype=torch.bool), states)


def manual(draft: Draft, sample: Sample, steps: int) -> list[torch.Tensor]:
    """Every pair's choice at every step, by the manual pass."""
    with torch.inference_mode():
        return [draft_head.greedy(draft, u) for u in chain_states(draft, sample, Wiring(SLOTS), steps)]


def library(draft: Draft) -> Callable[[Sample, int], list[torch.Tensor]]:
    """The same by speculators' own forward without loss, eager attention, in our draft's dtype."""
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from transformers import LlamaConfig

    c = draft.config
    layer = LlamaConfig(
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        head_dim=c.head_dim,
        vocab_size=c.vocab_size,
        num_hidden_layers=1,
        rms_norm_eps=c.norm_eps,
        max_position_embeddings=c.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope.theta},
    )
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=c.draft_vocab_size,
        eagle_aux_hidden_state_layer_ids=list(SLOTS),
        norm_before_residual=c.norm_before_residual,
        norm_before_fc=c.input_norm == "concat",
        fc_norm=c.input_norm == "slots",
        norm_output=c.norm_output,
    )
    model = Eagle3DraftModel(config).to(draft.dtype).eval()
    w, first = draft.weights, draft.weights.layers[0]
    weights = {
        "embed_tokens": own_embedding(draft), "fc": w.fc, "norm": w.norm, "lm_head": w.head,
        "layers.0.input_layernorm": first.embed_norm, "layers.0.hidden_norm": first.hidden_norm,
        "layers.0.post_attention_layernorm": first.mlp_norm,
        "layers.0.self_attn.q_proj": first.attention.q.weight, "layers.0.self_attn.k_proj": first.attention.k.weight,
        "layers.0.self_attn.v_proj": first.attention.v.weight, "layers.0.self_attn.o_proj": first.o.weight,
        "layers.0.mlp.gate_proj": first.gate.weight, "layers.0.mlp.up_proj": first.up.weight,
        "layers.0.mlp.down_proj": first.down.weight,
        **({"input_norm": w.input_norms[0]} if c.input_norm == "concat" else {}),
        **({f"fc_norm.{i}": norm for i, norm in enumerate(w.input_norms)} if c.input_norm == "slots" else {}),
    }  # fmt: skip
    with torch.no_grad():
        for name, value in weights.items():
            model.get_submodule(name).weight.copy_(value)

    def run(sample: Sample, steps: int) -> list[torch.Tensor]:
        n = sample.n_pairs
        states = torch.cat([sample.states[b][:n] for b in SLOTS], dim=-1)[None].to(draft.dtype)
        ids, documents = sample.token_ids[None, 1 : n + 1], torch.zeros(1, n, dtype=torch.long)
        with torch.inference_mode():
            chosen = model(states, ids, documents, ttt_steps=steps)
        return [draft.target_ids[c[0, : n - k]] for k, c in enumerate(chosen)]

    return run


def products(draft: Draft, sample: Sample, steps: int) -> None:
    """The pass's products of states and weights alone, by `torch.mm`: no attention, norm or copy."""
    w, first = draft.weights, draft.weights.layers[0]
    a = first.attention
    weights = [a.q.weight, a.k.weight, a.v.weight, first.o.weight, first.gate.weight, first.up.weight]
    weights += [first.down.weight, w.head]
    inputs = {m.shape[1]: torch.ones(sample.n_pairs, m.shape[1], dtype=draft.dtype) for m in [w.fc, *weights]}
    with torch.inference_mode():
        torch.mm(inputs[w.fc.shape[1]], w.fc.T)
        for k in range(steps):
            for m in weights:
                torch.mm(inputs[m.shape[1]][: sample.n_pairs - k], m.T)


def runners(folder: Path, dtype: torch.dtype, tokens: int, steps: int) -> dict[str, Callable[[int], object]]:
    """What is timed, by name; each takes a number of pairs."""
    draft = load_draft(folder, load_target(TARGET) if folder == BUNDLED else None, device="cpu", dtype=dtype)
    samples = {n: random_sample(draft, n) for n in (tokens, min(tokens, 16))}
    theirs = library(draft)
    return {
        "manual": lambda n: manual(draft, samples[n], steps),
        "speculators": lambda n: theirs(samples[n], steps),
        "products": lambda n: products(draft, samples[n], steps),
    }
