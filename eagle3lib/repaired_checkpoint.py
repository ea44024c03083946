"""A repaired draft as a new checkpoint folder: the original's files in the original's form, a few tensors replaced.

It differs from the original in `fc.weight`, the layer ids of config.json, and, where they moved or are needed, an input
norm's weights or an embedding of its own; `provenance.json` lists each. The original is only read.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from eagle3lib import pickles
from eagle3lib.checkpoint import Draft
from eagle3lib.errors import InputError
from eagle3lib.folders import INDEXES
from eagle3lib.results import plain
from eagle3lib.rewire import Rewired
from eagle3lib.target import Target
from eagle3lib.tensors import checkpoint_files, open_safetensors, read_json, read_tensor

WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
EMBEDDING = "embed_tokens.weight"


def save_repaired(
    repaired: Draft,
    out: Path,
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
    provenance: Mapping[str, Any],
    embedding: Float[Tensor, "V H"] | None = None,
) -> Path:
    """Write the checkpoint, whole or not at all.

    Args:
        repaired: the original with other columns, and perhaps other input norms.
        config: config.json as the engine was given it.
        settings: key paths of it and the values they get: the ids in the engine's spelling.
        provenance: what is said of the repair beside what changed.
        embedding: an embedding of its own, where it needs one.

    Raises:
        InputError: if `out` is in use or inside the original, or the original is a GGUF file.
    """
    files = checkpoint_files(repaired.path) if repaired.path.is_dir() else [repaired.path]
    folder = files[0].parent
    out = out.resolve()
    if out.is_relative_to(folder.resolve()) or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise InputError(
            f"Expected a new or empty folder outside {folder} for the repaired checkpoint, found {out} in use or inside"
            " it; name another."
        )
    if files[0].suffix == ".gguf":
        raise InputError(
            f"{files[0]} is a GGUF file, which is not written; repair the safetensors checkpoint that it was converted"
            " from, and convert the result with llama.cpp's convert_hf_to_gguf.py."
        )
    changed = _changed(repaired)
    if embedding is not None:
        changed[EMBEDDING] = embedding
    names = {canonical: _stored_name(repaired, canonical) for canonical in changed}
    new_config = with_settings(config, settings)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _write_weights(repaired, files, part, {names[canonical]: value for canonical, value in changed.items()})
        _copy_others(folder, files, part)
        _write_json(part / "config.json", new_config)
        notes = {
            **provenance,
            "original": folder.name,
            "original_sha256": {file.name: _sha256(file) for file in files},
            "tensors_changed": {canonical: names[canonical] for canonical in sorted(changed)},
            "config_changed": {path: value for path, value in settings.items() if at(config, path) != value},
        }
        _write_json(part / "provenance.json", plain(notes))
        part.chmod(0o777 & ~_umask())
        if out.exists():
            out.rmdir()
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return out


def save_rewired(rewired: Rewired, out: Path, config: Mapping[str, Any]) -> Path:
    """Write a rewired draft as it is: the served ids stay, `fc` moves.

    Raises:
        InputError: as `save_repaired`.
    """
    return save_repaired(rewired.draft, out, config, {}, {"repair": "rewire", **moves(rewired)})


def moves(rewired: Rewired) -> dict[str, Any]:
    """What a provenance says of moved columns."""
    return {
        "trained": list(rewired.trained.slots),
        "served": list(rewired.served.slots),
        "moved_slots": {str(i): j for i, j in rewired.moved.items()},
        "lost": list(rewired.lost),
        "exact": rewired.exact,
    }


def own_embedding(draft: Draft) -> Float[Tensor, "V H"]:
    """The embedding that the draft was trained with, whole."""
    if isinstance(draft.embedding, Target):
        return draft.embedding.embed(torch.arange(draft.config.vocab_size))
    return draft.embedding


def at(config: Mapping[str, Any], path: str) -> Any:
    """The value at a key path, None where there is none."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the values at some key paths replaced."""
    new = copy.deepcopy(dict(config))
    for path, value in settings.items():
        *outer, last = path.split(".")
        place = new
        for key in outer:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        place[last] = value
    return new


def _changed(repaired: Draft) -> dict[str, Tensor]:
    """`fc`, and the input norms that are no longer the file's, by canonical name."""
    norms = repaired.weights.input_norms
    names = [f"fc_norm.{i}.weight" for i in range(len(norms))]
    if repaired.config.input_norm == "concat":
        names = ["input_norm.weight"]
    changed = {"fc.weight": repaired.weights.fc}
    for name, norm in zip(names, norms, strict=True):
        if not torch.equal(read_tensor(repaired.tensors[name]).to(norm), norm):
            changed[name] = norm
    return changed


def _stored_name(draft: Draft, canonical: str) -> str:
    """A tensor's name in the file; one that it lacks gets the prefix of `fc`."""
    if canonical in draft.tensors:
        return draft.tensors[canonical].name
    return draft.tensors["fc.weight"].name.removesuffix("fc.weight") + canonical


def _write_weights(draft: Draft, files: list[Path], part: Path, replaced: dict[str, Tensor]) -> None:
    """Every weight file: copied, or rewritten where it holds a replaced tensor. A new tensor goes beside `fc`."""
    home = draft.tensors["fc.weight"].file
    dtype = read_tensor(draft.tensors["fc.weight"]).dtype
    added = replaced.keys() - {info.name for info in draft.tensors.values()}
    for file in files:
        held = {info.name for info in draft.tensors.values() if info.file == file} & replaced.keys()
        own = {name: replaced[name] for name in held | (added if file == home else set())}
        if not own:
            shutil.copyfile(file, part / file.name)
        elif file.suffix == ".safetensors":
            with open_safetensors(file) as handle:
                tensors = {name: handle.get_tensor(name) for name in handle.keys()}
                metadata = handle.metadata()
            save_file(_replaced(tensors, own, dtype), part / file.name, metadata=metadata)
        else:
            data = pickles.read(file)
            room = next(room for room in _rooms(data) if held & room.keys())
            room.update(_replaced(room, own, dtype))
            torch.save(data, part / file.name)
    for index in (name for name in INDEXES if (home.parent / name).is_file()):
        listed = read_json(home.parent / index)
        for name in added:
            listed["weight_map"][name] = home.name
            if isinstance(size := at(listed, "metadata.total_size"), int):
                listed["metadata"]["total_size"] = size + replaced[name].numel() * dtype.itemsize
        _write_json(part / index, listed)


def _rooms(data: Any) -> Iterator[dict[str, Any]]:
    """The dictionary that a file is, and those in it: one of them is the state dictionary."""
    if isinstance(data, dict):
        yield data
        yield from (value for value in data.values() if isinstance(value, dict))


def _replaced(tensors: dict[str, Any], own: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Any]:
    """The tensors with some replaced, each in the dtype it had; an added one in `fc`'s."""
    kept = dict(tensors)
    for name, value in own.items():
        kept[name] = value.detach().to("cpu", kept[name].dtype if name in kept else dtype).contiguous()
    return kept


def _copy_others(folder: Path, files: list[Path], part: Path) -> None:
    """What lies beside the weights, such as a tokenizer; other weights and indexes are not the draft's."""
    for other in folder.iterdir():
        plain = other.is_file() and other.suffix not in WEIGHTS and other.name not in (*INDEXES, "provenance.json")
        if plain and other.name != "config.json" and other not in files:
            shutil.copyfile(other, part / other.name)


def _write_json(file: Path, data: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
