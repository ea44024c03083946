"""Tiny drafts, targets, samples and dumps with random weights, small enough to check by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3lib.boundaries import Boundary
from eagle3lib.rollout import Rollout
from eagle3lib.sample import Sample

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 32, 4, 2, 8, 48
VOCABULARY, DRAFT_VOCABULARY = 96, 40
N_LAYERS = 5
EPS = 1e-2  # large, so that a pass which forgets it is seen
ROPE_THETA = 500.0
SLOTS = (0, 2, 3)
#: Two turns apart, a prompt before each and a few tokens after the last.
TURNS = ((6, 17), (22, 33))
LENGTH = 36


def generator(seed: int) -> torch.Generator:
    """A random source of its own, so that no test depends on another's draws."""
    return torch.Generator().manual_seed(seed)


def random_weight(rows: int, columns: int, source: torch.Generator) -> Tensor:
    """A linear map that keeps the size of what it is given."""
    return torch.randn(rows, columns, generator=source) / columns**0.5


def random_norm(size: int, source: torch.Generator) -> Tensor:
    """Norm weights between 0.5 and 1.5: none is 1, so that a pass which forgets them is seen."""
    return 0.5 + torch.rand(size, generator=source)


def vocabulary_maps(seed: int = 3) -> tuple[Tensor, Tensor]:
    """d2t (offsets) and t2d (mask) of `DRAFT_VOCABULARY` target ids drawn from all over the vocabulary."""
    kept = torch.randperm(VOCABULARY, generator=generator(seed))[:DRAFT_VOCABULARY].sort().values
    t2d = torch.zeros(VOCABULARY, dtype=torch.bool)
    t2d[kept] = True
    return kept - torch.arange(DRAFT_VOCABULARY), t2d


def layer_config(
    heads: int = HEADS, kv_heads: int = KV_HEADS, head_dim: int = HEAD_DIM, hidden: int = HIDDEN, eps: float = EPS
) -> dict:
    """The layer's part of config.json, with the keys of a Llama."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_hidden_layers": N_LAYERS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 128,
        "rms_norm_eps": eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "tie_word_embeddings": False,
    }


def target_tensors(seed: int = 1) -> dict[str, Tensor]:
    """Embedding, final norm and head of the tiny target, by Hugging Face's names."""
    source = generator(seed)
    return {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=source),
        "model.norm.weight": random_norm(HIDDEN, source),
        "lm_head.weight": 2 * random_weight(VOCABULARY, HIDDEN, source),
    }


def write_target(folder: Path, tensors: Mapping[str, Tensor] | None = None, **config: object) -> Path:
    """A Hugging Face folder of a target: config.json and the tensors outside its blocks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(layer_config() | config))
    save_file(dict(tensors or target_tensors()), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def draft_tensors(
    input_norm: str = "none", heads: int = HEADS, kv_heads: int = KV_HEADS, head_dim: int = HEAD_DIM, seed: int = 2
) -> dict[str, Tensor]:
    """Every tensor of a tiny draft, by speculators' names."""
    source = generator(seed)
    d2t, t2d = vocabulary_maps()
    tensors = {
        "d2t": d2t,
        "t2d": t2d,
        "embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=source),
        "fc.weight": random_weight(HIDDEN, len(SLOTS) * HIDDEN, source),
        "layers.0.input_layernorm.weight": random_norm(HIDDEN, source),
        "layers.0.hidden_norm.weight": random_norm(HIDDEN, source),
        "layers.0.self_attn.q_proj.weight": 2 * random_weight(heads * head_dim, 2 * HIDDEN, source),
        "layers.0.self_attn.k_proj.weight": 2 * random_weight(kv_heads * head_dim, 2 * HIDDEN, source),
        "layers.0.self_attn.v_proj.weight": random_weight(kv_heads * head_dim, 2 * HIDDEN, source),
        "layers.0.self_attn.o_proj.weight": random_weight(HIDDEN, heads * head_dim, source),
        "layers.0.post_attention_layernorm.weight": random_norm(HIDDEN, source),
        "layers.0.mlp.gate_proj.weight": random_weight(INTERMEDIATE, HIDDEN, source),
        "layers.0.mlp.up_proj.weight": random_weight(INTERMEDIATE, HIDDEN, source),
        "layers.0.mlp.down_proj.weight": random_weight(HIDDEN, INTERMEDIATE, source),
        "norm.weight": random_norm(HIDDEN, source),
        "lm_head.weight": 2 * random_weight(DRAFT_VOCABULARY, HIDDEN, source),
    }
    if input_norm == "concat":
        tensors["input_norm.weight"] = random_norm(len(SLOTS) * HIDDEN, source)
    if input_norm == "slots":
        tensors |= {f"fc_norm.{i}.weight": random_norm(HIDDEN, source) for i in range(len(SLOTS))}
    return tensors


