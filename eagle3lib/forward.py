"""The manual pass of an EAGLE-3 draft: plain functions on tensors, CPU or CUDA.

    aux    = cat(h[slot_1], ..., h[slot_A])                     [T, A*Ht]
    aux    = rms(aux) | cat(rms_i(chunk_i)) | aux               norm_before_fc | fc_norm | neither
    g      = fc(aux)                                            [T, H]    step 0 only
    x      = cat(rms(embed(token)), rms(g))                     [T, 2H]   embedding first
    r      = rms(g) if norm_before_residual else g
    y      = r + attention(x)
    u      = y + mlp(rms(y))
    logits = lm_head(rms(u))                                    [T, Vd]
    g'     = rms(u) if norm_output else u                       fed to the next step

Pair i is (h[i], x[i + 1]) and predicts x[i + 2]; step k of pair i reads x[i + 1 + k] at rope position i + k
and predicts x[i + 2 + k]. (arXiv 2503.01840; the same in EAGLE, speculators, SpecForge, SGLang and vLLM.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear, silu

from eagle3lib import attention, rope
from eagle3lib.boundaries import Boundary, Wiring, boundary_name
from eagle3lib.checkpoint import Draft
from eagle3lib.config import DraftConfig
from eagle3lib.errors import InputError
from eagle3lib.norm import rms_norm
from eagle3lib.sample import Sample

#: Rows of pre-norm states whose logits are held at a time.
HEAD_BLOCK = 1024


@dataclass
class Prefix:
    """Step-0 keys and values, and those of every later step of each pair's own chain."""

    k: Float[Tensor, "kv T d"]
    v: Float[Tensor, "kv T d"]
    chain_k: list[Float[Tensor, "kv R d"]] = field(default_factory=list)
    chain_v: list[Float[Tensor, "kv R d"]] = field(default_factory=list)


def slot_state(draft: Draft, sample: Sample, boundary: Boundary) -> Float[Tensor, "P Ht"]:
    """The states that a slot is fed, for every pair, in the draft's dtype.

    Raises:
        InputError: if the sample lacks the boundary, or its states have another width than the draft's slots.
    """
    state = sample.state(boundary)[: sample.n_pairs]
    if state.shape[1] != draft.config.target_hidden_size:
        raise InputError(
            f"{sample.name} holds states of width {state.shape[1]} at {boundary_name(boundary)}, the draft's fc takes"
            f" slots of {draft.config.target_hidden_size}; is the dump another target's?"
        )
    return state.to(draft.device, draft.dtype)


def fuse(draft: Draft, sample: Sample, wiring: Wiring) -> Float[Tensor, "P H"]:
    """g = fc(aux) of every pair, with the input norm that the wiring's flags ask for.

    Raises:
        InputError: if the wiring has not the draft's number of slots, or asks for a norm whose weights the
            draft does not hold, and as `slot_state`.
    """
    if len(wiring.slots) != draft.config.n_slots:
        raise InputError(
            f"The draft's fc has {draft.config.n_slots} slots, the wiring {wiring} names {len(wiring.slots)}."
        )
    config, norms = draft.config.under(wiring), draft.weights.input_norms
    expect_input_norms(draft, config)
    states = [slot_state(draft, sample, boundary) for boundary in wiring.slots]
    if config.input_norm == "slots":
        states = [rms_norm(s, w, config.norm_eps) for s, w in zip(states, norms, strict=True)]
    aux = torch.cat(states, dim=-1)  # [P, A*Ht]
    if config.input_norm == "concat":
        aux = rms_norm(aux, norms[0], config.norm_eps)
    return linear(aux, draft.weights.fc)


def expect_input_norms(draft: Draft, config: DraftConfig) -> None:
    """Check that the draft holds the input norms that a config asks for.

    Raises:
        InputError: if it does not.
    """
    wanted = {"none": None, "concat": 1, "slots": config.n_slots}[config.input_norm]
    found = len(draft.weights.input_norms)
    if wanted is not None and wanted != found:
        raise InputError(f"The wiring asks for {wanted} input norm(s), {draft.path} holds {found}.")


def first_step(
    draft: Draft,
    config: DraftConfig,
    g: Float[Tensor, "P H"],
    embedding: Float[Tensor, "P H"],
    positions: Int[Tensor, " R"] | None = None,
) -> tuple[Float[Tensor, "R H"], Prefix]:
    """Step 0 from target states: u for every pair, or for the pairs at `positions` only.

    Keys and values are made for every pair either way. `embedding[i]` is that of x[i + 1].
    """
    every = positions is None
    positions = torch.arange(len(g), device=g.device) if positions is None else positions
    u, prefixes = packed_first_step(draft, config, g, embedding, [len(g)], [positions], every=every)
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
) -> tuple[Float[Tensor, "R H"], list[Prefix]]:
    """As `first_step` for several sequences laid end to end: one large product a weight instead of many small.

    Args:
        lengths: pairs of each sequence; they sum to P.
        positions: of each sequence, the pairs wanted, counted from its own first.
        every: that `positions` names every pair, in order.
    """
    w = draft.weights
    offsets = [sum(lengths[:i]) for i in range(len(lengths))]
    wanted = torch.cat([offset + own for offset, own in zip(offsets, positions, strict=True)])
    x, residual = _layer_input(draft, config, g, embedding)
    places = torch.cat([torch.arange(n, device=g.device) for n in lengths])
    cos, sin = rope.cos_sin(places, config.head_dim, config.rope_theta)
    k = rope.rotate(_heads(linear(x, w.k), config.n_kv_heads), cos, sin).split(list(lengths), dim=1)
    v = _heads(linear(x, w.v), config.n_kv_heads).split(list(lengths), dim=1)
    q = rope.rotate(_heads(linear(x[wanted], w.q), config.n_heads), cos[wanted], sin[wanted])
    outs = [
        attention.causal(q_own, k_own, v_own)[0] if every else attention.rows(q_own, own, k_own, v_own)[0]
        for q_own, own, k_own, v_own in zip(q.split([len(p) for p in positions], dim=1), positions, k, v, strict=True)
    ]
    u = _layer_output(draft, config, residual[wanted], torch.cat(outs, dim=1))
    return u, [Prefix(k_own, v_own) for k_own, v_own in zip(k, v, strict=True)]


