"""A draft's files in whichever form they come, under one set of names.

Names and shapes decide; config.json is only read. What a system calls its tensors is in its file in
`ecosystems`; here prefixes are taken off, fused tensors cut apart, and what is no EAGLE-3 draft is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle3lib import ecosystems
from eagle3lib.ecosystems._form import ENCLOSING, PREFIXES, Seen
from eagle3lib.ecosystems.llama_cpp import gguf_config
from eagle3lib.errors import InputError
from eagle3lib.folders import INDEXES, checkpoint_files, name_trouble
from eagle3lib.gguf_file import open_gguf
from eagle3lib.kinds import other_kind
from eagle3lib.plausible import expect_numbers, expect_ranks
from eagle3lib.quantised import refuse_quantised
from eagle3lib.tensors import TensorInfo, read_headers, read_json


@dataclass(frozen=True)
class Checkpoint:
    """A draft's header.

    Attributes:
        path: the folder or file as given.
        tensors: canonical name → where it is and what it is called there.
        config: numbers and flags at one level.
        raw_config: config.json as found, for what an engine would read from it.
        dialect: the form's label, with what told it in `evidence`.
        form: its name in `ecosystems.FORMS`, empty where none was recognised.
        prefix: what stands before the names in the file.
        outside: tensors of the same files that are not the draft's, under the file's names.
        promised: canonical names that the index lists and no file holds.
    """

    path: Path
    tensors: dict[str, TensorInfo]
    config: dict[str, Any]
    raw_config: dict[str, Any]
    dialect: str
    prefix: str = ""
    evidence: tuple[str, ...] = ()
    outside: dict[str, TensorInfo] = field(default_factory=dict)
    promised: frozenset[str] = frozenset()
    form: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return tuple(sorted({info.file for info in self.tensors.values()}))


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Open a draft's folder, or its one file with config.json beside it. Headers only.

    Raises:
        InputError: if there is nothing, or what is there is broken, quantised, another kind of draft, a training
            state or a part of a checkpoint.
    """
    path = Path(path)
    if path.is_dir():
        files = checkpoint_files(path)
    elif path.is_file():
        files = [path]
    else:
        raise InputError(name_trouble(path) or f"Expected a draft's folder at {path}, found nothing.")
    raw_config = _config(path, files)
    infos = read_headers(files)
    own, outside, prefix = _without_prefix(infos)
    refuse_quantised(path, {**own}, raw_config)
    seen = Seen(own.keys(), prefix, raw_config, tuple(files))
    tensors = _canonical(path, own)
    flat = ecosystems.flat_config(raw_config)
    if files[0].suffix == ".gguf":
        tensors = _rotated(tensors, flat)
    expect_numbers(path, flat)
    expect_ranks(path, tensors)
    if kind := other_kind(tensors, flat):
        raise InputError(f"{path} holds {kind}; this workbook reads EAGLE-3 drafts.")
    form, label, evidence = _recognise(seen)
    promised = frozenset(canonical_name(plain_name(name)) for name in _listed(path) if name not in infos)
    return Checkpoint(path, tensors, flat, raw_config, label, prefix, evidence, outside, promised, form)


def plain_name(name: str) -> str:
    """A tensor's name without the prefixes that systems write before it."""
    while found := next((p for p in PREFIXES if name.startswith(p)), None):
        name = name.removeprefix(found)
    return name


def canonical_name(name: str) -> str:
    """A name without prefix in speculators' words: every system's renames, tried in turn."""
    for form in ecosystems.FORMS.values():
        for pattern, written in form.renames:
            name = re.sub(pattern, written, name)
    return name


def _listed(path: Path) -> list[str]:
    """Names that the folder's index lists."""
    index = next((path / name for name in INDEXES if (path / name).is_file()), None)
    return list(read_json(index).get("weight_map") or {}) if index else []


def _config(path: Path, files: list[Path]) -> dict[str, Any]:
    if files[0].suffix == ".gguf":
        return gguf_config(open_gguf(files[0]))
    return read_json((path if path.is_dir() else path.parent) / "config.json")


