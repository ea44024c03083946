"""The draft: read from its folder, its tensors accounted for one by one, its weights ready for the pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eagle3lib import ecosystems
from eagle3lib.config import DraftConfig
from eagle3lib.device import resolve_device
from eagle3lib.errors import InputError
from eagle3lib.target import Target
from eagle3lib.tensors import TensorInfo, checkpoint_files, read_headers, read_json, read_tensor

#: Tensors that the pass cannot do without, by the names of speculators' form without its prefix.
LAYER = "layers.0."
REQUIRED = (
    "fc.weight",
    LAYER + "input_layernorm.weight",
    LAYER + "hidden_norm.weight",
    LAYER + "self_attn.q_proj.weight",
    LAYER + "self_attn.k_proj.weight",
    LAYER + "self_attn.v_proj.weight",
    LAYER + "self_attn.o_proj.weight",
    LAYER + "post_attention_layernorm.weight",
    LAYER + "mlp.gate_proj.weight",
    LAYER + "mlp.up_proj.weight",
    LAYER + "mlp.down_proj.weight",
    "norm.weight",
)
#: Tensors that may be absent, and what stands in for them.
SUBSTITUTES = {
    "embed_tokens.weight": "the target's embedding",
    "lm_head.weight": "the target's head, cut to the draft vocabulary",
    "d2t": "the identity: draft id = target id",
    "t2d": "derived from d2t",
}


@dataclass(frozen=True)
class LedgerEntry:
    """What became of one tensor: used by the pass, unused (and why), or missing (and what replaces it)."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str | None
    status: Literal["used", "unused", "missing"]
    note: str = ""


@dataclass(frozen=True)
class DraftWeights:
    """The pass's weights, [out, in] as stored, in one dtype on one device. Symbols as in `forward`."""

    fc: Float[Tensor, "H A*Ht"]
    input_norms: tuple[Float[Tensor, " _"], ...]  # one for norm_before_fc, A for fc_norm, none otherwise
    embed_norm: Float[Tensor, " H"]
    hidden_norm: Float[Tensor, " H"]
    q: Float[Tensor, "h*d 2*H"]
    k: Float[Tensor, "kv*d 2*H"]
    v: Float[Tensor, "kv*d 2*H"]
    o: Float[Tensor, "H h*d"]
    mlp_norm: Float[Tensor, " H"]
    gate: Float[Tensor, "I H"]
    up: Float[Tensor, "I H"]
    down: Float[Tensor, "H I"]
    norm: Float[Tensor, " H"]
    head: Float[Tensor, "Vd H"]