def next_step(
    draft: Draft, config: DraftConfig, g: Float[Tensor, "R H"], embedding: Float[Tensor, "R H"], prefix: Prefix
) -> Float[Tensor, "R H"]:
    """Step k >= 1 of the first R pairs, from fed-back states; `embedding[i]` is that of x[i + 1 + k].

    Appends the step's own keys and values to `prefix`.
    """
    w = draft.weights
    n = len(g)
    x, residual = _layer_input(draft, config, g, embedding)
    step = len(prefix.chain_k) + 1
    cos, sin = rope.cos_sin(torch.arange(n, device=g.device) + step, config.head_dim, config.rope_theta)
    q = rope.rotate(_heads(linear(x, w.q), config.n_heads), cos, sin)
    prefix.chain_k.append(rope.rotate(_heads(linear(x, w.k), config.n_kv_heads), cos, sin))
    prefix.chain_v.append(_heads(linear(x, w.v), config.n_kv_heads))
    out, lse = attention.causal(q, prefix.k[:, :n], prefix.v[:, :n])
    chain_k = torch.stack([k[:, :n] for k in prefix.chain_k], dim=2)  # [kv, R, step, d]
    chain_v = torch.stack([v[:, :n] for v in prefix.chain_v], dim=2)
    out = attention.with_chain(out, lse, q, chain_k, chain_v)
    return _layer_output(draft, config, residual, out)


def feedback(draft: Draft, config: DraftConfig, u: Float[Tensor, "R H"]) -> Float[Tensor, "R H"]:
    """g' = rms(u) if norm_output else u."""
    return rms_norm(u, draft.weights.norm, config.norm_eps) if config.norm_output else u


def logits(draft: Draft, u: Float[Tensor, "R H"]) -> Float[Tensor, "R Vd"]:
    """lm_head(rms(u)), in the draft's dtype."""
    return linear(rms_norm(u, draft.weights.norm, draft.config.norm_eps), draft.weights.head)


@dataclass(frozen=True)
class Choices:
    """What the draft says at each row: its choice and what it gives the recorded token."""

    predicted: Int[Tensor, " R"]  # target ids
    logprob: Float[Tensor, " R"]  # of the recorded token, -inf outside the draft vocabulary


def choose(draft: Draft, u: Float[Tensor, "R H"], recorded: Int[Tensor, " R"]) -> Choices:
    """Greedy choice and log-probability of the recorded token, `HEAD_BLOCK` rows of logits at a time."""
    predicted, logprob = [], []
    labels = draft.draft_ids[recorded]  # [R], -1 outside the draft vocabulary
    for block, label in zip(u.split(HEAD_BLOCK), labels.split(HEAD_BLOCK), strict=True):
        z = logits(draft, block).float()
        predicted.append(draft.target_ids[z.argmax(-1)])
        value = z.gather(-1, label.clamp_min(0)[:, None])[:, 0] - z.logsumexp(-1)
        logprob.append(value.masked_fill(label < 0, -torch.inf))
    return Choices(torch.cat(predicted), torch.cat(logprob))


def _layer_input(
    draft: Draft, config: DraftConfig, g: Float[Tensor, "R H"], embedding: Float[Tensor, "R H"]
) -> tuple[Float[Tensor, "R 2*H"], Float[Tensor, "R H"]]:
    """x = cat(rms(embed), rms(g)) and the residual source."""
    normed = rms_norm(g, draft.weights.hidden_norm, config.norm_eps)
    x = torch.cat([rms_norm(embedding, draft.weights.embed_norm, config.norm_eps), normed], dim=-1)
    return x, normed if config.norm_before_residual else g


def _layer_output(
    draft: Draft, config: DraftConfig, residual: Float[Tensor, "R H"], heads_out: Float[Tensor, "h R d"]
) -> Float[Tensor, "R H"]:
    """y = r + attention(x);  u = y + down(silu(gate(rms(y))) · up(rms(y)))."""
    w = draft.weights
    y = residual + linear(heads_out.transpose(0, 1).flatten(1), w.o)
    normed = rms_norm(y, w.mlp_norm, config.norm_eps)
    return y + linear(silu(linear(normed, w.gate)) * linear(normed, w.up), w.down)


def _heads(x: Float[Tensor, "T h*d"], n: int) -> Float[Tensor, "h T d"]:
    return x.unflatten(-1, (n, -1)).transpose(0, 1)
