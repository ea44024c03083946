"""Hypotheses about the pass: norms, alignment, positions, and weights that come from elsewhere.

Each generator gives one family's changes; a change that changes nothing is left out by `hypotheses`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from eagle3lib import variants
from eagle3lib.config import Rope
from eagle3lib.errors import InputError
from eagle3lib.ground import Ground, Option
from eagle3lib.positions import rope_config
from eagle3lib.target import Target
from eagle3lib.tensors import read_json

THETA = 1e4  # what readers fall back to that do not find a theta
FRACTIONS = (0.25, 0.5, 1.0)
WINDOW = 2048  # of speculators' training, where no config says one


def input_norm(ground: Ground) -> Iterator[Option]:
    """The norm before fc applied or not, as far as the draft holds its weights."""
    held = len(ground.draft.weights.input_norms)
    kinds = {"none": "no norm before fc"}
    if held:
        kinds |= {"concat": "one norm before fc"} if held == 1 else {"slots": "one norm a slot before fc"}
    lines = {
        "none": '"norm_before_fc": false, "fc_norm": false',
        "concat": '"norm_before_fc": true',
        "slots": '"fc_norm": true',
    }
    for kind, label in kinds.items():
        yield label, lines[kind], {"input_norm": kind}


def concat_order(ground: Ground) -> Iterator[Option]:
    """The layer's input as [hidden, embed]."""
    first = not ground.draft.config.under(ground.wiring).hidden_first
    halves = "[hidden, embed]" if first else "[embed, hidden]"
    fix = "no config has this: the order of the concat in the draft's layer, or the halves of q, k and v's columns"
    yield f"the layer reads {halves}", fix, {"hidden_first": first}


def token_shift(ground: Ground) -> Iterator[Option]:
    """The token beside a state one later or one earlier."""
    words = {
        -1: "tokens not shifted, (h[i], x[i])",
        0: "(h[i], x[i + 1])",
        1: "states one behind, (h[i - 1], x[i + 1])",
    }
    for shift, label in words.items():
        fix = "no config has this: the shift of the token ids against the states where the draft's input is made"
        yield f"pairs are {label}", fix, {"token_shift": shift}


def residual(ground: Ground) -> Iterator[Option]:
    """The residual source, normed or not."""
    after = not ground.draft.config.under(ground.wiring).norm_before_residual
    label = "the residual is the normed state" if after else "the residual is the un-normed state"
    yield label, f'"norm_before_residual": {str(after).lower()}', {"norm_before_residual": after}


def residual_source(ground: Ground) -> Iterator[Option]:
    """The embedding carried on in the fused state's place, or the other way round."""
    embedding = not ground.draft.config.under(ground.wiring).residual_embedding
    label = "the residual is the embedding" if embedding else "the residual is the fused state"
    fix = "no config has this: what the draft's layer adds its attention to, the embedding or the fused state"
    yield label, fix, {"residual_embedding": embedding}


def fed_back(ground: Ground) -> Iterator[Option]:
    """The state fed back, normed or not."""
    normed = not ground.draft.config.under(ground.wiring).norm_output
    label = "the state fed back is normed" if normed else "the state fed back is un-normed"
    yield label, f'"norm_output": {str(normed).lower()}', {"norm_output": normed}


def head_norm(ground: Ground) -> Iterator[Option]:
    """What the head reads, normed or not, with either feedback: one word, norm_output, has meant both."""
    config = ground.draft.config.under(ground.wiring)
    normed = not config.norm_head
    label = "the head reads the normed state" if normed else "the head reads the un-normed state"
    fix = '"norm_output" as SpecForge until September 2026 means it: whether the head is normed'
    yield label, fix, {"norm_head": normed}
    feedback = "normed" if not config.norm_output else "un-normed"
    yield f"{label}, {feedback} feedback", fix, {"norm_head": normed, "norm_output": not config.norm_output}


def head_norms(ground: Ground) -> Iterator[Option]:
    """Queries and keys un-normed."""
    if variants.has_head_norms(ground.draft):
        fix = 'an attention class with q_norm and k_norm, such as Qwen3\'s: the class by "model_type"'
        yield "queries and keys un-normed", fix, variants.without_head_norms(ground.draft)


