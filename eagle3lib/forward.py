"""The manual pass of an EAGLE-3 draft: plain functions on tensors, CPU or CUDA.

    aux    = cat(h[slot_1], ..., h[slot_A])                     [T, A*Ht]
    aux    = rms(aux) | cat(rms_i(chunk_i)) | aux               norm_before_fc | fc_norm | neither
    g      = fc(aux)                                            [T, H]    step 0 only
    x      = cat(rms(embed(token)), rms(g))                     [T, 2H]   embedding first
    r      = rms(g) if norm_before_residual else g
    y      = r + attention(x)
    u      = y + mlp(rms(y))
    y, u   = the same again for each further layer, on rms(u)
    logits = lm_head(rms(u)), or lm_head(u) without norm_head   [T, Vd]
    g'     = rms(u) if norm_output else u                       fed to the next step

A draft without `fc` takes the target's final normed state for g.

Pair i is (h[i], x[i + 1]) and predicts x[i + 2]; step k of pair i reads x[i + 1 + k] at rope position i + k
and predicts x[i + 2 + k]. (arXiv 2503.01840; the same in EAGLE, speculators, SpecForge, SGLang and vLLM.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eagle3lib import attention, layer, rope
from eagle3lib.checkpoint import Draft
from eagle3lib.config import DraftConfig
from eagle3lib.layer import Tap, untapped
from eagle3lib.norm import rms_norm


@dataclass
class Keys:
    """One layer's step-0 keys and values, and those of every later step of each pair's own chain."""

    k: Float[Tensor, "kv T d"]
    v: Float[Tensor, "kv T dv"]
    chain_k: list[Float[Tensor, "kv R d"]] = field(default_factory=list)
    chain_v: list[Float[Tensor, "kv R dv"]] = field(default_factory=list)


@dataclass
class Prefix:
    """What later steps need of the steps before: each layer's keys. `length` counts the pairs."""

    layers: list[Keys]
    length: int
    steps: int = 1  # done

    def keep(self, rows: Bool[Tensor, " R"] | Int[Tensor, " r"]) -> None:
        """Go on from these rows of the last step only: the others' keys are dropped; a row may branch, named twice."""
        for keys in self.layers:
            keys.chain_k = [k[:, rows] for k in keys.chain_k]
            keys.chain_v = [v[:, rows] for v in keys.chain_v]


def first_step(
    draft: Draft,
    config: DraftConfig,
    g: Float[Tensor, "P H"],
    embedding: Float[Tensor, "P H"],
    tap: Tap = untapped,
) -> tuple[Float[Tensor, "P H"], Prefix]:
    """Step 0 from target states: u of every pair. `embedding[i]` is that of x[i + 1]."""
    every = torch.arange(len(g), device=g.device)
    u, prefixes = packed_first_step(draft, config, g, embedding, [len(g)], [every], every=True, tap=tap)
    return u, prefixes[0]


def packed_first_step(
    draft: Draft,
    config: DraftConfig,
    g: Float[Tensor, "P H"],
    embedding: Float[Tensor, "P H"],
    lengths: Sequence[int],
    positions: Sequence[Int[Tensor, " R"]],
    *,
    every: bool = False,
    tap: Tap = untapped,
) -> tuple[Float[Tensor, "R H"], list[Prefix]]:
    """Step 0 of several sequences laid end to end: one large product a weight instead of many small.

    Args:
        lengths: pairs of each sequence; they sum to P.
        positions: of each sequence, the pairs whose u is wanted, counted from its own first. Keys and values
            are made for every pair either way.
        every: that `positions` names every pair, in order.
    """
    offsets = [sum(lengths[:i]) for i in range(len(lengths))]
    wanted = torch.cat([offset + own for offset, own in zip(offsets, positions, strict=True)])
    places = [torch.arange(n, device=g.device) for n in lengths]
    turns = [_turns(config, own, 0, len(own)) for own in places]
    cos, sin = (torch.cat(parts) for parts in zip(*turns, strict=True))
    keys: list[list[Keys]] = [[] for _ in lengths]
    tap("fused", g)
    u = g
    for i, w in enumerate(draft.weights.layers):
        tap_layer = _layer_tap(tap, i)
        whole = every or i + 1 < config.n_layers  # a further layer reads every pair
        rows, asked = (slice(None), places) if whole else (wanted, positions)
        x, residual = layer.layer_input(config, w, u, embedding if i == 0 else None, tap_layer)
        k, v = layer.keys_values(config, w, x, (cos, sin))
        q = layer.queries(config, w, x[rows], (cos[rows], sin[rows]))
        tap_layer("q", _flat(q))
        tap_layer("k", _flat(k))
        outs = []
        split_q = q.split([len(own) for own in asked], dim=1)
        split_k, split_v = k.split(list(lengths), dim=1), v.split(list(lengths), dim=1)
        window, scale = config.window(i, 0), layer.score_scale(config)
        for q_own, own, k_own, v_own, found in zip(split_q, asked, split_k, split_v, keys, strict=True):
            seen = (
                attention.causal(q_own, k_own, v_own, scale, window)
                if whole
                else attention.rows(q_own, own, k_own, v_own, scale, window)
            )
            outs.append(seen[0])
            found.append(Keys(k_own, v_own))
        u = layer.layer_output(config, w, residual[rows], torch.cat(outs, dim=1), tap_layer)
    u = u if every or len(u) == len(wanted) else u[wanted]
    tap("pre_norm", u)
    return u, [Prefix(found, n) for found, n in zip(keys, lengths, strict=True)]