def draft_config(**flags: object) -> dict:
    """config.json of a tiny draft in speculators' form; `flags` lie beside the layer's numbers."""
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": DRAFT_VOCABULARY,
        "eagle_aux_hidden_state_layer_ids": list(SLOTS),
        "transformer_layer_config": layer_config() | {"num_hidden_layers": 1},
        "norm_before_residual": False,
        "norm_output": False,
    } | flags


def write_draft(
    folder: Path, tensors: Mapping[str, Tensor] | None = None, input_norm: str = "none", **flags: object
) -> Path:
    """A draft's folder in speculators' form, written without the library."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(draft_config(**flags)))
    save_file(dict(tensors or draft_tensors(input_norm)), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def change_tensors(folder: Path, **changes: Tensor | None) -> Path:
    """Replace tensors of a folder's one file, or drop those that are None; `__` in a name stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def turn_mask(turns: Sequence[tuple[int, int]], length: int) -> Tensor:
    """True inside the turns."""
    mask = torch.zeros(length, dtype=torch.bool)
    for begin, end in turns:
        mask[begin:end] = True
    return mask


def make_sample(
    seed: int = 5,
    *,
    length: int = LENGTH,
    turns: Sequence[tuple[int, int]] = TURNS,
    boundaries: Sequence[Boundary] = tuple(range(N_LAYERS + 1)),
    rows: int | None = None,
    name: str = "toy",
) -> Sample:
    """Random tokens and random states, each boundary larger than the one before it."""
    source = generator(seed)
    token_ids = torch.randint(0, VOCABULARY, (length,), generator=source)
    states = {b: (1 + i) * torch.randn(length, HIDDEN, generator=source)[:rows] for i, b in enumerate(boundaries)}
    return Sample(name, token_ids, turn_mask(turns, length), states, temperature=0.0)


def hand_rollout(
    hits: Sequence[Sequence[int]], turn_lengths: Sequence[int] | None = None, *, name: str = "toy"
) -> Rollout:
    """A rollout with stated hits: `turn_lengths` starts a turn, a step valid where its token lies in the turn.

    A turn of n starts has n tokens to predict; the start r before its end can check r + 1 of them.
    """
    hit = torch.tensor(hits, dtype=torch.bool)
    n, steps = hit.shape
    turn_lengths = list(turn_lengths or [n])
    left = torch.cat([torch.arange(length, 0, -1) for length in turn_lengths])
    valid = torch.arange(steps) < left[:, None]
    starts = torch.cat([torch.arange(length) + 100 * i for i, length in enumerate(turn_lengths)])
    turns = torch.cat([torch.full((length,), i) for i, length in enumerate(turn_lengths)])
    hit = hit & valid
    recorded = torch.where(valid, 7, -1)
    logprob = torch.where(valid, -1.0, -torch.inf)
    return Rollout(name, starts, turns, recorded, torch.where(hit, 7, 8), hit, logprob, valid)


def write_current_dump(folder: Path, samples: Sequence[Sample], boundaries: Sequence[Boundary]) -> Path:
    """A dump in speculators' current layout: an Arrow stream, and one safetensors file a sample."""
    (folder / "hidden_states").mkdir(parents=True)
    table = pa.table(
        {
            "input_ids": [sample.token_ids.tolist() for sample in samples],
            "loss_mask": [sample.loss_mask.long().tolist() for sample in samples],
        }
    )
    write_arrow(folder, table)
    for i, sample in enumerate(samples):
        stacked = torch.stack([sample.states[b] for b in boundaries], dim=1)
        tensors = {"hidden_states": stacked, "token_ids": sample.token_ids}
        save_file(tensors, folder / "hidden_states" / f"hs_{i}.safetensors")
    return folder


def write_arrow(folder: Path, table: pa.Table) -> None:
    """The table as the one shard of a `datasets` folder."""
    with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table)


def write_list_dump(folder: Path, samples: Sequence[Sample], boundaries: Sequence[Boundary]) -> Path:
    """A dump in speculators' old list layout: one `.pt` dictionary a sample."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, sample in enumerate(samples):
        states = [sample.states[b] for b in boundaries]
        data = {"input_ids": sample.token_ids, "hidden_states": states, "loss_mask": sample.loss_mask.long()}
        torch.save(data, folder / f"data_{i}.pt")
    return folder


CASE = """
name = "toy"
[draft]
path = "draft"
[target]
path = "target"
[[dumps]]
name = "d"
path = "dump"
boundaries = [0, 1, 2, 3, 4, 5]
temperature = 0.0
[served]
engine = "vllm"
boundaries = [0, 1, 4]
steps = 3
"""


def write_case(folder: Path) -> Path:
    """A case that every notebook runs on in seconds: a draft, its target, a dump of every boundary, another wiring."""
    write_draft(folder / "draft")
    write_target(folder / "target")
    samples = [make_sample(i) for i in (5, 6, 7)]
    for sample in samples:
        sample.states[0].copy_(target_tensors()["model.embed_tokens.weight"][sample.token_ids])
    write_current_dump(folder / "dump", samples, range(N_LAYERS + 1))
    (folder / "case.toml").write_text(CASE, encoding="utf-8")
    return folder / "case.toml"