def rope(ground: Ground) -> Iterator[Option]:
    """Another theta, no stretching, other dimensions turned, another pairing; the target's rope."""
    own, target = ground.draft.config.under(ground.wiring).rope, ground.target
    thetas = {ground.draft.config.rope.theta: "the draft's", THETA: "the usual default"}
    if target is not None and target.rope_theta:
        thetas[target.rope_theta] = "the target's"
    for theta, whose in thetas.items():
        yield f"rope theta {theta:g}, {whose}", f'"rope_theta": {theta:g}', {"rope_theta": theta}
    yield "rope not stretched", '"rope_scaling": null', {"rope_kind": "default"}
    for fraction in FRACTIONS:
        if own.fraction == fraction or ground.draft.config.mla or (ground.draft.config.head_dim * fraction) % 2:
            continue
        yield f"{fraction:.0%} of a head turned", f'"partial_rotary_factor": {fraction}', {"rope_fraction": fraction}
    pairing = "interleaved" if not own.interleaved else "half-split"
    yield f"rope pairs {pairing}", '"rope_interleave"', {"rope_interleaved": not own.interleaved}
    whole = target_rope(target) if target is not None else None
    if whole is not None and whole.kind != "default":
        yield "the target's whole rope", f'"rope_scaling" of type {whole.kind}', variants.with_rope(ground.draft, whole)


def positions(ground: Ground) -> Iterator[Option]:
    """Positions of later steps that stand still. An offset of all positions turns queries and keys alike,
    so it shows only where the rope depends on the length."""
    config = ground.draft.config.under(ground.wiring)
    for advance, label in {0: "stand still", 1: "grow by one"}.items():
        fix = "no config has this: the position ids that the engine's draft loop gives to each step"
        yield f"rope positions {label} from step to step", fix, {"position_advance": advance}
    if config.rope.kind in ("dynamic", "longrope"):
        for offset in (0, 1):
            yield f"the first pair at position {offset}", "no config has this", {"position_offset": offset}


def window(ground: Ground) -> Iterator[Option]:
    """The attention window on or off."""
    config = ground.draft.config.under(ground.wiring)
    if any(config.windows):
        yield "no attention window", '"sliding_window": null', {"window": "off"}
    size = ground.draft.raw_config.get("sliding_window") or next(filter(None, ground.draft.config.windows), WINDOW)
    if isinstance(size, int) and size < ground.longest:
        yield f"a window of {size}", f'"sliding_window": {size}, "use_sliding_window": true', {"window": size}


def window_origin(ground: Ground) -> Iterator[Option]:
    """The window counted from the round's start, or from the query's own position."""
    config = ground.draft.config.under(ground.wiring)
    if any(config.windows):
        start = "start" if config.window_from == "query" else "query"
        label = "the window counted from the round's start" if start == "start" else "the window counted from the query"
        yield (
            label,
            "no config has this: which prefix keys the later steps of a windowed draft see",
            {"window_from": start},
        )


def embedding(ground: Ground) -> Iterator[Option]:
    """Another table, the table scaled as some targets scale theirs, or no token at all."""
    draft, target = ground.draft, ground.target
    root = math.sqrt(draft.config.hidden_size)
    own_table = draft.embedding is not target
    if target is not None and own_table and target.hidden_size == draft.config.hidden_size:
        fix = "whether the checkpoint's embed_tokens is used: SGLang and TensorRT-LLM put the target's in its place"
        yield "the target's embedding", fix, variants.with_embedding(draft, target)
    for scale, label in ((1.0, "the embedding unscaled"), (root, "the embedding times √H"), (0.0, "no embedding")):
        if scale != draft.embedding_scale:
            fix = "no config has this: the scale of the embedding, or whether it was loaded at all"
            yield label, fix, variants.with_embedding(draft, scale=scale)


def head(ground: Ground) -> Iterator[Option]:
    """The target's head instead of the draft's."""
    draft, target = ground.draft, ground.target
    if target is not None and "lm_head.weight" in draft.tensors and target.hidden_size == draft.config.hidden_size:
        fix = '"tie_word_embeddings": false, and whether the checkpoint\'s lm_head is used'
        yield "the target's head", fix, variants.with_target_head(draft, target)


def vocabulary(ground: Ground) -> Iterator[Option]:
    """d2t read another way."""
    if variants.stored_map(ground.draft) is None:
        return
    words = {"offsets": "d2t as offsets", "absolute ids": "d2t as target ids", "none": "d2t ignored"}
    for reading, label in words.items():
        other = variants.with_vocabulary(ground.draft, reading)
        if not torch.equal(other.target_ids, ground.draft.target_ids):
            yield label, "d2t: offsets in every trainer's file, target ids in llama.cpp's", other


def numerics(ground: Ground) -> Iterator[Option]:
    """The pass in bfloat16 or in float32."""
    other = torch.bfloat16 if ground.draft.dtype == torch.float32 else torch.float32
    name = str(other).removeprefix("torch.")
    yield f"computed in {name}", f'"torch_dtype": "{name}"', variants.in_dtype(ground.draft, other)


def target_rope(target: Target) -> Rope | None:
    """The rope of a target's config.json; None where there is none or it is of a kind that is not computed."""
    path = target.path / "config.json"
    if not path.is_file():
        return None
    config = read_json(path)
    try:
        return rope_config(target.path, config.get("text_config", config), latent=False)
    except InputError:
        return None