def _without_prefix(infos: dict[str, TensorInfo]) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo], str]:
    """Tensors by name without prefix, those beside the draft, and the prefix most names have."""
    enclosed = any(name.startswith(ENCLOSING) for name in infos)
    own: dict[str, TensorInfo] = {}
    outside: dict[str, TensorInfo] = {}
    prefixes: Counter[str] = Counter()
    for name, info in infos.items():
        if enclosed and not name.startswith(ENCLOSING):
            outside[name] = info  # the target's, saved beside the draft
            continue
        plain = plain_name(name)
        prefixes[name.removesuffix(plain)] += 1
        if plain in own:
            raise InputError(f"{info.file} holds {name} and {own[plain].name}, the same tensor twice; keep one.")
        own[plain] = info
    return own, outside, prefixes.most_common(1)[0][0] if prefixes else ""


def _canonical(path: Path, own: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Every system's renames, tried on every name; then fused tensors as several."""
    found: dict[str, TensorInfo] = {}
    for name, info in own.items():
        plain = canonical_name(name)
        if plain in found:
            raise InputError(f"{path} holds {info.name} and {found[plain].name}, the same tensor twice; keep one.")
        found[plain] = info
    return _one_norm_name(_split(path, found))


def _one_norm_name(tensors: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Later layers have one norm before attention; SGLang, TensorRT-LLM and Megatron call it hidden_norm."""
    found = dict(tensors)
    for name in tensors:
        match = re.fullmatch(r"layers\.([1-9]\d*)\.hidden_norm\.weight", name)
        if match and (theirs := f"layers.{match[1]}.input_layernorm.weight") not in tensors:
            found[theirs] = found.pop(name)
    return found


def _split(path: Path, tensors: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Fused projections as the rows that are q, k and v, gate and up, or MLA's two downward maps."""
    found: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        if parts := _parts(path, name, info, tensors):
            begin = 0
            for part, n_rows in parts:
                found[part] = replace(info, shape=(n_rows, *info.shape[1:]), rows=(begin, begin + n_rows))
                begin += n_rows
        else:
            found[name] = info
    return found


def _parts(path: Path, name: str, info: TensorInfo, tensors: dict[str, TensorInfo]) -> list[tuple[str, int]] | None:
    """Names and numbers of rows of what is fused in `name`; shapes of its neighbours tell them."""
    match = re.fullmatch(r"(layers\.\d+\.)(.*\.)(qkv_proj|gate_up_proj|fused_qkv_a_proj(?:_with_mqa)?)\.(\w+)", name)
    if match is None:
        return None
    layer, room, fused, kind = match.groups()
    rows = info.shape[0]

    def neighbour(which: str, axis: int) -> int:
        if which not in tensors:
            raise InputError(f"Expected {which} in {path}, found none; without it {info.name} cannot be cut apart.")
        return tensors[which].shape[axis]

    if fused == "gate_up_proj":
        names, sizes = ("gate_proj", "up_proj"), (rows // 2, rows - rows // 2)
    elif fused == "qkv_proj":
        q = neighbour(f"{layer}{room}o_proj.weight", 1)
        names, sizes = ("q_proj", "k_proj", "v_proj"), (q, (rows - q) // 2, (rows - q) // 2)
    else:
        q = neighbour(f"{layer}{room}q_a_layernorm.weight", 0)
        names, sizes = ("q_a_proj", "kv_a_proj_with_mqa"), (q, rows - q)
    if sum(sizes) != rows or min(sizes) <= 0:
        raise InputError(f"{info.name} in {path} has {rows} rows, which do not divide into {' and '.join(names)}.")
    return [(f"{layer}{room}{part}.{kind}", size) for part, size in zip(names, sizes, strict=True)]


def _rotated(tensors: dict[str, TensorInfo], config: dict[str, Any]) -> dict[str, TensorInfo]:
    """llama.cpp's q and k, marked so that their rows are read back in everyone else's order."""
    found = dict(tensors)
    for name, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        for full in [n for n in tensors if n.endswith(f".{name}.weight")]:
            found[full] = replace(found[full], rotated_heads=int(config[key]))
    return found


def _recognise(seen: Seen) -> tuple[str, str, tuple[str, ...]]:
    """Name and label of the form that most speaks for, and what does."""
    found = [(form, form.evidence(seen)) for form in ecosystems.FORMS.values()]
    form, evidence = max(found, key=lambda pair: len(pair[1]))
    if not evidence:
        return "", "of no known form", ()
    return form.name, form.label, tuple(dict.fromkeys(evidence))