def next_step(
    draft: Draft,
    config: DraftConfig,
    g: Float[Tensor, "R H"],
    embedding: Float[Tensor, "R H"],
    prefix: Prefix,
    tap: Tap = untapped,
) -> Float[Tensor, "R H"]:
    """Step k >= 1 of the first R pairs, from fed-back states; `embedding[i]` is that of x[i + 1 + k].

    Appends the step's own keys and values to `prefix`.
    """
    n, step = len(g), prefix.steps
    turns = _turns(config, torch.arange(n, device=g.device), step, prefix.length)
    tap("fused", g)
    u = g
    for i, (w, keys) in enumerate(zip(draft.weights.layers, prefix.layers, strict=True)):
        tap_layer = _layer_tap(tap, i)
        x, residual = layer.layer_input(config, w, u, embedding if i == 0 else None, tap_layer)
        q = layer.queries(config, w, x, turns)
        k, v = layer.keys_values(config, w, x, turns)
        tap_layer("q", _flat(q))
        tap_layer("k", _flat(k))
        keys.chain_k.append(k)
        keys.chain_v.append(v)
        scale, own = layer.score_scale(config), config.chain_window(i, step)
        out, lse = attention.causal(q, keys.k[:, :n], keys.v[:, :n], scale, config.window(i, step))
        chain_k = torch.stack([k[:, :n] for k in keys.chain_k[-own:]], dim=2)  # [kv, R, own, d]
        chain_v = torch.stack([v[:, :n] for v in keys.chain_v[-own:]], dim=2)
        out = attention.with_chain(out, lse, q, chain_k, chain_v, scale)
        u = layer.layer_output(config, w, residual, out, tap_layer)
    prefix.steps += 1
    tap("pre_norm", u)
    return u


def packed_next_step(
    draft: Draft,
    config: DraftConfig,
    g: Float[Tensor, "R H"],
    embedding: Float[Tensor, "R H"],
    prefixes: Sequence[Prefix],
    positions: Sequence[Int[Tensor, " r"]],
) -> Float[Tensor, "R H"]:
    """Step k >= 1 of some pairs of several sequences laid end to end, as `packed_first_step`.

    Args:
        g: fed-back states; `embedding[i]` is that of x[i + 1 + k], both in the order of `positions`.
        positions: of each sequence, the pairs at which the chains started that its prefix keeps (see `Prefix.keep`).
    """
    step, counts = prefixes[0].steps, [len(own) for own in positions]
    turned = [_turns(config, own, step, prefix.length) for own, prefix in zip(positions, prefixes, strict=True)]
    turns = tuple(torch.cat(parts) for parts in zip(*turned, strict=True))
    u = g
    for i, w in enumerate(draft.weights.layers):
        x, residual = layer.layer_input(config, w, u, embedding if i == 0 else None)
        q = layer.queries(config, w, x, turns).split(counts, dim=1)
        k, v = (own.split(counts, dim=1) for own in layer.keys_values(config, w, x, turns))
        scale, seen, outs = layer.score_scale(config), config.chain_window(i, step), []
        for j, (own, prefix) in enumerate(zip(positions, prefixes, strict=True)):
            keys = prefix.layers[i]
            keys.chain_k.append(k[j])
            keys.chain_v.append(v[j])
            out, lse = attention.rows(q[j], own, keys.k, keys.v, scale, config.window(i, step))
            chain_k, chain_v = torch.stack(keys.chain_k[-seen:], dim=2), torch.stack(keys.chain_v[-seen:], dim=2)
            outs.append(attention.with_chain(out, lse, q[j], chain_k, chain_v, scale))
        u = layer.layer_output(config, w, residual, torch.cat(outs, dim=1))
    for prefix in prefixes:
        prefix.steps += 1
    return u


def feedback(draft: Draft, config: DraftConfig, u: Float[Tensor, "R H"]) -> Float[Tensor, "R H"]:
    """g' = rms(u) if norm_output else u."""
    return rms_norm(u, draft.weights.norm, config.norm_eps) if config.norm_output else u


def _turns(config: DraftConfig, pairs: Int[Tensor, " R"], step: int, length: int) -> layer.Turns:
    """Rope of step k at pair i: position i + k * advance + offset, in a sequence of so many pairs."""
    shift = step * config.position_advance + config.position_offset
    return rope.cos_sin(pairs + shift, config.rope, config.rotary_dim, length + shift)


def _layer_tap(tap: Tap, index: int) -> Tap:
    """The first layer's names are plain; layer i's begin with `layers.i.`."""
    return tap if index == 0 or tap is untapped else lambda name, value: tap(f"layers.{index}.{name}", value)


def _flat(heads: Float[Tensor, "h R d"]) -> Float[Tensor, "R h*d"]:
    return heads.transpose(0, 1).flatten(1)
