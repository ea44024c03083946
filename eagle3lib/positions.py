"""What config.json says about positions: rope, and windows. No tensor tells them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from eagle3lib.config import Rope, RopeKind
from eagle3lib.errors import InputError

#: Rope types that are another's computation under an older or an engine's name; mrope's axes agree on text.
ROPE_ALIASES = {"su": "longrope", "mrope": "default"}
#: Of the numbers that some kinds need, those that both sides call the same.
NUMBERS = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim")


def windows(flat: dict[str, Any], n_layers: int) -> tuple[int | None, ...]:
    """By `layer_types` where there are any; else every layer or none, as the model type reads `sliding_window`."""
    window, types = flat.get("sliding_window"), flat.get("layer_types")
    if not window:
        return (None,) * n_layers
    if types:
        kinds = [*types, *[types[-1]] * n_layers][:n_layers]
        return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
    windowed = flat.get("use_sliding_window", flat.get("model_type") == "mistral")
    return (int(window) if windowed else None,) * n_layers


def rope_config(path: Path, flat: dict[str, Any], latent: bool) -> Rope:
    """`rope_parameters` as transformers 5 writes it, else `rope_scaling` beside a `rope_theta` at the top level.

    Args:
        path: for messages.
        latent: that the draft's attention is latent, where pairs are interleaved unless config.json says no.

    Raises:
        InputError: for a type that is not computed, or one without its numbers.
    """
    given = flat.get("rope_parameters") or flat.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in given.values()):  # one a layer type; speculators takes this one
        given = given.get("sliding_attention") or next(v for v in given.values() if isinstance(v, dict))
    kind = given.get("rope_type") or given.get("type") or "default"
    kind = ROPE_ALIASES.get(kind, kind)
    if kind not in get_args(RopeKind):
        raise InputError(
            f"config.json in {path} asks for rope of type {kind!r}; this version computes"
            f" {', '.join(get_args(RopeKind))}."
        )
    maximum = flat.get("max_position_embeddings")
    original = given.get("original_max_position_embeddings") or flat.get("original_max_position_embeddings") or maximum
    original = maximum if kind == "dynamic" else original
    factor = given.get("factor") or (maximum / original if kind in ("yarn", "longrope") and maximum else None)
    if kind != "default" and (factor is None or (kind != "linear" and original is None)):
        raise InputError(f"config.json in {path} asks for {kind} rope without its factor or original length.")
    return Rope(
        theta=float(given.get("rope_theta") or flat.get("rope_theta") or Rope.theta),
        kind=kind,
        factor=float(factor or 1.0),
        original_length=original,
        fraction=float(given.get("partial_rotary_factor") or flat.get("partial_rotary_factor") or 1.0),
        interleaved=bool(flat.get("rope_interleave", latent)),
        magnitude=given.get("attention_factor"),
        short_factors=tuple(given.get("short_factor") or ()),
        long_factors=tuple(given.get("long_factor") or ()),
        **{name: given[name] for name in NUMBERS if given.get(name) is not None},
    )