@dataclass(frozen=True)
class Draft:
    """A loaded draft. `target_ids[d]` is the target id of draft id d; `draft_ids[t]` the inverse, -1 outside.

    Attributes:
        raw_config: config.json as found, for what an engine would read from it.
        ledger: every tensor of the file, and every expected tensor that it lacks.
    """

    path: Path
    raw_config: dict
    config: DraftConfig
    weights: DraftWeights
    target_ids: Int[Tensor, " Vd"]
    draft_ids: Int[Tensor, " V"]
    ledger: tuple[LedgerEntry, ...]
    embedding: Tensor | Target = field(repr=False)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.fc.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the pass computes in."""
        return self.weights.fc.dtype

    def embed(self, token_ids: Int[Tensor, " T"]) -> Float[Tensor, "T H"]:
        """Embedding rows of target ids, in the draft's dtype; only these rows are read.

        Raises:
            InputError: if an id is outside the embedding.
        """
        if isinstance(self.embedding, Target):
            return self.embedding.embed(token_ids).to(self.device, self.dtype)
        if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < len(self.embedding):
            raise InputError(
                f"Expected token ids below the vocabulary of {len(self.embedding)} in {self.path}, found"
                f" {int(token_ids.min())} .. {int(token_ids.max())}; are the tokens another model's?"
            )
        rows = self.embedding[token_ids.cpu()]
        return rows.to(self.device, self.dtype)


def load_draft(
    path: Path | str, target: Target | None = None, device: str = "auto", dtype: torch.dtype = torch.float32
) -> Draft:
    """Read a draft's folder: config.json and safetensors.

    An embedding or head that the draft lacks comes from `target`. Weights are mapped and copied tensor by
    tensor; an own embedding stays mapped and is read by rows.

    Raises:
        InputError: if a file is missing or broken, a required tensor is absent, shapes contradict each other,
            or the embedding or head is absent and no target was given.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"Expected a draft's folder at {path}, found {'a file' if path.exists() else 'nothing'}.")
    raw_config = read_json(path / "config.json")
    tensors = {_plain_name(info.name): info for info in read_headers(checkpoint_files(path)).values()}
    for name in REQUIRED:
        if name not in tensors:
            raise InputError(f"Expected the tensor {name} in {path}, found none; is it an EAGLE-3 draft, whole?")
    for name in tensors:
        # Passing over any of these would compute another pass without a word.
        if name not in REQUIRED and (name.startswith("layers.") or name.endswith(".bias")):
            raise InputError(f"{path} holds the tensor {name}, which this version's pass does not compute.")
    config = _config(path, raw_config, tensors)
    where = resolve_device(device)

    def weight(name: str) -> Tensor:
        return read_tensor(tensors[name]).to(where, dtype)

    target_ids = _target_ids(path, config, tensors)
    draft_ids = torch.full((config.vocab_size,), -1, dtype=torch.long)
    draft_ids[target_ids] = torch.arange(config.draft_vocab_size)
    weights = DraftWeights(
        fc=weight("fc.weight"),
        input_norms=tuple(weight(name) for name in _input_norm_names(tensors)),
        embed_norm=weight(LAYER + "input_layernorm.weight"),
        hidden_norm=weight(LAYER + "hidden_norm.weight"),
        q=weight(LAYER + "self_attn.q_proj.weight"),
        k=weight(LAYER + "self_attn.k_proj.weight"),
        v=weight(LAYER + "self_attn.v_proj.weight"),
        o=weight(LAYER + "self_attn.o_proj.weight"),
        mlp_norm=weight(LAYER + "post_attention_layernorm.weight"),
        gate=weight(LAYER + "mlp.gate_proj.weight"),
        up=weight(LAYER + "mlp.up_proj.weight"),
        down=weight(LAYER + "mlp.down_proj.weight"),
        norm=weight("norm.weight"),
        head=weight("lm_head.weight")
        if "lm_head.weight" in tensors
        else _from_target(path, target, "lm_head.weight").head_rows(target_ids).to(where, dtype),
    )
    if "embed_tokens.weight" in tensors:
        embedding = read_tensor(tensors["embed_tokens.weight"])
    else:
        embedding = _from_target(path, target, "embed_tokens.weight")
    return Draft(
        path,
        raw_config,
        config,
        weights,
        target_ids.to(where),
        draft_ids.to(where),
        _ledger(tensors),
        embedding,
    )


def _plain_name(name: str) -> str:
    """A tensor's name in speculators' form: EAGLE's and SpecForge's `midlayer.` is `layers.0.`."""
    return LAYER + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def _from_target(path: Path, target: Target | None, name: str) -> Target:
    if target is None:
        raise InputError(f"{path} holds no {name}; name the target, whose own stands in for it.")
    return target


def _input_norm_names(tensors: dict[str, TensorInfo]) -> list[str]:
    if "input_norm.weight" in tensors:
        return ["input_norm.weight"]
    return sorted((name for name in tensors if name.startswith("fc_norm.")), key=lambda name: int(name.split(".")[1]))


