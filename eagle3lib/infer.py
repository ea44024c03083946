"""A draft's config from its tensors' shapes first, and config.json second; where they differ the tensors win."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle3lib.config import DraftConfig, InputNorm, Mla
from eagle3lib.draft_weights import Shapes, expected_shapes, layer_prefix, optional_shapes, substitutable_shapes
from eagle3lib.errors import InputError
from eagle3lib.positions import rope_config, windows

FIRST = layer_prefix(0)
ATTENTION = FIRST + "self_attn."


@dataclass
class Reader:
    """config.json at one level beside the tensors' shapes, and what it said against them."""

    path: Path
    flat: dict[str, Any]
    shapes: Shapes
    mismatches: list[str] = field(default_factory=list)

    def number(self, name: str) -> float:
        """A number that no shape tells.

        Raises:
            InputError: if config.json lacks it.
        """
        value = self.flat.get(name)
        if value is None:
            raise InputError(f"Expected {name} in {self.path / 'config.json'}, found none.")
        return value

    def settle(self, name: str, found: Any) -> Any:
        """What the tensors say, kept; config.json's word against it is noted."""
        stated = self.flat.get(name)
        if stated is not None and stated != found:
            self.mismatches.append(f"config.json says {name} = {stated!r}, the tensors say {found!r}")
        return found

    def rows(self, name: str) -> int:
        """How many outputs a weight has.

        Raises:
            InputError: if the checkpoint lacks it.
        """
        return self.shape(name)[0]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight that every pass reads.

        Raises:
            InputError: if the checkpoint lacks it.
        """
        if name not in self.shapes:
            raise InputError(f"Expected the tensor {name} in {self.path}, found none; is it an EAGLE-3 draft, whole?")
        return self.shapes[name]


def infer_config(path: Path, flat: dict[str, Any], shapes: Shapes) -> DraftConfig:
    """The config of a checkpoint.

    Args:
        path: for messages.
        flat: config.json with the layer's numbers and the pass's flags at one level.
        shapes: of every tensor, by canonical name.

    Raises:
        InputError: if a tensor of the pass is missing, shapes contradict each other, or config.json lacks a
            number that no shape tells.
    """
    read = Reader(path, flat, shapes)
    hidden = read.rows("fc.weight" if "fc.weight" in shapes else "norm.weight")
    n_layers = 1 + max((int(n.split(".")[1]) for n in shapes if n.startswith("layers.")), default=0)
    read.settle("num_hidden_layers", n_layers)
    if (act := flat.get("hidden_act")) not in (None, "silu", "swish"):
        raise InputError(f"config.json in {path} asks for the activation {act!r}; this pass computes silu only.")
    config = DraftConfig(
        hidden_size=read.settle("hidden_size", hidden),
        intermediate_size=read.settle("intermediate_size", read.rows(FIRST + "mlp.gate_proj.weight")),
        norm_eps=float(read.number("rms_norm_eps")),
        max_positions=flat.get("max_position_embeddings"),
        n_layers=n_layers,
        rope=rope_config(path, flat, latent=ATTENTION + "kv_a_proj_with_mqa.weight" in shapes),
        windows=windows(flat, n_layers),
        norm_before_residual=bool(flat.get("norm_before_residual", False)),
        norm_output=bool(flat.get("norm_output", False)),
        **_slots(read, hidden),
        **_heads(read, hidden),
        **_vocabulary(read),
    )
    config = replace(config, mismatches=tuple(read.mismatches))
    check_shapes(path, config, shapes)
    return config


def check_shapes(path: Path, config: DraftConfig, shapes: Shapes) -> None:
    """Hold every tensor of the pass against the shape that this config gives it.

    Raises:
        InputError: if one is missing or has another shape.
    """
    required = expected_shapes(config)
    for name in [name for name in required if name not in shapes]:
        raise InputError(f"Expected the tensor {name} in {path}, found none; is it an EAGLE-3 draft, whole?")
    for name, expected in {**required, **optional_shapes(config), **substitutable_shapes(config)}.items():
        found = shapes.get(name, expected)
        padded = name in ("embed_tokens.weight", "t2d") and found[0] > expected[0] and found[1:] == expected[1:]
        if found != expected and not padded:
            raise InputError(
                f"{name} in {path} has the shape {list(found)}; the other tensors and config.json make it"
                f" {list(expected)}."
            )
    for i in range(config.n_layers):
        norms = [name for x in "qk" if (name := f"{layer_prefix(i)}self_attn.{x}_norm.weight") in shapes]
        if config.mla is None and len(norms) == 1:
            raise InputError(f"{path} holds {norms[0]} without the other of q_norm and k_norm.")


def _slots(read: Reader, hidden: int) -> dict[str, Any]:
    """How many states of which width are fused, and what norm they meet first."""
    shapes = read.shapes
    target_hidden = int(read.flat.get("target_hidden_size") or hidden)
    if "fc.weight" not in shapes:
        if read.flat.get("use_aux_hidden_state") is not False:
            read.shape("fc.weight")  # absent, and no config says that it should be
        return {"target_hidden_size": hidden, "n_slots": 1, "uses_fc": False}
    if read.flat.get("use_aux_hidden_state") is False:
        read.mismatches.append("config.json says use_aux_hidden_state = False, the tensors hold fc")
    fused = read.shape("fc.weight")[-1]
    norms = sorted(name for name in shapes if name.startswith("fc_norm."))
    if norms and read.shape(norms[0])[0] * len(norms) == fused:
        target_hidden = read.settle("target_hidden_size", fused // len(norms))
    if fused % target_hidden:
        raise InputError(
            f"fc.weight in {read.path} takes {fused} inputs, no multiple of the target's hidden size {target_hidden}."
        )
    input_norm: InputNorm = "slots" if norms else "concat" if "input_norm.weight" in shapes else "none"
    for flag, kind in (("norm_before_fc", "concat"), ("fc_norm", "slots"), ("use_aux_norm", "slots")):
        if flag in read.flat and bool(read.flat[flag]) != (input_norm == kind):
            read.settle(flag, input_norm == kind)
    return {"target_hidden_size": target_hidden, "n_slots": fused // target_hidden, "input_norm": input_norm}


def _heads(read: Reader, hidden: int) -> dict[str, Any]:
    """Heads and their sizes; config.json must say how many heads, rows alone cannot."""
    n_heads = int(read.number("num_attention_heads"))
    if ATTENTION + "kv_a_proj_with_mqa.weight" in read.shapes:
        mla = _mla(read, n_heads)
        _expect_wide(read, "kv_a_proj_with_mqa", hidden)
        return {"n_heads": n_heads, "n_kv_heads": n_heads, "head_dim": mla.nope_dim + mla.rope_dim, "mla": mla}
    _expect_wide(read, "q_proj", hidden)
    q_rows, k_rows = (read.rows(f"{ATTENTION}{x}_proj.weight") for x in "qk")
    if (norm := ATTENTION + "q_norm.weight") in read.shapes:  # a head's own width
        head_dim = read.settle("head_dim", read.rows(norm))
        n_heads = read.settle("num_attention_heads", q_rows // head_dim)
    else:
        head_dim = int(read.flat.get("head_dim") or q_rows // n_heads)
    if q_rows != n_heads * head_dim or k_rows % head_dim:
        raise InputError(
            f"config.json in {read.path} says {n_heads} heads of {head_dim}, and q_proj has {q_rows} rows, k_proj"
            f" {k_rows}; correct num_attention_heads or head_dim."
        )
    n_kv_heads = read.settle("num_key_value_heads", k_rows // head_dim)
    return {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}


def _expect_wide(read: Reader, projection: str, hidden: int) -> None:
    """The first layer reads the embedding beside the hidden state."""
    columns = read.shape(f"{ATTENTION}{projection}.weight")[-1]
    if columns != 2 * hidden:
        raise InputError(
            f"Expected {ATTENTION}{projection}.weight in {read.path} to take 2 x {hidden} inputs, the embedding and"
            f" the hidden state, found {columns}; an EAGLE-1 or plain Llama layer does not."
        )


def _mla(read: Reader, n_heads: int) -> Mla:
    kv_rank = read.rows(ATTENTION + "kv_a_layernorm.weight")
    rope_dim = read.rows(ATTENTION + "kv_a_proj_with_mqa.weight") - kv_rank
    low_rank = ATTENTION + "q_a_layernorm.weight" in read.shapes
    q_rows = read.rows(ATTENTION + ("q_b_proj" if low_rank else "q_proj") + ".weight")
    nope_dim = q_rows // n_heads - rope_dim
    value_dim = read.rows(ATTENTION + "kv_b_proj.weight") // n_heads - nope_dim
    if min(rope_dim, nope_dim, value_dim) <= 0 or q_rows % n_heads:
        raise InputError(
            f"config.json in {read.path} says {n_heads} heads, and the latent attention's tensors would leave heads"
            f" of {nope_dim} + {rope_dim} with values of {value_dim}; correct num_attention_heads."
        )
    for name, found in (
        ("kv_lora_rank", kv_rank),
        ("qk_rope_head_dim", rope_dim),
        ("qk_nope_head_dim", nope_dim),
        ("v_head_dim", value_dim),
    ):
        read.settle(name, found)
    q_rank = read.settle("q_lora_rank", read.rows(ATTENTION + "q_a_layernorm.weight") if low_rank else None)
    return Mla(q_rank, kv_rank, nope_dim, rope_dim, value_dim)


def _vocabulary(read: Reader) -> dict[str, int]:
    """V of the target, and Vd: rows of the head, else as many as d2t maps, else the whole vocabulary."""
    vocab = int(read.number("vocab_size"))
    sized = next((read.rows(name) for name in ("lm_head.weight", "d2t") if name in read.shapes), vocab)
    return {"vocab_size": vocab, "draft_vocab_size": read.settle("draft_vocab_size", sized)}
