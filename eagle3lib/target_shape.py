"""How many weights a target has, which of them a token uses, and what a token keeps: from config.json alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from eagle3lib.errors import InputError
from eagle3lib.target_folder import SECTIONS
from eagle3lib.tensors import read_json

Count = Annotated[int, Field(ge=1, le=10**7)]
#: Formats of torch and of quantisers, in bits of a weight.
BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "fp8": 8, "float8_e4m3fn": 8, "mxfp4": 4, "nvfp4": 4}
#: Names by which quantisers list what they leave as it was: compressed-tensors, transformers, modelopt.
LEFT_OUT = ("ignore", "modules_to_not_convert", "exclude_modules")


class _Config(BaseModel):
    """The numbers of a config.json that weights are counted by; its many others are passed over."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    hidden_size: Count
    num_hidden_layers: Annotated[int, Field(ge=1, le=10**4)]
    vocab_size: Count
    intermediate_size: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    kv_lora_rank: Count | None = None
    q_lora_rank: Count | None = None
    qk_nope_head_dim: Count = 128
    qk_rope_head_dim: Count = 64
    v_head_dim: Count = 128
    experts: Count | None = Field(
        None, validation_alias=AliasChoices("n_routed_experts", "num_experts", "num_local_experts")
    )
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count | None = None
    n_shared_experts: Annotated[int, Field(ge=0, le=10**4)] | None = None
    shared_expert_intermediate_size: Annotated[int, Field(ge=0, le=10**7)] | None = None
    first_k_dense_replace: Annotated[int, Field(ge=0, le=10**4)] = 0
    mlp_only_layers: tuple[int, ...] | list[int] = ()
    decoder_sparse_step: Count = Field(
        1, validation_alias=AliasChoices("decoder_sparse_step", "interleave_moe_layer_step")
    )
    intermediate_size_mlp: Count | None = None  # Llama 4's: of dense layers, and beside its experts one is shared


@dataclass(frozen=True)
class TargetCost:
    """A target in numbers of weights, embedding and norms left out, of which a token reads a row and little.

    Quantisers leave parts as they were, the head almost always, and of many a sparse target all but the routed experts:
    then a decoding step reads more of what is `dense`, and a wide verification costs fewer of them. Layers of windowed
    or linear attention are counted as full ones, which keep more.

    Attributes:
        dense: weights that every pass reads: attention, dense and shared feed-forwards, routers, head.
        expert: weights of one routed expert of one layer; 0 of a dense target.
        experts, chosen: routed experts of a sparse layer, and how many of them a token uses.
        kv_values: numbers that a token keeps over all layers.
        attention_per_key: multiplications of one query with one kept token, over all layers.
        weight_bits: of a quantised weight, and of every routed expert's.
        dense_bits: of a weight of `dense`, on average.
    """

    dense: int
    expert: int
    experts: int
    chosen: int
    sparse_layers: int
    kv_values: int
    attention_per_key: int
    weight_bits: float
    dense_bits: float
    kv_bits: float = 16.0

    @property
    def total(self) -> int:
        """All weights."""
        return self.dense + self.sparse_layers * self.experts * self.expert

    @property
    def active(self) -> int:
        """Weights that one token multiplies with."""
        return self.dense + self.sparse_layers * self.chosen * self.expert


def read_target_cost(path: Path, weight_bits: float | None = None, kv_bits: float = 16.0) -> TargetCost:
    """Count a target's weights from its config.json.

    Args:
        weight_bits: of every weight, where the config does not tell or tells something else.

    Raises:
        InputError: if the file is no config of a decoder with these numbers, or tells no format of its weights.
    """
    raw = read_json(path / "config.json" if path.is_dir() else path)
    return target_cost(raw, str(path), weight_bits, kv_bits)