def _config(path: Path, raw: dict, tensors: dict[str, TensorInfo]) -> DraftConfig:
    """Sizes from the tensors' shapes, the rest from config.json in whichever form it is written.

    Raises:
        InputError: if shapes contradict each other or config.json lacks a number that no shape tells.
    """
    flat = ecosystems.flat_config(raw)
    hidden, fused = tensors["fc.weight"].shape
    intermediate = tensors[LAYER + "mlp.gate_proj.weight"].shape[0]
    q_rows, q_columns = tensors[LAYER + "self_attn.q_proj.weight"].shape
    k_rows = tensors[LAYER + "self_attn.k_proj.weight"].shape[0]
    if q_columns != 2 * hidden:
        raise InputError(
            f"Expected {LAYER}self_attn.q_proj.weight in {path} to take 2 x {hidden} inputs, the embedding and the"
            f" hidden state, found {q_columns}; an EAGLE-1 or plain Llama layer does not."
        )

    def number(name: str, fallback: float | None = None) -> float:
        value = flat.get(name)
        value = fallback if value is None else value
        if value is None:
            raise InputError(f"Expected {name} in {path / 'config.json'}, found none.")
        return value

    n_heads = int(number("num_attention_heads"))
    head_dim = int(number("head_dim", q_rows // n_heads))
    if q_rows != n_heads * head_dim or k_rows % head_dim:
        raise InputError(
            f"config.json in {path} says {n_heads} heads of {head_dim}, and q_proj has {q_rows} rows, k_proj {k_rows};"
            " correct num_attention_heads or head_dim."
        )
    target_hidden = int(number("target_hidden_size", hidden))
    if fused % target_hidden:
        raise InputError(
            f"fc.weight in {path} takes {fused} inputs, no multiple of the target's hidden size {target_hidden}."
        )
    rope = flat.get("rope_parameters") or flat.get("rope_scaling") or {}  # transformers 5 and 4
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise InputError(
            f"config.json in {path} asks for rope of type {kind!r}; this version computes the default only."
        )
    has_d2t = "d2t" in tensors
    head = tensors.get("lm_head.weight")
    draft_vocab = head.shape[0] if head else tensors["d2t"].shape[0] if has_d2t else int(number("vocab_size"))
    config = DraftConfig(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        n_slots=fused // target_hidden,
        n_heads=n_heads,
        n_kv_heads=k_rows // head_dim,
        head_dim=head_dim,
        intermediate_size=intermediate,
        vocab_size=int(number("vocab_size")),
        draft_vocab_size=draft_vocab,
        norm_eps=float(number("rms_norm_eps")),
        rope_theta=float(rope.get("rope_theta") or number("rope_theta")),
        max_positions=flat.get("max_position_embeddings"),
        input_norm="concat" if "input_norm.weight" in tensors else "slots" if _input_norm_names(tensors) else "none",
        norm_before_residual=bool(flat.get("norm_before_residual", False)),
        norm_output=bool(flat.get("norm_output", False)),
    )
    for name, shape in _expected_shapes(config).items():
        if name in tensors and tensors[name].shape != shape:
            raise InputError(
                f"Expected {name} in {path} of shape {list(shape)}, from the shapes of the others and config.json,"
                f" found {list(tensors[name].shape)}."
            )
    return config


def _expected_shapes(c: DraftConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of the pass, in the symbols of `forward`."""
    h, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    norms = (
        "norm.weight",
        *(f"{LAYER}{n}.weight" for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")),
    )
    return {
        **dict.fromkeys(norms, (c.hidden_size,)),
        **{
            f"{LAYER}self_attn.{n}_proj.weight": (rows, 2 * c.hidden_size)
            for n, rows in (("q", h), ("k", kv), ("v", kv))
        },
        f"{LAYER}self_attn.o_proj.weight": (c.hidden_size, h),
        f"{LAYER}mlp.up_proj.weight": (c.intermediate_size, c.hidden_size),
        f"{LAYER}mlp.down_proj.weight": (c.hidden_size, c.intermediate_size),
        "input_norm.weight": (c.n_slots * c.target_hidden_size,),
        **{f"fc_norm.{i}.weight": (c.target_hidden_size,) for i in range(c.n_slots)},
        "lm_head.weight": (c.draft_vocab_size, c.hidden_size),
        "embed_tokens.weight": (c.vocab_size, c.hidden_size),
        "d2t": (c.draft_vocab_size,),
        "t2d": (c.vocab_size,),
    }


def _target_ids(path: Path, config: DraftConfig, tensors: dict[str, TensorInfo]) -> Int[Tensor, " Vd"]:
    """Target id of every draft id: d + d2t[d], or d where there is no d2t.

    Raises:
        InputError: if an id is out of range or named twice.
    """
    ids = torch.arange(config.draft_vocab_size)
    if "d2t" in tensors:
        ids = ids + read_tensor(tensors["d2t"]).long()
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < config.vocab_size:
        raise InputError(
            f"d2t in {path} maps draft ids to {int(ids.min())} .. {int(ids.max())}, outside the vocabulary of"
            f" {config.vocab_size}; is it stored as absolute ids instead of offsets?"
        )
    if len(ids.unique()) != len(ids):
        raise InputError(f"d2t in {path} maps {len(ids)} draft ids to {len(ids.unique())} target ids; ids repeat.")
    return ids


def _ledger(tensors: dict[str, TensorInfo]) -> tuple[LedgerEntry, ...]:
    used = {*REQUIRED, *SUBSTITUTES, *_input_norm_names(tensors)} - {"t2d"}
    entries = []
    for name, info in tensors.items():
        if name in used:
            entries.append(LedgerEntry(name, info.shape, info.dtype, "used"))
        elif name == "t2d":
            entries.append(LedgerEntry(name, info.shape, info.dtype, "unused", "checked against d2t only"))
        else:
            entries.append(LedgerEntry(name, info.shape, info.dtype, "unused", "no part of an EAGLE-3 pass"))
    for name, substitute in SUBSTITUTES.items():
        if name not in tensors:
            entries.append(LedgerEntry(name, None, None, "missing", substitute))
    return tuple(sorted(entries, key=lambda entry: entry.name))
