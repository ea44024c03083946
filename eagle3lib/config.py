"""What a draft's pass does, in the field's names. `infer` fills it: tensor shapes first, config.json second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from eagle3lib.boundaries import Wiring

InputNorm = Literal["none", "concat", "slots"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
WindowFrom = Literal["query", "start"]

#: Flags of a wiring that stand for the config's entry of the same name.
FLAGS = (
    "input_norm", "norm_before_residual", "residual_embedding", "norm_output", "norm_head", "hidden_first",
    "token_shift", "window_from", "position_offset", "position_advance",
)  # fmt: skip


@dataclass(frozen=True)
class Rope:
    """How positions turn queries and keys. Which numbers count depends on `kind`; see `rope.frequencies`."""

    theta: float = 10000.0  # the base of the angles
    kind: RopeKind = "default"
    factor: float = 1.0  # how many times longer than in training; every kind but default and longrope
    original_length: int | None = None  # positions of the training that was stretched
    fraction: float = 1.0  # of a head's dimensions, the first ones, that are turned (partial rotary)
    interleaved: bool = False  # pairs are (0, 1), (2, 3), ... instead of (j, j + d/2)
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: the ramp's ends are whole dimensions
    mscale: float = 0.0  # yarn
    mscale_all_dim: float = 0.0  # yarn
    short_factors: tuple[float, ...] = ()  # longrope, up to original_length
    long_factors: tuple[float, ...] = ()  # longrope, beyond it
    magnitude: float | None = None  # attention_factor: of cosines and sines; None: by the kind's own rule
    length: int | None = None  # what dynamic and longrope go by; None: the sequence's own, as transformers does


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention's sizes (DeepSeek-V2, arXiv 2405.04434)."""

    q_rank: int | None  # None: queries are projected at once
    kv_rank: int
    nope_dim: int  # of a query's and key's dimensions, those without position
    rope_dim: int
    value_dim: int
    norm_eps: float = 1e-6  # of the latents' norms; transformers' DeepSeek-V3 has this whatever rms_norm_eps says


@dataclass(frozen=True)
class DraftConfig:
    """Every number and switch that the pass depends on. Symbols as in the equations of `forward`.

    SpecForge until September 2026 calls `norm_output` what is `norm_head` here, and always feeds back u. Such a
    draft is `Wiring(norm_output=False, norm_head=<its norm_output>)`; no config says which meaning is meant.

    Attributes:
        windows: of each layer, how many positions a query sees, its own included; None for all.
        window_from: "query" counts from the query's own position i + k, as a server does at step k;
            "start" from the round's start i, as speculators' training mask does, chain keys always seen.
        mismatches: sentences on what config.json says against the tensors, which win.
    """

    hidden_size: int  # H
    target_hidden_size: int  # Ht, the width of one slot
    n_slots: int  # A; 1 without fc
    n_heads: int
    n_kv_heads: int
    head_dim: int  # of queries and keys
    intermediate_size: int
    vocab_size: int  # V, of the target
    draft_vocab_size: int  # Vd
    norm_eps: float
    rope: Rope
    max_positions: int | None
    n_layers: int = 1
    mla: Mla | None = None
    uses_fc: bool = True  # False (use_aux_hidden_state = false): g is the target's final normed state
    input_norm: InputNorm = "none"  # norm_before_fc: one norm over the concat; fc_norm: one a slot
    norm_before_residual: bool = False  # the residual source is rms(g) instead of g
    residual_embedding: bool = False  # the residual source is the embedding, normed or not, instead of g
    norm_output: bool = False  # feed back rms(u) instead of u
    norm_head: bool = True  # lm_head reads rms(u) instead of u
    hidden_first: bool = False  # x is cat(rms(g), rms(embed)); every known system has the embedding first
    token_shift: int = 0  # of the token read beside a state; see `fusion.paired`
    windows: tuple[int | None, ...] = (None,)
    window_from: WindowFrom = "query"  # where windows are counted from: the query, or the round's start
    position_offset: int = 0  # rope position of pair 0 at step 0; 1 in speculators' training
    position_advance: int = 1  # by which the rope position grows from step to step
    mismatches: tuple[str, ...] = ()

    @property
    def rotary_dim(self) -> int:
        """How many dimensions of a head are turned."""
        return self.mla.rope_dim if self.mla else int(self.head_dim * self.rope.fraction)

    def window(self, layer: int, step: int) -> int | None:
        """How many prefix keys a query of this step sees, counted back from its start; None for all."""
        window = self.windows[layer]
        return window if window is None or self.window_from == "start" else window - step

    def chain_window(self, layer: int, step: int) -> int:
        """How many of its own chain's `step` keys a query of this step sees, the latest ones."""
        window = self.windows[layer]
        return step if window is None or self.window_from == "start" else min(step, window)

    def under(self, wiring: Wiring) -> DraftConfig:
        """This config with the flags that `wiring` sets."""
        overrides = {name: getattr(wiring, name) for name in FLAGS if getattr(wiring, name) is not None}
        entries = ("theta", "kind", "fraction", "interleaved")
        turned = {name: value for name in entries if (value := getattr(wiring, f"rope_{name}")) is not None}
        if turned:
            overrides["rope"] = replace(self.rope, **turned)
        if wiring.window is not None:
            overrides["windows"] = (None if wiring.window == "off" else wiring.window,) * self.n_layers
        return replace(self, **overrides)