def target_cost(raw: dict[str, Any], label: str, weight_bits: float | None = None, kv_bits: float = 16.0) -> TargetCost:
    """As `read_target_cost`, of the JSON itself."""
    inner = next((raw[name] for name in SECTIONS if isinstance(raw.get(name), dict)), raw)
    try:
        c = _Config.model_validate(inner)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise InputError(
            f"{label}: expected a decoder's config.json, found {field}: {problem['msg']}; leave [cost] model out to do"
            " without a roofline."
        ) from None
    if c.experts and not c.num_experts_per_tok:
        raise InputError(f"{label} has {c.experts} experts and no num_experts_per_tok; state it there.")
    # A model's quantisation may stand in its section, and its format above; one of the two may be null.
    stored = _stored_bits(raw | {name: value for name, value in inner.items() if value is not None})
    bits, left, wide = (weight_bits, frozenset(), weight_bits) if weight_bits else stored or (None, frozenset(), None)
    if bits is None:
        raise InputError(f"{label} does not tell in which format its weights are stored; state [cost] weight_bits.")
    attention, kept, per_key = _latent(c) if c.kv_lora_rank else _grouped(c)
    sparse = _sparse_layers(c) if c.experts else 0
    width = c.moe_intermediate_size or c.intermediate_size
    expert = 3 * c.hidden_size * width if c.experts else 0
    shared = (c.n_shared_experts or (1 if c.intermediate_size_mlp else 0)) * expert
    shared += (
        (3 * c.hidden_size * c.shared_expert_intermediate_size + c.hidden_size)
        if c.shared_expert_intermediate_size
        else 0
    )
    router = c.hidden_size * (c.experts or 0)
    dense_mlp = 3 * c.hidden_size * (c.intermediate_size_mlp or c.intermediate_size)
    parts = {
        "attention": c.num_hidden_layers * attention, "feed-forward": (c.num_hidden_layers - sparse) * dense_mlp,
        "shared": sparse * shared, "router": sparse * router, "head": c.vocab_size * c.hidden_size,
    }  # fmt: skip
    dense = sum(parts.values())
    dense_bits = sum(weights * (wide if part in left else bits) for part, weights in parts.items()) / dense
    return TargetCost(
        dense, expert, c.experts or 0, c.num_experts_per_tok or 0, sparse, c.num_hidden_layers * kept,
        c.num_hidden_layers * per_key, bits, dense_bits, kv_bits,
    )  # fmt: skip


def _grouped(c: _Config) -> tuple[int, int, int]:
    """Weights of one layer's attention, numbers that a token keeps there, multiplications with a kept token."""
    head = c.head_dim or c.hidden_size // c.num_attention_heads
    queries, keys = c.num_attention_heads * head, (c.num_key_value_heads or c.num_attention_heads) * head
    return c.hidden_size * (2 * queries + 2 * keys), 2 * keys, 2 * queries


def _latent(c: _Config) -> tuple[int, int, int]:
    """The same of latent attention, which keeps one latent and one rotated key for all heads. (arXiv 2405.04434)"""
    n, nope, rope, value = c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
    per_query = n * (nope + rope)
    queries = c.q_lora_rank * (c.hidden_size + per_query) if c.q_lora_rank else c.hidden_size * per_query
    latent = c.kv_lora_rank + rope
    weights = queries + c.hidden_size * latent + c.kv_lora_rank * n * (nope + value) + n * value * c.hidden_size
    return weights, latent, n * (latent + c.kv_lora_rank)


def _sparse_layers(c: _Config) -> int:
    """Layers with experts: behind the first dense ones, or every so many, but for those listed as dense."""
    return sum(
        layer >= c.first_k_dense_replace and layer not in c.mlp_only_layers and (layer + 1) % c.decoder_sparse_step == 0
        for layer in range(c.num_hidden_layers)
    )


def _stored_bits(config: dict[str, Any]) -> tuple[float, frozenset[str], float] | None:
    """Bits of a quantised weight, the parts that were left as they were, and the bits of those.

    A quantiser's own number first, else its name; without one, the format of all weights.
    """
    wide = BITS.get(str(config.get("torch_dtype") or config.get("dtype") or "").removeprefix("torch."))
    quantised = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(quantised, dict):
        return (wide, frozenset(), wide) if wide else None
    found = _bits_of_groups(quantised) or quantised.get("bits")
    if not found or not isinstance(found, int | float):
        found = BITS.get(str(quantised.get("quant_method") or quantised.get("quant_algo") or "").lower())
    return (float(found), _left_out(quantised), wide or 16) if found else None


def _left_out(quantised: dict[str, Any]) -> frozenset[str]:
    """Parts that a quantiser leaves: the head, routers, and what its patterns name.

    The patterns are searched for the modules' names and never run: a file's expression may take for ever.
    """
    listed = next((quantised[name] for name in LEFT_OUT if isinstance(quantised.get(name), list)), [])
    left = {"head", "router"}
    for pattern in map(str, listed):
        if "attn" in pattern or "attention" in pattern:
            left.add("attention")
        elif "shared_expert" in pattern:
            left.add("shared")
        elif "mlp" in pattern and "expert" not in pattern and "_proj" in pattern:
            left.add("feed-forward")
    return frozenset(left)


def _bits_of_groups(quantised: dict[str, Any]) -> float | None:
    """`num_bits` of compressed-tensors' first group of weights."""
    groups = quantised.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and isinstance(weights.get("num_bits"), int | float):
            return float(weights["num_bits"])
    return None
