"""Quantised drafts: recognised by their tensors and refused with the reason, before packed codes pass for weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3lib.errors import InputError
from eagle3lib.tensors import TensorInfo, read_json

#: What stands after a weight's name where its scale, zero point or packed codes are kept.
COMPANIONS = (
    "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_global_scale", "input_scale", "scale", "scales",
    "weight_packed", "weight_shape", "weight_zero_point", "qweight", "qzeros", "g_idx", "absmax", "scale_inv",
)  # fmt: skip
#: Scales of a server's key-value cache: no weight depends on them.
CACHE_SCALES = ("k_scale", "v_scale", "kv_scale")
CODES = {"U8", "I8", "I32", "F8_E4M3", "F8_E5M2"}
INTEGERS = ("d2t", "t2d")


def companions(tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Names of scales, zero points and packed codes."""
    return [name for name in tensors if name.rsplit(".", 1)[-1] in COMPANIONS]


def refuse_quantised(path: Path, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> None:
    """Complain if a weight of the draft is stored as codes.

    A quantization_config beside plain weights is no reason: the draft was left out of it.

    Raises:
        InputError: naming the tensor, its type, its companions and the method as far as the files tell.
    """
    if any(info.file.suffix == ".gguf" for info in tensors.values()):
        return  # GGUF says how its types are dequantised
    coded = [
        name for name, info in tensors.items()
        if info.dtype in CODES and name not in INTEGERS and len(info.shape) > 1
    ]  # fmt: skip
    beside = companions(tensors)
    if not coded and not beside:
        return
    name = (coded or beside)[0]
    info = tensors[name]
    scales = f" with {beside[0]}" if beside and beside[0] != name else "" if beside else " without any scale"
    raise InputError(
        f"{path} is a quantised export{_method(path, config)}: {info.name} is {info.dtype} {list(info.shape)}{scales};"
        " give the draft as it was before quantisation, since a faithful pass needs its own weights."
    )


def _method(path: Path, config: Mapping[str, Any]) -> str:
    """The quantisation's name in the files, in brackets, or nothing."""
    section = config.get("quantization_config")
    if isinstance(section, dict):
        name = section.get("quant_algo") or section.get("quant_method") or section.get("format")
        return f" ({name})" if name else ""
    beside = (path if path.is_dir() else path.parent) / "hf_quant_config.json"
    if beside.is_file():
        name = (read_json(beside).get("quantization") or {}).get("quant_algo")
        return f" ({name})" if name else ""
    return ""
